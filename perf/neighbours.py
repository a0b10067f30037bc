"""Measure the effect of an expensive policy and object on other reviews.

One worker. For each attack of tests/faults/attacks.py: the longest time of a cheap
review on another connection, the time of the attack's own reviews, and the growth of
the worker's memory. ``--check`` fails if a neighbour waited longer than the target, or
the worker needed more memory. A longer attack must not need more of it.

The attack ``registries`` measures another thing: the rate of a neighbour's image
reviews while four namespaces have registries that answer no call, against its quiet
rate in the same run.

The attack ``disk`` stores policies of 1 MB in four namespaces. It prints the longest
time of a neighbour's review, whether an administrator's new and changed policies come
into force, and the memory of the leader.

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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults import disk_neighbour
from tests.faults.attacks import ATTACKS
from tests.faults.neighbour import Seen, run, start
from tests.faults.registry_neighbour import Rates, measured

NEIGHBOUR_MS_MAX = 250
WORKER_MIB_MAX = 300
REGISTRIES = "registries"
REGISTRY_ATTACKERS = 4
DISK = "disk"
DISK_ATTACKERS, DISK_POLICIES = 4, 30
LEADER_MIB_MAX = 600
RATE_KEPT_MIN = 0.8
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


def _measure_registries(connections: int, seconds: float) -> Rates:
    with tempfile.TemporaryDirectory() as folder:
        return measured(Path(folder), REGISTRY_ATTACKERS, connections, seconds)


def _measure_disk() -> disk_neighbour.Seen:
    with tempfile.TemporaryDirectory() as folder:
        seen = disk_neighbour.measured(Path(folder), DISK_ATTACKERS, DISK_POLICIES)
    print(
        f"{DISK}: neighbour {seen.neighbour_s_max * 1000:.0f} ms (quiet"
        f" {seen.quiet_s_max * 1000:.0f} ms), administrator's policies in force:"
        f" {'yes' if seen.is_in_force else 'NO'}, attackers' ready:"
        f" {seen.tenants_ready}, leader {seen.leader_pss_mib:.0f} MiB PSS,"
        f" {seen.leader_restarts} restarts",
        flush=True,
    )
    return seen


def _misses_disk(seen: disk_neighbour.Seen) -> bool:
    is_late = seen.neighbour_s_max * 1000 > NEIGHBOUR_MS_MAX
    is_large = seen.leader_pss_mib > LEADER_MIB_MAX or seen.leader_restarts > 0
    return is_late or is_large or not seen.is_in_force or seen.neighbour_wrong > 0


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
    names = arguments.names or [*ATTACKS, REGISTRIES, DISK]
    for name in names:
        if name in (REGISTRIES, DISK):
            continue
        found[name] = _measure(name, arguments.connections, arguments.seconds)
        _print(name, found[name])
    rows: dict[str, Any] = {name: asdict(seen) for name, seen in found.items()}
    is_missed = any(map(_misses, found.values()))
    if REGISTRIES in names:
        rates = _measure_registries(arguments.connections, arguments.seconds)
        rows[REGISTRIES] = rates._asdict()
        kept = rates.attacked / rates.quiet
        is_missed = is_missed or kept < RATE_KEPT_MIN
        print(
            f"{REGISTRIES}: {rates.attacked:.1f} of {rates.quiet:.1f} image reviews/s"
            f" ({kept:.0%})"
        )
    if DISK in names:
        seen = _measure_disk()
        rows[DISK] = seen._asdict()
        is_missed = is_missed or _misses_disk(seen)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if arguments.check and is_missed else 0


def _misses(seen: Seen) -> bool:
    is_late = seen.neighbour_s_max * 1000 > NEIGHBOUR_MS_MAX
    return is_late or seen.worker_mib > WORKER_MIB_MAX or not seen.same_worker


if __name__ == "__main__":
    sys.exit(main())
