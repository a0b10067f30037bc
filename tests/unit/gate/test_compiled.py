"""Test modules are compiled once for all processes, as pytest would compile them.

A failure means: each worker of a run compiles every test module again, or runs byte
code of an earlier version of it.
"""

import subprocess
import sys
from pathlib import Path

from tests.compiled import rewritten


def _run(folder: Path) -> str:
    """Run the tests of a folder; pytest traces what it compiles."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--debug=log"]
    outcome = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir=.", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    traced = (folder / "log").read_text()
    return outcome.stdout + "".join(
        line for line in traced.splitlines(keepends=True) if "assertion]" in line
    )


def test_pytest_uses_what_was_compiled(tmp_path: Path) -> None:
    module = tmp_path / "test_m.py"
    module.write_text("def test_a():\n    a = 1\n    assert a == 2\n")
    assert rewritten(module)
    said = _run(tmp_path)
    assert f"found cached rewritten pyc for {module}" in said
    assert "assert 1 == 2" in said, "failures still show the values"


def test_changed_module_is_compiled_again(tmp_path: Path) -> None:
    module = tmp_path / "test_m.py"
    module.write_text("def test_a():\n    assert 1 == 2\n")
    assert rewritten(module)
    module.write_text("def test_a():\n    assert True\n")
    assert "1 passed" in _run(tmp_path)
    assert rewritten(module)
    assert "found cached" in _run(tmp_path)
