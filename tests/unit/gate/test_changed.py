"""A change selects every test that it can break.

A failure means: a developer's own run passes, and the gate's run of all tests does not.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import changed
from tests.changed import Tree, changed_files, chosen

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "kyverno_mp/__init__.py": "",
    "kyverno_mp/__main__.py": "import kyverno_mp.cli.main",
    "kyverno_mp/cli/__init__.py": "",
    "kyverno_mp/cli/main.py": 'COMMANDS = {"jp": "kyverno_mp.cli.jp"}',
    "kyverno_mp/cli/jp.py": "def run():\n    from kyverno_mp.values import numbers",
    "kyverno_mp/values/__init__.py": "",
    "kyverno_mp/values/numbers.py": '"""The card names kyverno_mp.values.texts."""',
    "kyverno_mp/values/texts.py": "",
    "kyverno_mp/styles.py": 'STYLE = Path(__file__).with_name("style.css")',
    "tests/unit/conftest.py": "from tests.rig import rig",
    "tests/rig.py": "",
    "tests/unit/test_numbers.py": "from kyverno_mp.values.numbers import add",
    "tests/unit/test_cli.py": 'command = [python, "-m", "kyverno_mp", "jp"]',
    "tests/unit/test_style.py": "import kyverno_mp.styles",
    "tests/unit/docs/test_pages.py": 'PAGES = (ROOT / "docs").rglob("*.md")',
    "tests/unit/docs/test_one.py": 'P = ROOT / "docs" / "report.md"; x = {"docs": 1}',
    "tests/unit/docs/test_word.py": 'x = {"docs": "cli.md5"}',
    "tests/unit/test_crds.py": 'CRDS = ROOT / "config" / "crds"',
    "tests/unit/test_set.py": 'SETS = ["config/sets"]',
    "tests/unit/test_tidy.py": 'MODULES = ROOT.rglob("*.py")',
    "tests/trees.py": 'TREES = ROOT.rglob("*.py")',
    "tests/unit/test_names.py": "from tests.trees import TREES",
    "tests/unit/test_patterns.py": "import pkgutil",
    "tests/unit/near/test_table.py": 'T = Path(__file__).parent / "tables"',
    "tests/faults/test_kill.py": "import kyverno_mp.cli.main",
}
ALWAYS = {
    "tests/unit/test_tidy.py",
    "tests/unit/test_names.py",
    "tests/unit/test_patterns.py",
}
"""They read or import all modules, themselves or through a module of the tests."""


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def reached(root: Path, *names: str) -> Mapping[str, int]:
    return Tree(root, names).reached(names)


def test_importers_at_any_distance_and_modules_named_by_texts(root: Path) -> None:
    """A command's module is imported late, or by its name, or in another process."""
    found = reached(root, "kyverno_mp/values/numbers.py")
    assert found == {
        "tests/unit/test_tidy.py": 0,
        "tests/unit/test_patterns.py": 0,
        "tests/unit/test_names.py": 1,
        "tests/unit/test_numbers.py": 1,
        "tests/faults/test_kill.py": 3,
        "tests/unit/test_cli.py": 4,
    }


def test_docstrings_name_nothing(root: Path) -> None:
    assert {*reached(root, "kyverno_mp/values/texts.py")} == ALWAYS


def test_package_runs_before_its_modules(root: Path) -> None:
    found = {*reached(root, "kyverno_mp/values/__init__.py")}
    assert "tests/unit/test_numbers.py" in found
    assert "tests/unit/test_style.py" not in found


def test_deleted_module_reaches_its_importers(root: Path) -> None:
    (root / "kyverno_mp/values/numbers.py").unlink()
    found = {*reached(root, "kyverno_mp/values/numbers.py")}
    assert {"tests/unit/test_numbers.py", "tests/unit/test_cli.py"} <= found


def test_a_test_reaches_itself(root: Path) -> None:
    found = {*reached(root, "tests/unit/test_set.py")}
    assert found == {"tests/unit/test_set.py", *ALWAYS}


def test_deleted_test_is_not_run(root: Path) -> None:
    (root / "tests/unit/test_set.py").unlink()
    assert {*reached(root, "tests/unit/test_set.py")} == ALWAYS


def test_rig_reaches_the_tests_below_its_conftest(root: Path) -> None:
    found = {*reached(root, "tests/rig.py")}
    assert found == {name for name in FILES if name.startswith("tests/unit/test_")} | {
        name for name in FILES if name.startswith("tests/unit/") and "/test_" in name
    }


@pytest.mark.parametrize(
    ("file", "readers"),
    [
        ("docs/report.md", {"docs/test_pages.py", "docs/test_one.py"}),
        ("docs/behaviour/README.md", {"docs/test_pages.py"}),
        ("docs/cli.md", {"docs/test_pages.py"}),
        ("config/crds/policy.yaml", {"test_crds.py"}),
        ("config/sets/a/b.yaml", {"test_set.py"}),
        ("kyverno_mp/style.css", {"test_style.py"}),
        ("tests/unit/near/tables/a.yaml", {"near/test_table.py"}),
    ],
)
def test_data_reaches_what_names_it_or_its_folder(
    root: Path, file: str, readers: set[str]
) -> None:
    assert {*reached(root, file)} == {f"tests/unit/{name}" for name in readers}


@pytest.mark.parametrize("file", ["unknown.bin", "deploy/odd.yaml", "setup.cfg"])
def test_unknown_and_shared_files_reach_everything(root: Path, file: str) -> None:
    assert {*reached(root, file)} == {name for name in FILES if "/test_" in name}


def test_no_change_reaches_nothing(root: Path) -> None:
    assert reached(root) == {}


def test_nearest_quick_tests_come_first() -> None:
    tests = {"tests/unit/b.py": 2, "tests/unit/a.py": 2, "tests/fuzz/c.py": 1}
    tests |= {"tests/e2e/d.py": 0, "tests/unit/far.py": 5}
    near = ["tests/fuzz/c.py", "tests/unit/a.py", "tests/unit/b.py"]
    assert chosen(tests, 2) == near
    assert chosen(tests, None) == [*near, "tests/unit/far.py"]


def test_changes_are_those_of_the_branch_and_of_the_work_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-qm", name)

    git("init", "-qb", "main")
    commit("old")
    commit("gone")
    git("switch", "-qc", "topic")
    commit("committed")
    git("rm", "-q", "gone")
    (tmp_path / "old").write_text("edited")
    (tmp_path / "new é").write_text("new")
    git("switch", "-q", "-c", "elsewhere", "main")
    git("switch", "-q", "topic")
    assert changed_files("main") == {"committed", "gone", "old", "new é"}


def test_an_unknown_base_is_no_success(capfd: pytest.CaptureFixture[str]) -> None:
    assert changed.main(["--base", "no-such-branch", "--list"]) != 0
    assert "no-such-branch" in capfd.readouterr().err


READERS = {
    "kyverno_mp/expr/jmespath/functions/text.py": "expr_jmespath/test_queries.py",
    "kyverno_mp/values/kubernetes/selector.py": "program/test_candidates.py",
    "docs/settings.md": "docs/test_tables.py",
    "config/crds/kyverno.io_policies.yaml": "policy/test_crd.py",
    "tests/unit/kube/fake_api.py": "kube/test_cache.py",
    ".ci/run": "docs/test_readme.py",
}


def test_this_tree() -> None:
    tree = Tree(ROOT)
    everything = len(tree.reached(["setup.cfg"]))
    for file, test in READERS.items():
        assert (ROOT / file).exists()
        found = tree.reached([file])
        assert f"tests/unit/{test}" in found, file
        assert len(found) < everything, file
