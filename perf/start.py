"""Measure the CPU time of short commands, which is mostly Python's start.

    python perf/start.py [--program venv/bin/kyverno-mp] [--rounds N] [--check]

Prints the least CPU time of N runs of each command, because other work on the machine
only adds to it. Install the program first (``pip install .``), as users do: an editable
installation starts more slowly.
"""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_POLICY = ROOT / "config" / "samples" / "policies" / "pod-privileged-containers.yaml"
_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: shop}
spec:
  containers:
  - {name: main, image: "nginx:1.27"}
"""
_TARGETS_MS = {"version": 60, "apply --help": 60, "jp query": 80, "apply": 200}


def commands(folder: Path) -> dict[str, list[str]]:
    """Write the files of the commands, and return their arguments by name."""
    resource, data = folder / "pod.yaml", folder / "in.json"
    resource.write_text(_POD)
    data.write_text('{"a": {"b": 1}}')
    return {
        "version": ["version"],
        "apply --help": ["apply", "--help"],
        "jp query": ["jp", "query", "-i", str(data), "a.b"],
        "apply": ["apply", str(_POLICY), "-r", str(resource)],
    }


def cpu_ms(program: str, arguments: list[str]) -> float:
    """Run a command once, and return its CPU time."""
    null = os.O_WRONLY
    child = os.posix_spawn(
        program,
        [program, *arguments],
        {**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, null, 0)],
    )
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with {status}")
    return (used.ru_utime + used.ru_stime) * 1000


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; return 1 with --check if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(sys.executable).with_name("kyverno-mp")
    parser.add_argument("--program", default=str(beside))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(arguments)
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        found = commands(Path(folder))
        runs: dict[str, list[float]] = {name: [] for name in found}
        # In turns, so that other work on the machine affects all alike.
        for _ in range(args.rounds):
            for name, words in found.items():
                runs[name].append(cpu_ms(args.program, words))
    print(f"Python {platform.python_version()}, least of {args.rounds} runs")
    for name, times in runs.items():
        target = _TARGETS_MS[name]
        missed = missed or min(times) > target
        print(f"{name:12} {min(times):6.1f} ms of CPU (target {target})")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
