"""A command imports only needed modules, because startup dominates a short run.

The tests count modules, because times depend on the machine. A failure means: every
call of the command line became slower. README, "Performance", has the times.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kyverno_mp.process.startup.preload import LATE
from tests.unit.cli.conftest import LATEST_POLICY, pod

CODE = """
import contextlib, io, json, sys
from kyverno_mp.cli.main import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
# A package that only names a folder costs next to nothing.
empty = lambda one: hasattr(one, "__path__") and not one.__doc__
print(json.dumps([code, {key: empty(one) for key, one in sys.modules.items()}]))
"""
# Each of these libraries takes 5 ms or more.
HEAVY = {
    "cryptography",
    "falcon",
    "gunicorn",
    "kubernetes",
    "msgspec",
    "re2",
    "rich",
    "socket",
    "subprocess",
    "tempfile",
    "traceback",
    "urllib.request",
    "yaml",
}
ENGINE = ("values", "expr", "compiler", "program", "admission", "egress")
HELP = """
apply; merge; test; lint; explain; bench; jp; jp query; json; json scan; fix;
fix policy;
generate; cleanup; create; create test; oci; oci push; migrate; authors; rollout;
snapshot; snapshot inspect; crds; docs; completion; help; version
"""


def modules(*arguments: object) -> tuple[set[str], int]:
    """Return the modules of a run, and the number of our own modules."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    code, found = json.loads(done.stdout)
    assert code == 0
    ours = [name for name in found if name.startswith("kyverno_mp.")]
    return set(found), sum(not found[name] for name in ours)


@pytest.mark.parametrize("path", [one.strip() for one in HELP.split(";")])
def test_help_page_imports_only_the_declaration(path: str) -> None:
    loaded, ours = modules(*path.split(), "--help")
    assert not loaded & HEAVY
    assert ours <= 14


@pytest.mark.parametrize("arguments", [[], ["version"], ["help", "apply"]])
def test_small_commands(arguments: list[str]) -> None:
    loaded, ours = modules(*arguments)
    assert not loaded & HEAVY
    assert "dataclasses" not in loaded
    assert ours <= 14


def test_help_of_serve_imports_only_the_settings() -> None:
    loaded, ours = modules("serve", "--help")
    assert not loaded & HEAVY
    assert ours <= 24


def test_jp(tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text('{"a": {"b": 1}}')
    loaded, ours = modules("jp", "query", "-i", file, "a.b")
    assert loaded & HEAVY <= {"msgspec", "re2"}
    assert not loaded & {"dataclasses", "hashlib"}
    late = ("expr.jmespath.functions", "expr.jmespath.external_url", "cli.jp.tree")
    assert not loaded & {f"kyverno_mp.{name}" for name in late}
    # One of them reads the environment, which says whether commands are traced.
    assert ours <= 33


def test_apply(tmp_path: Path) -> None:
    policy, resource = tmp_path / "p.yaml", tmp_path / "r.yaml"
    policy.write_text(LATEST_POLICY)
    resource.write_text(pod("good"))
    loaded, ours = modules("apply", policy, "-r", resource)
    assert loaded & HEAVY <= {"msgspec", "re2", "yaml"}
    loaded -= {"kyverno_mp.settings", "kyverno_mp.settings.environ"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("kyverno_mp.")}
    service = {"process", "webhook", "leader", "controllers", "kube", "registry"}
    assert not rooms & (service | {"snapshot", "settings", "telemetry", "queues"})
    # Languages and kinds of rules that the policy does not use.
    unused = ("expr.cel.program", "expr.assertion.parse", "program.pod_security")
    others = ("program.mutate", "program.generate", "program.admission_policy")
    # Readers of other file types, and schemas of other kinds.
    files = ("cli.sources.strict", "cli.sources.payloads", "cli.sources.shapes")
    kinds = ("policy.crd.cel_kinds", "policy.crd.cel_policies")
    late = (*unused, *others, *files, *kinds)
    assert not loaded & {f"kyverno_mp.{name}" for name in late}
    # Two of them read annotations: gradual enforcement, the end of exceptions.
    assert ours <= 229


_OBJECTS = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: p}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations: [{expression: "true"}]
"""


def test_policies_of_objects_do_not_load_those_of_requests(tmp_path: Path) -> None:
    """Neither the command line nor the service pays for the modes HTTP and Envoy."""
    policy, resource = tmp_path / "p.yaml", tmp_path / "r.yaml"
    policy.write_text(_OBJECTS)
    resource.write_text(pod("good"))
    loaded, _ = modules("apply", policy, "-r", resource)
    assert "kyverno_mp.expr.cel.check" in loaded
    for names in (loaded, preloaded()):
        assert not any(
            name.startswith(("kyverno_mp.expr.cel.authz", "kyverno_mp.expr.jose"))
            for name in names
        )


def preloaded() -> set[str]:
    """Return the modules that the service has imported before it forks its workers."""
    code = (
        "import sys; from kyverno_mp.process.startup.preload import preload;"
        "from kyverno_mp.settings.settings import Settings; preload(Settings());"
        "import kyverno_mp.process.serve; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_service_imports_the_rest_before_it_forks() -> None:
    """A worker must not import a library during a review."""
    assert set(LATE) <= preloaded()


def test_every_late_import_of_the_engine_is_preloaded() -> None:
    """The test covers the rooms that a worker runs; the command line is separate."""
    root = Path(__file__).resolve().parents[4] / "kyverno_mp"
    found = set()
    for room in ENGINE:
        for module in (root / room).rglob("*.py"):
            for line in module.read_text().splitlines():
                words = line.split()
                is_late = line.startswith("    ") and words[:1] in (
                    ["import"],
                    ["from"],
                )
                if is_late and (words[0] == "import" or "import" in words[2:3]):
                    found.add(words[1])
    assert found
    assert found <= preloaded()
