"""Measure the cost of mutation and CEL beside a bare Gunicorn + Falcon app.

The Pod of perf/admission.py is posted to ``/mutate`` with 1 and with 10 policies of
each kind of patch - strategic merge, JSON patch, and both in a foreach - which are made
here, to ``/validate`` with the Pod Security samples as patterns and in CEL, and to
``/vpol`` with the latter as ValidatingPolicies. The method is that of
perf/admission.py; thresholds apply to the CPU time per review, which hardly changes
when other programs use part of the core.

    python perf/language.py [--short] [--check] [--json FILE]
"""

import argparse
import base64
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from perf.admission import print_table, summarise
from perf.reviews import REVIEWS
from perf.servers import (
    MUTATE,
    ROOT,
    VALIDATE,
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

_IN_CEL = ROOT / "config" / "samples" / "cel"
_PATCHES: tuple[tuple[str, Any], ...] = (
    ("added-by-policy", {"metadata": {"labels": {"+(team)": "added-by-policy"}}}),
    (
        "ephemeral-storage",
        {
            "spec": {
                "containers": [
                    {
                        "(name)": "*",
                        "resources": {"limits": {"+(ephemeral-storage)": "1Gi"}},
                    }
                ]
            }
        },
    ),
    (
        "example.com~1owner",
        {"metadata": {"annotations": {"example.com/owner": "shop"}}},
    ),
    (
        "Always",
        {
            "spec": {
                "containers": [
                    {"(image)": "registry.example.com/*", "imagePullPolicy": "Always"}
                ]
            }
        },
    ),
    (
        "runAsGroup",
        {"spec": {"securityContext": {"+(runAsNonRoot)": True, "+(runAsGroup)": 1000}}},
    ),
    ("disktype", {"spec": {"nodeSelector": {"disktype": "ssd"}}}),
    (
        "HTTP_PROXY",
        {
            "spec": {
                "containers": [
                    {
                        "(name)": "app-*",
                        "env": [{"name": "HTTP_PROXY", "value": "http://proxy:3128"}],
                    }
                ]
            }
        },
    ),
    (
        "automountServiceAccountToken",
        {"spec": {"+(automountServiceAccountToken)": False}},
    ),
    (
        "scratch",
        {"spec": {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]}},
    ),
    (
        "example.com~1user",
        {
            "metadata": {
                "annotations": {"example.com/user": "{{ request.userInfo.username }}"}
            }
        },
    ),
)
"""The merge of each policy, and a text that the answer's patch must contain."""


@dataclass(frozen=True)
class Case:
    """One scenario: a folder of policies, a path, the expected text of the answer."""

    name: str
    path: str
    policies: Callable[[Path], Path]
    patched: tuple[str, ...] = ()


def merging(number: int) -> dict[str, Any]:
    """Return the strategic merge of this number."""
    return {"patchStrategicMerge": _PATCHES[number][1]}


def patching(number: int) -> dict[str, Any]:
    """Return a JSON patch of two operations."""
    operations = [
        {"op": "add", "path": f"/metadata/labels/made-{number}", "value": "x"},
        {
            "op": "add",
            "path": "/spec/containers/0/env/-",
            "value": {"name": f"MADE_{number}", "value": "x"},
        },
    ]
    return {"patchesJson6902": json.dumps(operations)}


def merging_each(number: int) -> dict[str, Any]:
    """Return a strategic merge for each container."""
    made = {"name": f"MADE_{number}", "value": "x"}
    container = {"name": "{{ element.name }}", "env": [made]}
    return _each({"patchStrategicMerge": {"spec": {"containers": [container]}}})


def patching_each(number: int) -> dict[str, Any]:
    """Return a JSON patch, written as YAML, for each container."""
    return _each(
        {
            "patchesJson6902": "- op: add\n"
            "  path: /spec/containers/{{ elementIndex }}/env/-\n"
            f"  value: {{name: MADE_{number}, value: x}}\n"
        }
    )


def _each(patch: dict[str, Any]) -> dict[str, Any]:
    return {"foreach": [{"list": "request.object.spec.containers", **patch}]}


def policy(number: int, mutate: dict[str, Any]) -> dict[str, Any]:
    """Return the mutating policy of this number."""
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": f"mutate-{number}"},
        "spec": {
            # A policy reads the user, which a background scan does not have.
            "background": False,
            "rules": [
                {
                    "name": "patch",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "mutate": mutate,
                }
            ],
        },
    }


Rule = Callable[[int], dict[str, Any]]


def mutating(kind: str, rule: Rule, numbers: range) -> Case:
    """Return the scenario of mutating policies of one kind, with these numbers."""

    def write(folder: Path) -> Path:
        target = folder / "policies"
        target.mkdir()
        for number in numbers:
            # JSON is YAML.
            text = json.dumps(policy(number, rule(number)))
            (target / f"{number}.yaml").write_text(text)
        return target

    if rule is merging:
        shown = tuple(_PATCHES[number][0] for number in numbers)
    else:
        shown = tuple(f"MADE_{number}" for number in numbers)
    return Case(f"{kind}-{len(numbers)}", MUTATE, write, shown)


def validating() -> Case:
    """Return the scenario of the samples in CEL as ValidatingPolicies."""
    policies = validating_policies()

    def write(folder: Path) -> Path:
        found = folder / "policies"
        found.mkdir()
        (found / "policies.yaml").write_text(yaml.safe_dump_all(policies))
        return found

    names = "/".join(one["metadata"]["name"] for one in policies)
    return Case("vpol", f"/vpol/{names}?timeout=10s", write)


def validating_policies() -> list[dict[str, Any]]:
    """Return the Pod Security samples in CEL as ValidatingPolicies."""
    raws = [yaml.safe_load(path.read_text()) for path in sorted(_IN_CEL.glob("*.yaml"))]
    return [as_validating_policy(raw) for raw in raws]


def as_validating_policy(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a ClusterPolicy in CEL about Pods as a ValidatingPolicy."""
    (rule,) = raw["spec"]["rules"]
    cel = rule["validate"]["cel"]
    resources = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": raw["metadata"],
        "spec": {
            "validationActions": ["Deny"],
            "matchConstraints": {"resourceRules": [resources]},
            "variables": cel.get("variables", []),
            "validations": cel["expressions"],
        },
    }


_KINDS: tuple[tuple[str, Rule], ...] = (
    ("merge", merging),
    ("json-patch", patching),
    ("foreach-merge", merging_each),
    ("foreach-patch", patching_each),
)


def cases() -> list[Case]:
    """Return all scenarios; the single merge is the costly one on all containers."""
    found = [
        Case("patterns", VALIDATE, lambda _folder: default_policies()),
        Case("cel", VALIDATE, lambda _folder: _IN_CEL),
        validating(),
    ]
    for kind, rule in _KINDS:
        found.append(mutating(kind, rule, range(1, 2)))
        found.append(mutating(kind, rule, range(len(_PATCHES))))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a threshold is missed, 2 = cannot measure."""
    args = parse(arguments)
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    try:
        rounds = [r for case in chosen(args) for r in measure(args, case)]
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    rows = summarise(rounds)
    print_table(rows)
    growth = {
        kind: cost(rows, f"{kind}-10") / cost(rows, f"{kind}-1")
        for kind, _ in _KINDS
        if not args.scenarios
    }
    for kind, times in growth.items():
        print(f"{kind}: 10 policies cost {times:.1f} times as much CPU as 1")
    method = {
        "connections": args.connections,
        "seconds": args.seconds,
        "rounds": args.rounds,
        "words": "TLS, HTTP/1.1 keep-alive, one worker on one core, wrk on another,"
        " rounds in turns, medians; thresholds by CPU time a review",
    }
    content = {
        "method": method,
        "mutate_growth": growth,
        "rounds": [asdict(r) for r in rounds],
        "rows": rows,
    }
    write_result("language", content, args.json)
    return check(args, rows, growth) if args.check and not args.scenarios else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scenarios", nargs="+", help="these only, and no --check")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--check", action="store_true", help="fail below thresholds")
    parser.add_argument("--growth-max", type=float, default=6.0)
    parser.add_argument("--mutate-ratio-min", type=float, default=0.3)
    parser.add_argument("--cel-ratio-min", type=float, default=0.5)
    parser.add_argument(
        "--vpol-slower-max", type=float, default=0.15, help="than the same as patterns"
    )
    parser.add_argument("--short", action="store_true", help="2 rounds of 2 seconds")
    args = parser.parse_args(arguments)
    if args.short:
        args.rounds, args.seconds = 2, 2
    return args


def measure(args: argparse.Namespace, case: Case) -> Iterator[Round]:
    """Load both servers in turns, after a second of warm-up each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "review.json"
        body.write_text(json.dumps(REVIEWS["allowed"][0], separators=(",", ":")))
        policies = case.policies(folder)
        with kyverno_mp(policies, folder, core=args.server_core) as ours:
            answer = ask(ours.port, body, case.path)
            refuse_odd(case, answer["response"])
            (folder / "answer.json").write_text(json.dumps(answer))
            with bare(folder, core=args.server_core) as yardstick:
                ask(yardstick.port, body, case.path)
                servers = [yardstick, ours]
                for server in servers:
                    run(args, server, case, body, seconds=1)
                for _ in range(args.rounds):
                    for server in servers:
                        yield run(args, server, case, body, seconds=args.seconds)


def chosen(args: argparse.Namespace) -> list[Case]:
    """Return the scenarios with the given names; without names, all of them."""
    return [case for case in cases() if case.name in (args.scenarios or [case.name])]


def refuse_odd(case: Case, response: dict[str, Any]) -> None:
    """Raise Unready unless the Pod is allowed, and patched by every policy."""
    patch = base64.b64decode(response.get("patch", "")).decode()
    absent = [text for text in case.patched if text not in patch]
    if not response["allowed"] or absent:
        raise Unready(f"{case.name}: {absent} not in {patch!r} of {response}")


def run(
    args: argparse.Namespace,
    server: Server,
    case: Case,
    body: Path,
    *,
    seconds: float,
) -> Round:
    """Load one server once."""
    return load(
        server,
        case.name,
        body,
        core=args.load_core,
        connections=args.connections,
        seconds=seconds,
        path=case.path,
    )


def row_of(rows: list[dict[str, Any]], scenario: str) -> dict[str, Any]:
    """Return the row of kyverno-mp for a scenario."""
    wanted = (scenario, "kyverno-mp")
    return next(row for row in rows if (row["scenario"], row["server"]) == wanted)


def cost(rows: list[dict[str, Any]], scenario: str) -> float:
    """Return the CPU time of kyverno-mp per review, in microseconds."""
    found: float = row_of(rows, scenario)["cpu_us"]
    return found


def check(
    args: argparse.Namespace, rows: list[dict[str, Any]], growth: dict[str, float]
) -> int:
    """Return 1 when a threshold is missed."""
    missed = [
        f"{kind}: 10 policies cost {times:.1f} > {args.growth_max:g} of 1"
        for kind, times in growth.items()
        if times > args.growth_max
    ]
    for scenario, least in (
        ("merge-10", args.mutate_ratio_min),
        ("cel", args.cel_ratio_min),
    ):
        ratio = row_of(rows, scenario)["cpu_ratio"]
        if ratio < least:
            missed.append(f"{scenario}: ratio by CPU {ratio:.2f} < {least:g}")
    slower = cost(rows, "vpol") / cost(rows, "patterns") - 1
    if slower > args.vpol_slower_max:
        most = f"{args.vpol_slower_max:.0%}"
        missed.append(f"vpol: {slower:+.0%} CPU of patterns, at most {most}")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
