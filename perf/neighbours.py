"""Measure the effect of an expensive policy and object on other reviews.

One worker. For each attack of tests/faults/attacks.py: the longest time of a cheap
review on another connection, the time of the attack's own reviews, and the growth of
the worker's memory. ``--check`` fails if a neighbour waited longer than the target, or
the worker needed more memory. A longer attack must not need more of it.

    python perf/neighbours.py [--connections 8] [--seconds 4] [--json FILE] [NAME ...]
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.attacks import ATTACKS
from tests.faults.neighbour import Seen, run, start

NEIGHBOUR_MS_MAX = 250
WORKER_MIB_MAX = 300
_ROW = "{:46} {:>12} {:>10} {:>12} {:>10} {:>10}"


def _measure(name: str, connections: int, seconds: float) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        service = start(Path(folder), ATTACKS[name])
        with contextlib.closing(service):
            return run(service, ATTACKS[name], connections, seconds)


def _print(name: str, seen: Seen) -> None:
    print(
        _ROW.format(
            name,
            f"{seen.neighbour_s_max * 1000:.0f}",
            f"{seen.health_s_max * 1000:.0f}",
            f"{statistics.median(seen.attack_s):.2f}",
            f"{max(seen.attack_s):.2f}",
            f"{seen.worker_mib:.0f}" if seen.same_worker else "KILLED",
        ),
        flush=True,
    )


def main() -> int:
    """Run the attacks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks; all")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--check", action="store_true", help="fail above the target")
    arguments = parser.parse_args()
    print(
        _ROW.format(
            "attack", "neighbour ms", "probe ms", "median s", "max s", "MiB more"
        )
    )
    found: dict[str, Seen] = {}
    for name in arguments.names or ATTACKS:
        found[name] = _measure(name, arguments.connections, arguments.seconds)
        _print(name, found[name])
    if arguments.json:
        rows = {name: asdict(seen) for name, seen in found.items()}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if arguments.check and any(map(_misses, found.values())) else 0


def _misses(seen: Seen) -> bool:
    is_late = seen.neighbour_s_max * 1000 > NEIGHBOUR_MS_MAX
    return is_late or seen.worker_mib > WORKER_MIB_MAX or not seen.same_worker


if __name__ == "__main__":
    sys.exit(main())
