"""Measure the CPU time of ``apply`` as a whole process: 1,000 Pods and the samples.

    python perf/cli.py [--pods N] [--policies DIR] [--input json] [--check] [--json F]

The CPU time includes child processes, so that workers do not hide part of the cost. The
target is 1.5 s for 1,000 Pods and 17 policies.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_POLICIES = ROOT / "config" / "samples" / "policies"
_CPU_S_MAX = 1.5


@dataclass(frozen=True)
class Run:
    """One whole process."""

    output: str
    cpu_s: float
    wall_s: float
    summary: str


def pod(number: int) -> dict[str, object]:
    """Return a Pod like those of a Deployment; one in four violates a policy."""
    is_bad = number % 4 == 0
    container = {
        "name": "main",
        "image": f"registry.example.com/team/app:{number}",
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": "LOG_LEVEL", "value": "info"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"memory": "128Mi"},
        },
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": is_bad,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"app-{number}",
            "namespace": f"team-{number % 20}",
            "labels": {"app": f"app-{number % 50}", "tier": "backend"},
        },
        "spec": {
            "serviceAccountName": "default",
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def write_pods(folder: Path, count: int, kind: str) -> Path:
    """Write the Pods as YAML documents, or as one JSON List."""
    # A hand-written serializer would be faster, but this time is not measured.
    import yaml

    pods = [pod(number) for number in range(count)]
    if kind == "json":
        file = folder / "pods.json"
        whole = {"apiVersion": "v1", "kind": "List", "items": pods}
        file.write_text(json.dumps(whole))
    else:
        file = folder / "pods.yaml"
        file.write_text(yaml.dump_all(pods, Dumper=yaml.CSafeDumper, sort_keys=False))
    return file


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with compiled byte code, as in an installed package."""
    found = dict(os.environ)
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    found["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    return found


def measure(name: str, arguments: list[str], env: dict[str, str]) -> Run:
    """Run the command once; the CPU time includes its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", "apply", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"apply ended with {done.returncode}: {done.stderr}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    lines = done.stdout.strip().splitlines()
    return Run(name, cpu, wall, lines[-1] if lines else "")


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; return 1 with --check if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--policies", type=Path, default=_POLICIES)
    parser.add_argument("--input", choices=["yaml", "json"], default="yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = write_pods(Path(folder), args.pods, args.input)
        base = [str(args.policies), "-r", str(file)]
        outputs = {
            "text": [],
            "table": ["--table"],
            "report": ["--policy-report", "--output-format", "json"],
            "sarif": ["--output-format", "sarif"],
        }
        env = environment(Path(folder))
        measure("warm-up", base, env)
        best = [
            min(
                (measure(name, [*base, *flags], env) for _ in range(args.rounds)),
                key=lambda run: run.cpu_s,
            )
            for name, flags in outputs.items()
        ]
    print(f"{args.pods} Pods ({args.input}), {args.policies}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores")
    for run in best:
        print(f"{run.output:8} CPU {run.cpu_s:.2f} s, wall {run.wall_s:.2f} s")
    print(best[0].summary)
    if args.json:
        args.json.write_text(json.dumps([asdict(run) for run in best], indent=2) + "\n")
    missed = best[0].cpu_s > _CPU_S_MAX
    verdict = "missed" if missed else "met"
    print(f"target: text in {_CPU_S_MAX} s of CPU or less: {verdict}")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
