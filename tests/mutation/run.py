"""Run the tests of a room on each mutant, in a copy of the tree.

Takes: Mutants. Gives: the mutants that no test detected. Next: __main__. May touch: a
temporary folder; it never writes to the work tree.

mutmut runs the tests that call the changed function, in processes forked with the tests
loaded. A timeout counts as detected.
"""

import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.mutation.mutants import Mutant

TESTS: Final = {
    "kyverno_mp/program/": (
        "tests/unit/program",
        "tests/unit/program_mutate",
        "tests/unit/program_pod_security",
    ),
    "kyverno_mp/expr/": (
        "tests/unit/expr_assertion",
        "tests/unit/expr_cel",
        "tests/unit/expr_conditions",
        "tests/unit/expr_jmespath",
        "tests/unit/expr_pattern",
        "tests/unit/expr_template",
        "tests/unit/program",
    ),
    "kyverno_mp/webhook/": ("tests/unit/webhook",),
}
"""Room -> the tests that have to detect a change in it."""

PROPERTIES: Final = {
    "kyverno_mp/program/": (
        "tests/fuzz/test_plan_fuzz.py",
        "tests/fuzz/test_pattern_fuzz.py",
        "tests/fuzz/test_existing_violations_fuzz.py",
    ),
    "kyverno_mp/expr/": (
        "tests/fuzz/test_conditions_fuzz.py",
        "tests/fuzz/test_pattern_fuzz.py",
    ),
    "kyverno_mp/webhook/": ("tests/fuzz/test_service_fuzz.py",),
}
"""Room -> slower tests, run only on the mutants that no other test detected."""

_PROPERTY_SECONDS: Final = 300

SURVIVED: Final = 0
NO_TESTS: Final = 33
"""mutmut's exit codes for a mutant; None: time ran out before it."""


class Unusable(Exception):
    """The tests fail without a mutant, so their result with a mutant is meaningless."""


def run(root: Path, mutants: Sequence[Mutant], seconds: int) -> dict[str, int | None]:
    """Return the exit code of the tests by the name of the mutant.

    ``seconds`` bound the run of each room; mutants that were not reached have None.
    """
    codes: dict[str, int | None] = {}
    for room, tests in TESTS.items():
        own = [mutant for mutant in mutants if mutant.file.startswith(room)]
        if own:
            with _copy(root) as tree:
                _configure(tree, own, tests)
                _mutmut(tree, own, seconds)
                codes |= _codes(tree, own)
                unnoticed = [m for m in own if codes[m.name] in (SURVIVED, NO_TESTS)]
                codes |= _properties(tree, unnoticed, PROPERTIES[room])
    return codes


def _properties(
    tree: Path, mutants: Sequence[Mutant], tests: tuple[str, ...]
) -> dict[str, int | None]:
    """Return the exit codes of the property tests, with one mutant each in the source.

    Raises: Unusable.
    """
    if mutants and _pytest(tree, tests):
        raise Unusable(f"red without a mutant: {', '.join(tests)}")
    codes: dict[str, int | None] = {}
    for mutant in mutants:
        original = (tree / mutant.file).read_text()
        command = [sys.executable, "-m", "mutmut", "apply", mutant.name]
        subprocess.run(command, cwd=tree, check=True)
        codes[mutant.name] = _pytest(tree, tests)
        (tree / mutant.file).write_text(original)
    return codes


def _pytest(tree: Path, tests: tuple[str, ...]) -> int:
    """Return the exit code; a timeout counts as a failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    # Files of the same size and second: stale byte code must not be used.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(timeout=_PROPERTY_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 1


@contextmanager
def _copy(root: Path) -> Iterator[Path]:
    """Copy the tracked and the new files; link other content of the tree."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder) / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, tree / name)
        shared = root.parent / "shared"
        if shared.exists():
            for beside in (Path(folder), tree):
                (beside / "shared").symlink_to(shared.resolve())
        yield tree


def _configure(tree: Path, mutants: Sequence[Mutant], tests: tuple[str, ...]) -> None:
    config = configparser.ConfigParser(interpolation=None)
    config.read(tree / "setup.cfg")
    files = sorted({mutant.file for mutant in mutants})
    config["mutmut"]["only_mutate"] = "\n" + "\n".join(files)
    config["mutmut"]["pytest_add_cli_args_test_selection"] = "\n" + "\n".join(tests)
    with (tree / "setup.cfg").open("w") as file:
        config.write(file)


def _mutmut(tree: Path, mutants: Sequence[Mutant], seconds: int) -> None:
    """Run mutmut; when time runs out, kill it with all its processes."""
    names = [mutant.name for mutant in mutants]
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "2", *names]
    output = tree / "mutmut.txt"
    with (
        output.open("wb") as file,
        subprocess.Popen(
            command, cwd=tree, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = output.read_text(errors="replace").replace("\r", "\n").splitlines()
            print("time is over, the last words were:", *said[-1:], file=sys.stderr)
            return
    if code:
        said = output.read_text(errors="replace").replace("\r", "\n").splitlines()
        raise Unusable("\n".join(said[-60:]))


def _codes(tree: Path, mutants: Sequence[Mutant]) -> dict[str, int | None]:
    known: dict[str, int | None] = {}
    for file in {mutant.file for mutant in mutants}:
        meta = tree / "mutants" / f"{file}.meta"
        if meta.exists():
            known |= json.loads(meta.read_text())["exit_code_by_key"]
    return {mutant.name: known.get(mutant.name) for mutant in mutants}
