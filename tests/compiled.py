"""Compile every module once, before processes that need them start side by side.

``python -m tests.compiled`` writes the byte code of the product and of the tests' own
modules, and that of the test modules as pytest changes their assertions. Otherwise each
worker of pytest-xdist does this for all of them: 17 seconds of CPU time each.

Takes: nothing. Gives: files in ``__pycache__``. May touch: those files.
"""

import compileall
import importlib
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_FOLDERS: Final = ("kyverno_mp", "tests", "perf")
_OF_PYTEST: Final = re.compile(r"/(test_\w+|conftest)\.py$")
"""Modules that only pytest loads."""


def rewritten(path: Path) -> bool:
    """Write the byte code of a test module; return whether pytest will use it.

    These functions of pytest are not public. If they change, pytest compiles the
    modules itself, as it always can.
    """
    rewrite: ModuleType = importlib.import_module("_pytest.assertion.rewrite")
    try:
        target = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, target) is None:
            target.parent.mkdir(exist_ok=True)
            known, code = rewrite._rewrite_test(path, None)
            whole = target.with_suffix(f".{os.getpid()}")
            with whole.open("wb") as file:
                rewrite._write_pyc_fp(file, known, code)
            whole.replace(target)
        return rewrite._read_pyc(path, target) is not None
    except (AttributeError, TypeError, ValueError):
        return False


def main(folders: Iterable[str] = _FOLDERS) -> int:
    """Compile them on all cores; return the exit code."""
    tests: list[Path] = []
    are_compiled: Any = True
    for folder in folders:
        where = ROOT / folder
        are_compiled &= compileall.compile_dir(where, quiet=1, workers=0, rx=_OF_PYTEST)
        tests += (p for p in where.rglob("*.py") if _OF_PYTEST.search(str(p)))
    with ProcessPoolExecutor() as pool:
        list(pool.map(rewritten, tests, chunksize=8))
    return 0 if are_compiled else 1


if __name__ == "__main__":
    sys.exit(main())
