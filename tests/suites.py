"""Run suites beside one another, and end with a table of all of them.

``python -m tests.suites NAME...`` runs suites or groups of suites in this environment.
Every suite runs, even if another one fails. A single suite prints while it runs; of
several, each prints when it ends, so that their lines do not mix.

Takes: names. Gives: exit code 0 if every suite passed. Next: conftest.py, which counts.
May touch: a temporary folder, and whatever the suites touch.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NoReturn

Lane = Literal["cores", "planes", "waiting", "aside", "alone"]
"""Suites of a lane run one after another, beside those of the other lanes.

``cores``: the longest suite, which computes. ``planes``: those that start control
planes. ``waiting``: it sleeps for much of its time. ``aside``: all others. ``alone``:
it measures time, so it runs after all others.
"""

ROOT: Final = Path(__file__).resolve().parents[1]
_ALIVE_S: Final = 60.0
"""How often a line names the running suites while none ends."""
_RUNNING: Final[list[int]] = []
"""Process ids of the running suites."""
_FAILURES_SHOWN: Final = 40
"""Failures that are repeated before the table, of each suite."""


@dataclass(frozen=True)
class Suite:
    """A command that checks something."""

    name: str
    lane: Lane
    command: tuple[str, ...]
    is_pytest: bool = True


@dataclass
class Result:
    """How a suite ended; ``skipped`` counts tests by the reason."""

    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def _tool(name: str, *command: str) -> Suite:
    return Suite(name, "aside", command, is_pytest=False)


def _pytest(name: str, lane: Lane, *arguments: str) -> Suite:
    return Suite(name, lane, (sys.executable, "-m", "pytest", *arguments))


_WORKERS: Final = str(len(os.sched_getaffinity(0)) + 1)
"""One more than cores, because unit tests and the suites beside them wait for a third
of their time. To collect the unit tests takes a worker 16 seconds of CPU time."""
_PLANES: Final = "3"
"""Workers with a control plane of their own, which takes gigabytes of memory."""
_RUNS_PODS: Final = (
    "tests/e2e/pods/test_caller.py",
    "tests/e2e/pods/test_deploy.py",
    "tests/e2e/pods/test_rolling.py",
    "tests/e2e/pods/test_gradual.py",
    "tests/e2e/pods/test_kubelet.py",
    "tests/e2e/pods/test_install_page.py",
    "tests/e2e/pods/test_upgrade.py",
)
"""They need the permission to add a route, and one process, as all share the routes."""
_CASES: Final = "tests/e2e/test_chainsaw_cases.py"
_DAILY: Final = (
    "tests/e2e/pods/test_day.py",
    "tests/e2e/pods/test_hand_over.py",
    "tests/e2e/pods/test_takeover.py",
)
"""Not in a suite: ``tox -e living`` and ``tox -e takeover`` run them."""

SUITES: Final = (
    _tool("style", "ruff", "check", "."),
    _tool("format", "ruff", "format", "--check", "."),
    _tool("imports", "lint-imports", "--config", "setup.cfg"),
    _tool("docs", "zensical", "build", "--strict", "--clean"),
    _tool("types", "mypy"),
    _pytest("unit", "cores", "-n", _WORKERS, "tests/unit"),
    # Those that wait come first, beside unit; packages after them, because on a new
    # machine it waits until kubectl is compiled.
    _pytest("registry", "aside", "tests/registry"),
    _pytest("faults", "aside", "-n", "2", "-m", "not alone", "tests/faults"),
    _pytest("images", "aside", "-n", "auto", "tests/images"),
    _pytest("packages", "aside", "-n", "2", "--dist", "loadfile", "tests/packages"),
    # Once unit has ended, these keep every core busy on their own.
    _pytest("fuzz", "aside", "-n", "auto", "tests/fuzz"),
    _pytest("conformance", "aside", "-n", "auto", "tests/conformance"),
    _pytest("measured", "alone", "-m", "alone", "tests/faults"),
    _pytest(
        "cluster",
        "planes",
        # Otherwise the modules with few tests, which take minutes, come last.
        *("-n", _PLANES, "--dist", "loadfile", "--no-loadscope-reorder", "tests/e2e"),
        *(f"--ignore={path}" for path in (_CASES, *_RUNS_PODS, *_DAILY)),
    ),
    # Its cases state how long they sleep: more than twenty minutes in all.
    _pytest("chainsaw", "waiting", "-n", _PLANES, _CASES),
    _pytest("pods", "planes", *_RUNS_PODS),
)  # fmt: skip

GROUPS: Final = {
    "lint": ("style", "format"),
    "static": ("style", "format", "imports", "docs", "types"),
    "check": (
        *("style", "format", "imports", "docs", "types", "unit", "registry"),
        *("faults", "images", "packages", "fuzz", "conformance", "measured"),
    ),
    "faults": ("faults", "measured"),
    "cluster": ("cluster", "chainsaw"),
    "e2e": ("cluster", "chainsaw", "pods"),
}
"""Environment of tox -> its suites, if it is not the suite of that name."""


def chosen(names: Sequence[str]) -> list[Suite]:
    """Return the suites of these names and groups, each once.

    Raises: KeyError with an unknown name.
    """
    known = {suite.name: suite for suite in SUITES}
    wanted = [part for name in names for part in GROUPS.get(name, (name,))]
    return [known[name] for name in dict.fromkeys(wanted)]


def run(suites: Sequence[Suite]) -> int:
    """Run them all; return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        if len(suites) == 1:
            result = _finish(suites[0], Path(folder), is_alone=True)
            return int(result.failed > 0)
        results = dict(_run_beside(suites, Path(folder)))
    ordered = {suite.name: results[suite.name] for suite in suites}
    print(*_failures(ordered), *table(ordered), sep="\n", flush=True)
    return int(any(result.failed for result in ordered.values()))


def _end(*_: object) -> NoReturn:
    """End the suites, and then this process, which waits for them."""
    for process_id in _RUNNING:
        os.kill(process_id, signal.SIGTERM)
    sys.exit(128 + signal.SIGTERM)


def _run_beside(suites: Sequence[Suite], folder: Path) -> Iterator[tuple[str, Result]]:
    """Run a suite of each lane at a time; print its output when it ends."""
    alone = [suite for suite in suites if suite.lane == "alone"]
    beside = [suite for suite in suites if suite.lane != "alone"]
    for together in (beside, alone):
        lanes = {suite.lane: ThreadPoolExecutor(1) for suite in together}
        with ExitStack() as stack:
            for lane in lanes.values():
                stack.callback(lane.shutdown, cancel_futures=True)
            yield from _ended(
                {lanes[s.lane].submit(_finish, s, folder): s for s in together}, folder
            )


def _ended(
    left: dict[Future[Result], Suite], folder: Path
) -> Iterator[tuple[str, Result]]:
    while left:
        done, _ = wait(left, _ALIVE_S, FIRST_COMPLETED)
        for future in done:
            suite, result = left.pop(future), future.result()
            said = (folder / f"{suite.name}.txt").read_text(errors="replace")
            print(f"{_title(suite, result)}\n{said}", flush=True)
            yield suite.name, result
        if not done:
            running = [s.name for future, s in left.items() if future.running()]
            print(f"running: {', '.join(running)}", flush=True)


def _title(suite: Suite, result: Result) -> str:
    state = "failed" if result.failed else "passed"
    return f"{'=' * 20} {suite.name}: {state} ({result.seconds:.0f} s) {'=' * 20}"


def _finish(suite: Suite, folder: Path, *, is_alone: bool = False) -> Result:
    """Run the suite to its end; its output goes to a file unless it is alone."""
    counts = folder / f"{suite.name}.json"
    counting = (f"--counts={counts}",) if suite.is_pytest else ()
    # The programs of this environment, whether it is activated or not.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    start = time.monotonic()
    with (folder / f"{suite.name}.txt").open("wb") as output:
        process = subprocess.Popen(
            ("/usr/bin/env", *suite.command, *counting),
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=None if is_alone else output,
            stderr=None if is_alone else subprocess.STDOUT,
        )
        _RUNNING.append(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        _RUNNING.remove(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    result = read_counts(suite, counts, process.returncode)
    result.seconds = time.monotonic() - start
    result.cpu_seconds = usage.ru_utime + usage.ru_stime
    return result


def read_counts(suite: Suite, counts: Path, code: int) -> Result:
    """Return the counts of a suite that ended with this code.

    A run that broke off, or had no tests, has failed even if no test did.
    """
    if not suite.is_pytest:
        result = Result(passed=int(not code))
    elif counts.exists():
        result = Result(**json.loads(counts.read_text()))
    else:
        result = Result()
        code = code or 1
    if code and not result.failed:
        result.failed = 1
        result.failures.append(f"exit code {code}: {' '.join(suite.command)}")
    return result


def _failures(results: dict[str, Result]) -> Iterator[str]:
    for name, result in results.items():
        for failure in result.failures[:_FAILURES_SHOWN]:
            yield f"FAILED {name}: {failure}"
        if more := len(result.failures) - _FAILURES_SHOWN:
            yield from (f"FAILED {name}: {more} more",) if more > 0 else ()


def table(results: dict[str, Result]) -> Iterator[str]:
    """Yield the lines of the table; the last one has the totals."""
    yield ""
    yield f"{'suite':<12}{'passed':>8}{'failed':>8}{'not run':>8}{'s':>7}{'CPU s':>7}"
    for name, result in results.items():
        skipped = sum(result.skipped.values())
        yield (
            f"{name:<12}{result.passed:>8}{result.failed:>8}{skipped:>8}"
            f"{result.seconds:>7.0f}{result.cpu_seconds:>7.0f}"
        )
    reasons = [
        f"{name:<12}{count:>8} not run: {reason}"
        for name, result in results.items()
        for reason, count in sorted(result.skipped.items())
    ]
    yield from ("", *reasons) if reasons else ()
    passed = sum(result.passed for result in results.values())
    failed = sum(result.failed for result in results.values())
    yield f"\n{passed} passed, {failed} failed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that the command line names."""
    names = sorted({suite.name for suite in SUITES} | set(GROUPS))
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites", description="Run suites and print a table."
    )
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME",
                        help=", ".join(names))  # fmt: skip
    return run(chosen(parser.parse_args(arguments).names))


if __name__ == "__main__":
    sys.exit(main())
