"""Time the pattern rules of the Pod Security policies on a conforming Pod.

Room: perf. Takes: the policies of config/samples/policies, else of
../shared/perf-policies. Gives: microseconds per rule and in total, printed.
May touch: reads those files; run as ``python perf/micro/patterns.py`` from the root.
"""

import sys
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kyverno_mp.expr.pattern.link import link_pattern  # noqa: E402 - needs the path above
from kyverno_mp.expr.pattern.parse import parse_pattern  # noqa: E402 - as above
from kyverno_mp.values.jsonvalue import Json  # noqa: E402 - as above

FOLDERS = (ROOT / "config/samples/policies", ROOT.parent / "shared/perf-policies")
RUNS, ROUNDS = 20_000, 5

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "labels": {"app": "web", "team": "shop"},
        "annotations": {"example.com/owner": "shop"},
    },
    "spec": {
        "serviceAccountName": "web",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [
            {
                "name": "init",
                "image": "registry.example.com/init:1",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "containers": [
            {
                "name": "web",
                "image": "registry.example.com/web:1",
                "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                "resources": {"limits": {"memory": "128Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "privileged": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "config", "mountPath": "/config"}],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "web"}}],
    },
}


def rules() -> Iterator[tuple[str, Callable[[Json], bool]]]:
    """Yield name and test of each rule with a pattern or anyPattern."""
    folder = next(path for path in FOLDERS if path.is_dir() and any(path.iterdir()))
    for path in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for rule in ((document or {}).get("spec") or {}).get("rules") or ():
                validate = rule.get("validate") or {}
                if "pattern" in validate:
                    program = link_pattern(parse_pattern(validate["pattern"]))
                    yield rule["name"], program.passes
                if "anyPattern" in validate:
                    yield rule["name"], _any_of(validate["anyPattern"])


def _any_of(patterns: list[Json]) -> Callable[[Json], bool]:
    programs = [link_pattern(parse_pattern(p, any_pattern=True)) for p in patterns]
    tests = [program.passes for program in programs]

    def passes(resource: Json) -> bool:
        for test in tests:  # noqa: SIM110 - as program/bodies/pattern does it
            if test(resource):
                return True
        return False

    return passes


def main() -> None:
    """Print the table."""
    total = 0.0
    for name, passes in rules():
        timer = timeit.Timer("passes(pod)", globals={"passes": passes, "pod": POD})
        best = min(timer.repeat(ROUNDS, RUNS)) / RUNS * 1e6
        total += best
        print(f"{best:8.3f} us  {name}  {'pass' if passes(POD) else 'FAIL'}")
    print(f"{total:8.3f} us  total")


if __name__ == "__main__":
    main()
