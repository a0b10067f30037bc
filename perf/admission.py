"""Measure kyverno-mp's reviews per second beside a bare Gunicorn + Falcon app.

Both serve TLS with one worker on one core; wrk loads them from another core over
keep-alive connections, in turns, so that a noisy machine is unfair to both alike. The
ratio is comparable between machines, the absolute figures are not. CPU time per review
is also printed, because it hardly changes when other programs use part of the core.

    python perf/admission.py [--policies DIR] [--short] [--check] [--json FILE]

Before and after a change, on one machine, with nothing else running:

    git switch main && python perf/admission.py --json before.json
    git switch - && python perf/admission.py --against before.json --check
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.reviews import REVIEWS
from perf.servers import (
    Round,
    Server,
    Unready,
    ask,
    bare,
    default_policies,
    kyverno_mp,
    load,
    missing_tools,
    write_result,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a threshold is missed, 2 = cannot measure."""
    args = parse(arguments)
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    try:
        rounds = [r for name in args.scenarios for r in measure(args, name)]
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    rows = summarise(rounds)
    print_table(rows)
    slower = compare(args, rows) if args.against else []
    write_result("admission", record(args, rounds, rows), args.json)
    return check(args, rows, slower) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=Path, default=default_policies())
    parser.add_argument("--scenarios", nargs="+", default=list(REVIEWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--check", action="store_true", help="fail below thresholds")
    parser.add_argument("--ratio-min", type=float, default=0.6)
    parser.add_argument("--p99-ms-max", type=float, default=10.0)
    parser.add_argument("--against", type=Path, help="a result of --json before")
    parser.add_argument(
        "--slower-max", type=float, default=0.05, help="part of the CPU a review"
    )
    parser.add_argument("--short", action="store_true", help="2 rounds of 2 seconds")
    args = parser.parse_args(arguments)
    if args.short:
        args.rounds, args.seconds = 2, 2
    if not args.policies.is_dir():
        parser.error("--policies: give the folder with the policies")
    if args.against and not args.against.is_file():
        parser.error(f"--against: there is no file {args.against}")
    return args


def measure(args: argparse.Namespace, scenario: str) -> Iterator[Round]:
    """Load both servers in turns, after a second of warm-up each."""
    review, allowed = REVIEWS[scenario]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "review.json"
        body.write_bytes(json.dumps(review, separators=(",", ":")).encode())
        with kyverno_mp(args.policies, folder, core=args.server_core) as ours:
            answer = ask(ours.port, body)
            if answer["response"]["allowed"] is not allowed:
                raise Unready(f"{scenario}: unexpected answer {answer['response']}")
            (folder / "answer.json").write_text(json.dumps(answer))
            with bare(folder, core=args.server_core) as yardstick:
                ask(yardstick.port, body)
                servers = [yardstick, ours]
                for server in servers:
                    run(args, server, scenario, body, seconds=1)
                for _ in range(args.rounds):
                    for server in servers:
                        yield run(args, server, scenario, body, seconds=args.seconds)


def run(
    args: argparse.Namespace,
    server: Server,
    scenario: str,
    body: Path,
    *,
    seconds: float,
) -> Round:
    """Load one server once."""
    return load(
        server,
        scenario,
        body,
        core=args.load_core,
        connections=args.connections,
        seconds=seconds,
    )


def summarise(rounds: list[Round]) -> list[dict[str, Any]]:
    """Return one row per scenario and server: the medians of its rounds."""
    rows = []
    for scenario in dict.fromkeys(r.scenario for r in rounds):
        base: dict[str, Any] = {}
        for server in ("bare", "kyverno-mp"):
            chosen = [r for r in rounds if (r.scenario, r.server) == (scenario, server)]
            row: dict[str, Any] = {"scenario": scenario, "server": server}
            for key in ("reviews_per_s", "p50_ms", "p99_ms", "cpu_us"):
                row[key] = statistics.median(getattr(r, key) for r in chosen)
            base = base or row
            row["ratio"] = row["reviews_per_s"] / base["reviews_per_s"]
            row["cpu_ratio"] = base["cpu_us"] / row["cpu_us"]
            rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the rows."""
    print(
        f"{'scenario':<17}{'server':<12}{'reviews/s':>10}{'p50 ms':>9}{'p99 ms':>9}"
        f"{'CPU us':>9}{'ratio':>8}{'by CPU':>8}"
    )
    for row in rows:
        print(
            f"{row['scenario']:<17}{row['server']:<12}{row['reviews_per_s']:>10.0f}"
            f"{row['p50_ms']:>9.2f}{row['p99_ms']:>9.2f}{row['cpu_us']:>9.1f}"
            f"{row['ratio']:>8.2f}{row['cpu_ratio']:>8.2f}"
        )


def record(
    args: argparse.Namespace, rounds: list[Round], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return all figures with a description of the measurement."""
    return {
        "method": {
            "policies": len(list(args.policies.rglob("*.yaml"))),
            "connections": args.connections,
            "seconds": args.seconds,
            "rounds": args.rounds,
            "words": "TLS, HTTP/1.1 keep-alive, one worker on one core, wrk on another,"
            " rounds in turns, medians",
        },
        "rounds": [asdict(r) for r in rounds],
        "rows": rows,
    }


def compare(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[str]:
    """Print the CPU time per review beside an earlier result; return the slower rows.

    Each value is relative to the bare app's CPU time in the same run.
    """
    before = {
        row["scenario"]: row["cpu_ratio"]
        for row in json.loads(args.against.read_bytes())["rows"]
        if row["server"] == "kyverno-mp"
    }
    slower = []
    for row in rows:
        name = row["scenario"]
        if row["server"] != "kyverno-mp" or name not in before:
            continue
        change = before[name] / row["cpu_ratio"] - 1
        print(f"{name:<17}CPU a review {change:+.1%} of that before")
        if change > args.slower_max:
            slower.append(f"{name}: {change:+.1%} CPU > {args.slower_max:.0%}")
    return slower


def check(
    args: argparse.Namespace, rows: list[dict[str, Any]], slower: list[str]
) -> int:
    """Return 1 if a threshold is missed; each scenario has to meet both."""
    missed = list(slower)
    for ours in (row for row in rows if row["server"] == "kyverno-mp"):
        name = ours["scenario"]
        if ours["ratio"] < args.ratio_min:
            missed.append(f"{name}: ratio {ours['ratio']:.2f} < {args.ratio_min:g}")
        if ours["p99_ms"] > args.p99_ms_max:
            missed.append(f"{name}: p99 {ours['p99_ms']:.1f} > {args.p99_ms_max:g} ms")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
