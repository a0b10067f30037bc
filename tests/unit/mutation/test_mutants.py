"""A run of mutants is repeatable and only contains mutants that a test could detect."""

from pathlib import Path

from tests.mutation.__main__ import KNOWN, ROOT, known_keys
from tests.mutation.mutants import draw, draw_files, mutants_of

SOURCE = '''
def ends(word: str, least: int) -> bool:
    """Tell "enough"."""
    if least < 1:
        raise ValueError("too few words", least + 1)
    return word == "end"
'''


def _tree(folder: Path) -> Path:
    (folder / "one.py").write_text(SOURCE)
    (folder / "two.py").write_text(
        "def two(number: int) -> int:\n    return number + 2"
    )
    return folder


def test_operators_numbers_and_strings_are_changed(tmp_path: Path) -> None:
    changes = {m.after for m in mutants_of(_tree(tmp_path), "one.py")}
    assert {"if least <= 1:", "if least < 2:", 'return word == "XXendXX"'} <= changes


def test_messages_are_not_changed(tmp_path: Path) -> None:
    changes = {m.after for m in mutants_of(_tree(tmp_path), "one.py")}
    assert not [change for change in changes if "ValueError" in change]
    assert 'return word == "END"' not in changes


def test_mutant_names_its_position(tmp_path: Path) -> None:
    found = {m.key for m in mutants_of(_tree(tmp_path), "two.py")}
    assert ("two.py", "two", "return number + 2", "return number - 2") in found


def test_seed_repeats_a_run(tmp_path: Path) -> None:
    tree = _tree(tmp_path)
    files = draw_files(tree, ["*.py"], "a", 9)
    assert files == ["one.py", "two.py"]
    first, again = (draw(tree, files, "a", 4) for _ in range(2))
    assert first == again
    assert len(set(first)) == 4
    assert len({tuple(draw(tree, files, seed, 4)) for seed in "abcdef"}) > 1


def test_known_survivors_name_existing_files() -> None:
    for file, function, before, after in known_keys(KNOWN):
        assert (ROOT / file).is_file()
        assert f"def {function.rpartition('.')[2]}(" in (ROOT / file).read_text()
        assert before != after
