"""The gate runs every suite, counts what ran, and fails if one failed.

A failure means: a suite is left out without notice, or a broken suite looks passed.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.suites import (
    GROUPS,
    SUITES,
    Lane,
    Result,
    Suite,
    chosen,
    read_counts,
    run,
    table,
)

ROOT = Path(__file__).resolve().parents[3]


def _says(name: str, text: str, code: int = 0, lane: Lane = "aside") -> Suite:
    program = f"print({text!r}); raise SystemExit({code})"
    return Suite(name, lane, (sys.executable, "-c", program), False)


def _pytest(name: str, file: Path, text: str) -> Suite:
    file.write_text(text)
    root = ("-p", "tests.conftest", f"--rootdir={file.parent}", "-c", "/dev/null")
    return Suite(name, "aside", (sys.executable, "-m", "pytest", *root, str(file)))


def test_suites_after_a_failed_one_run(capfd: pytest.CaptureFixture[str]) -> None:
    suites = [_says("a", "first", 3), _says("b", "second"), _says("c", "3", 0, "cores")]
    assert run(suites) == 1
    lines = capfd.readouterr().out.splitlines()
    assert {"first", "second", "3"} <= {*lines}
    assert lines[-1] == "2 passed, 1 failed"
    rows = [line.split()[:4] for line in lines if re.match(r"[abc] +\d", line)]
    assert rows == [["a", "0", "1", "0"], ["b", "1", "0", "0"], ["c", "1", "0", "0"]]
    assert any(line.startswith("FAILED a: exit code 3") for line in lines)


def test_outputs_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([_says("a", "1\n2\n3"), _says("b", "4\n5\n6", 0, "cores")]) == 0
    text = capfd.readouterr().out
    assert "1\n2\n3\n" in text
    assert "4\n5\n6\n" in text


def test_suites_of_different_lanes_run_beside_one_another(tmp_path: Path) -> None:
    """Each waits for a file of every other one."""
    program = (
        "import pathlib, sys; from tests.waiting import wait_for;"
        "folder = pathlib.Path(sys.argv[1]); (folder / sys.argv[2]).touch();"
        "wait_for(lambda: len(list(folder.iterdir())) == 4)"
    )
    lanes: tuple[Lane, ...] = ("cores", "planes", "waiting", "aside")
    suites = [
        Suite(lane, lane, (sys.executable, "-c", program, str(tmp_path), lane), False)
        for lane in lanes
    ]
    assert run(suites) == 0


def test_a_suite_that_measures_runs_after_all_others(tmp_path: Path) -> None:
    """The others would take its time; here it is the first of the list."""
    folder = f"__import__('pathlib').Path({str(tmp_path / 'made')!r})"
    other = (sys.executable, "-c", f"{folder}.mkdir()")
    measures = (sys.executable, "-c", f"{folder}.rmdir()")
    suites = [Suite("m", "alone", measures, False), Suite("o", "cores", other, False)]
    assert run(suites) == 0


def test_a_suite_alone_decides_the_exit_code() -> None:
    assert run([_says("a", "x", 1)]) == 1
    assert run([_says("a", "x")]) == 0


def test_a_missing_program_has_failed() -> None:
    missing = Suite("a", "aside", ("no-program-of-this-name",), False)
    assert run([missing, _says("b", "x")]) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_tests_are_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    """Also those that fail, or are skipped, before or after their own lines."""
    text = """
import pytest
def test_a(): pass
def test_b(): assert 0
def test_c(): pytest.skip("no moon")
@pytest.fixture
def broken(): raise OSError
def test_d(broken): pass
@pytest.fixture
def left():
    yield
    raise OSError
def test_e(left): pass
@pytest.mark.skip(reason="no moon")
def test_f(): pass
"""
    suite = _pytest("p", tmp_path / "test_p.py", text)
    suite = replace(suite, command=(*suite.command, "-n", str(workers)))
    assert run([suite, _says("a", "x")]) == 1
    out = capfd.readouterr().out
    assert re.search(r"^p +2 +3 +2 ", out, re.MULTILINE)
    assert re.search(r"^p +2 not run: no moon$", out, re.MULTILINE)
    for name in "bde":
        assert re.search(rf"^FAILED p: .*::test_{name}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("percent", "large", "small"), [(25, 100, 50), (100, 400, 60), (200, 800, 120)]
)
def test_percentage_of_the_stated_examples(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    percent: int,
    large: int,
    small: int,
) -> None:
    """The gate runs a quarter of them, and the daily job more; small numbers remain."""
    text = f"""
import pytest
from hypothesis import given, settings, strategies as s
calls = dict(a=0, b=0, small=0)
@pytest.mark.parametrize("name", ["a", "b"])
@given(number=s.integers())
@settings(max_examples=400, deadline=None, database=None)
def test_large(name, number): calls[name] += 1
@given(number=s.integers())
@settings(max_examples=60, deadline=None, database=None)
def test_small(number): calls["small"] += 1
def test_counts():
    assert calls["a"] == calls["b"] == {large}
    assert calls["small"] == {small}
"""
    monkeypatch.setenv("PROPERTY_EXAMPLES", str(percent))
    assert run([_pytest("p", tmp_path / "test_p.py", text)]) == 0


@pytest.mark.parametrize("code", [0, 1, 2, 5])
def test_a_run_that_counted_nothing_has_failed(tmp_path: Path, code: int) -> None:
    """It broke off, or its file of counts was lost."""
    suite = _pytest("p", tmp_path / "test_p.py", "")
    assert read_counts(suite, tmp_path / "missing.json", code).failed == 1


@pytest.mark.parametrize("code", [1, 2, 3, 5, -11])
def test_an_error_outside_of_the_tests_has_failed(tmp_path: Path, code: int) -> None:
    suite = _pytest("p", tmp_path / "test_p.py", "")
    counts = tmp_path / "counts.json"
    counts.write_text('{"passed": 5, "failed": 0, "skipped": {}, "failures": []}')
    assert read_counts(suite, counts, code).failed == 1
    assert read_counts(suite, counts, 0).failed == 0


def test_the_table_is_no_line_of_skipped_tests() -> None:
    """`.ci/run` searches the lines of pytest for these."""
    gate = (ROOT / ".ci/run").read_text()
    found = re.search(r"grep -E '([^']+)'", gate)
    assert found is not None
    lines = "\n".join(table({"a": Result(3, 0, {"no moon": 0}), "b": Result(1, 1)}))
    assert not re.search(found[1], lines, re.MULTILINE)
    assert re.search(found[1], "3 passed, 2 skipped in 1 s", re.MULTILINE)


def test_every_folder_of_tests_is_in_a_suite() -> None:
    """Except what needs an idle machine or an image's builder: own commands of tox."""
    folders = {path.parent.name for path in ROOT.glob("tests/*/test_*.py")} | {"unit"}
    commands = {part for suite in chosen(["check", "e2e"]) for part in suite.command}
    assert {name for name in folders if f"tests/{name}" not in commands} == {
        "charges",
        "image",
    }
    assert {"ruff", "mypy", "lint-imports", "zensical"} <= commands


def test_modules_of_pods_run_in_their_own_suite_only() -> None:
    (cluster,) = (suite for suite in SUITES if suite.name == "cluster")
    (pods,) = (suite for suite in SUITES if suite.name == "pods")
    ignored = {
        part.removeprefix("--ignore=")
        for part in cluster.command
        if part.startswith("--ignore=")
    }
    paths = {part for part in pods.command if part.startswith("tests/")}
    names = ("day", "hand_over", "takeover")
    daily = {f"tests/e2e/pods/test_{name}.py" for name in names}
    assert ignored == {*paths, *daily, "tests/e2e/test_chainsaw_cases.py"}
    tox = (ROOT / "tox.ini").read_text()
    assert all(path in tox for path in daily), "they run daily"
    assert all((ROOT / path).is_file() for path in ignored)


def test_groups_name_suites_and_tox_names_groups() -> None:
    names = {suite.name for suite in SUITES}
    assert {part for parts in GROUPS.values() for part in parts} <= names
    called = re.findall(r"^ +([\w,]+): python -m tests\.suites", _tox(), re.MULTILINE)
    environments = {name for line in called for name in line.split(",")}
    assert environments == {*GROUPS, *names} - {
        "style",
        "format",
        "chainsaw",
        "pods",
        "measured",
    }
    for name in environments:
        assert chosen([name])


def test_the_gate_builds_a_single_environment() -> None:
    """Each costs a minute; suites run beside one another only in the same one."""
    gate = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^\.venv/bin/tox(.*) 2>&1", gate, re.MULTILINE) == [
        " -- cluster"
    ]
    assert set(re.findall(r"tox\b.* -e (\w+)", gate)) == {"check"}
    assert "    check: python -m tests.suites check {posargs}\n" in _tox()
    assert {suite.name for suite in chosen(["check", "cluster"])} == {
        *GROUPS["check"],
        *GROUPS["cluster"],
    }


def _tox() -> str:
    return (ROOT / "tox.ini").read_text()
