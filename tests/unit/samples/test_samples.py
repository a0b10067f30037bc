"""The sample policies work as described, both as patterns and in CEL.

A failure means: a user who copies a sample gets a policy that does not load, admits a
bad Pod or denies a good one, or the two languages disagree on a Pod.
"""

import gc
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.lint.command import lint
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_policy
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request

SAMPLES = Path(__file__).resolve().parents[3] / "config" / "samples"
SETS = ("policies", "cel")
FILES = [path for name in SETS for path in sorted((SAMPLES / name).glob("*.yaml"))]
GOOD, BAD = (raw.raw for raw in load((SAMPLES / "resources/pods.yaml").read_bytes()))
REFUSING_BAD = {
    "pod-capabilities-restricted",
    "pod-privilege-escalation",
    "pod-privileged-containers",
}
CLOCK = Clock(lambda: datetime(2026, 1, 1, tzinfo=UTC), lambda: 0)

# How the Pod differs from a valid one -> the policies that deny it, by the names of
# the pattern samples without "pod-". ``a``: the container's security context (null
# drops a field), ``ports``: its ports, ``pod``: the Pod's security context, other keys:
# fields of the spec.
TABLE = """
- [{}, []]
- [{hostNetwork: false, hostPID: false, hostIPC: false}, []]
- [{hostNetwork: true}, [host-namespaces]]
- [{hostPID: true}, [host-namespaces]]
- [{hostIPC: true, hostPID: false}, [host-namespaces]]
- [{volumes: []}, []]
- [{volumes: [{name: v, emptyDir: {}}, {name: s, secret: {secretName: s}}]}, []]
- [{volumes: [{name: v, hostPath: {path: /}}]}, [host-path, volume-types]]
- [{volumes: [{name: v, nfs: {server: s, path: /}}]}, [volume-types]]
- [{volumes: [{name: v, csi: {driver: d}}, {name: g, gitRepo: {}}]}, [volume-types]]
- [{ports: [{containerPort: 80}]}, []]
- [{ports: [{containerPort: 80, hostPort: 0}]}, []]
- [{ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81}]}, [host-ports]]
- [{a: {privileged: false}}, []]
- [{a: {privileged: true}}, [privileged-containers]]
- [{a: {allowPrivilegeEscalation: true}}, [privilege-escalation]]
- [{a: {allowPrivilegeEscalation: null}}, [privilege-escalation]]
- [{a: {procMount: Default}}, []]
- [{a: {procMount: Unmasked}}, [proc-mount]]
- [{a: {windowsOptions: {hostProcess: false}}}, []]
- [{a: {windowsOptions: {hostProcess: true}}}, [host-process]]
- [{a: {windowsOptions: {runAsUserName: me}}}, []]
- [{a: {runAsUser: 1}}, []]
- [{a: {runAsUser: 0}}, [run-as-user]]
- [{pod: {runAsUser: 0}}, [run-as-user]]
- [{a: {runAsNonRoot: null}}, [run-as-non-root]]
- [{a: {runAsNonRoot: null}, pod: {runAsNonRoot: true}}, []]
- [{a: {runAsNonRoot: false}, pod: {runAsNonRoot: true}}, [run-as-non-root]]
- [{pod: {runAsNonRoot: false}}, []]
- [{a: {capabilities: {drop: [all]}}}, [capabilities-restricted]]
- [{a: {capabilities: {drop: [KILL, ALL]}}}, []]
- [{a: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}}, []]
- [{a: {capabilities: {drop: [ALL], add: [CHOWN]}}}, [capabilities-restricted]]
- [{a: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE, SYS_TIME]}}},
   [capabilities-baseline, capabilities-restricted]]
- [{a: {capabilities: null}}, [capabilities-restricted]]
- [{a: {seccompProfile: {type: Localhost, localhostProfile: p}}}, []]
- [{a: {seccompProfile: {type: Unconfined}}}, [seccomp-baseline, seccomp-restricted]]
- [{a: {seccompProfile: null}}, [seccomp-restricted]]
- [{a: {seccompProfile: null}, pod: {seccompProfile: {type: RuntimeDefault}}}, []]
- [{pod: {seccompProfile: {type: Unconfined}}}, [seccomp-baseline]]
- [{a: {seLinuxOptions: {type: container_t, level: s0}}}, []]
- [{a: {seLinuxOptions: {type: spc_t}}}, [selinux]]
- [{pod: {seLinuxOptions: {type: spc_t}}}, [selinux]]
- [{a: {seLinuxOptions: {user: root}}}, [selinux]]
- [{pod: {seLinuxOptions: {role: r}}}, [selinux]]
- [{pod: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}}, []]
- [{pod: {sysctls: [{name: kernel.msgmax, value: '1'}]}}, [sysctls]]
- [{annotations: {note: x}}, []]
- [{annotations: {container.apparmor.security.beta.kubernetes.io/c: localhost/p}}, []]
- [{annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}},
   [apparmor]]
"""
SOUND: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
ROWS = yaml.safe_load(TABLE)
KINDS = ("containers", "initContainers", "ephemeralContainers")


def _pod(row: dict[str, Any], kind: str) -> dict[str, Any]:
    """Build a Pod in which the container of one kind is as in the row."""
    spec = dict(row)
    context = {**SOUND, **spec.pop("a", {})}
    described = {
        "name": "c",
        "image": "registry.example.com/c:1",
        "securityContext": {k: v for k, v in context.items() if v is not None},
    }
    if "ports" in spec:
        described["ports"] = spec.pop("ports")
    metadata: dict[str, Any] = {"name": "p", "namespace": "default"}
    if "annotations" in spec:
        metadata["annotations"] = spec.pop("annotations")
    if "pod" in spec:
        spec["securityContext"] = spec.pop("pod")
    sound = {"name": "s", "image": "registry.example.com/s:1", "securityContext": SOUND}
    spec["containers"] = [sound]
    spec[kind] = [*spec.get(kind, []), described]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@cache
def _linked(folder: str) -> list[LinkedPolicy]:
    compiled = compile_all(load_policies([str(SAMPLES / folder)]).documents, [])
    assert not compiled.invalid
    return [link_policy(policy) for policy in compiled.policies]


def _refusing(folder: str, pod: Any) -> set[str]:
    """Return the policies of a set that deny a Pod, without the prefix ``cel-``."""
    request = Request(
        kind="Pod", namespace="default", object=pod, name=pod["metadata"]["name"]
    )
    engine = Engine(OFFLINE, CLOCK)
    refusing = set()
    for policy in _linked(folder):
        statuses = {
            r.status for r in engine.explain(policy, engine.open(request)).results
        }
        assert statuses <= {"pass", "fail", "skip"}, policy.ir.name
        if "fail" in statuses:
            refusing.add(policy.ir.name.removeprefix("cel-"))
    return refusing


def test_both_sets_contain_the_same_controls() -> None:
    pattern, cel = ([p.ir.name for p in _linked(folder)] for folder in SETS)
    assert len(pattern) == 17
    assert cel == [f"cel-{name}" for name in pattern]


@pytest.mark.parametrize("file", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_sample_is_valid(file: Path) -> None:
    assert not [f for f in lint([str(file)]) if f.level == "error"]
    raw = yaml.safe_load(file.read_text())
    assert raw["metadata"]["name"].removeprefix("cel-") == file.stem


@pytest.mark.parametrize("folder", SETS)
def test_good_pod_passes_and_bad_one_fails(folder: str) -> None:
    assert _refusing(folder, GOOD) == set()
    assert _refusing(folder, BAD) == REFUSING_BAD


@pytest.mark.parametrize("folder", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_table(folder: str, kind: str) -> None:
    """A rule for containers applies to all three kinds of containers."""
    for row, expected in ROWS:
        found = _refusing(folder, _pod(row, kind))
        assert found == {f"pod-{name}" for name in expected}, row


@pytest.mark.parametrize("folder", SETS)
def test_review_creates_no_garbage(folder: str) -> None:
    """Otherwise reference cycles keep each review's data until a rare collection."""
    _refusing(folder, GOOD)
    gc.collect()
    gc.disable()
    try:
        _refusing(folder, GOOD)
        assert gc.collect() == 0
    finally:
        gc.enable()
