"""Test validate.podSecurity against engine 6.5 and the real program's messages."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.rules import PodSecurityExcludeIR, PodSecurityIR
from kyverno_mp.program.pod_security.conforming import conforms, facts_of
from kyverno_mp.program.pod_security.evaluate import evaluate, passes
from kyverno_mp.program.pod_security.pod import read_pod
from kyverno_mp.program.pod_security.standard import minor_version, violations

STRICT = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
    "capabilities": {"drop": ["ALL"]},
}


def a_pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    base = {"name": "c", "image": "nginx:1", "securityContext": STRICT}
    return {
        "kind": "Pod",
        "spec": {"containers": [{**base, **(container or {})}], **spec},
    }


def secured(**fields: Any) -> dict[str, Any]:
    return a_pod({"securityContext": {**STRICT, **fields}})


def message(pod: dict[str, Any], ir: PodSecurityIR, kind: str = "Pod") -> str:
    verdict = evaluate(ir, pod, kind, rule="r")
    assert not verdict.passed
    head = (
        f"Validation rule 'r' failed. It violates PodSecurity "
        f'"{ir.level}:{ir.version}": '
    )
    assert verdict.message.startswith(head)
    return verdict.message.removeprefix(head)


BASELINE = PodSecurityIR("baseline", "latest")
RESTRICTED = PodSecurityIR("restricted", "latest")
CONTAINER = "spec.containers[0].securityContext"


@pytest.mark.parametrize(
    ("pod", "reason", "errors"),
    [
        (
            a_pod(hostNetwork=True, hostPID=True, hostIPC=True),
            "host namespaces",
            (
                "spec.hostNetwork is forbidden, forbidden values found: true, "
                "spec.hostPID is forbidden, forbidden values found: true, "
                "spec.hostIPC is forbidden, forbidden values found: true"
            ),
        ),
        (
            a_pod(volumes=[{"name": "v", "hostPath": {"path": "/etc"}}]),
            "hostPath volumes",
            "spec.volumes[0].hostPath is forbidden, forbidden values found: /etc",
        ),
        (
            a_pod({"ports": [{"containerPort": 1}, {"hostPort": 80}]}),
            "hostPort",
            (
                "spec.containers[0].ports[1].hostPort is forbidden, "
                "forbidden values found: 80"
            ),
        ),
        (
            secured(privileged=True),
            "privileged",
            f"{CONTAINER}.privileged is forbidden, forbidden values found: true",
        ),
        (
            secured(procMount="Unmasked"),
            "procMount",
            f"{CONTAINER}.procMount is forbidden, forbidden values found: Unmasked",
        ),
        (
            secured(capabilities={"add": ["NET_RAW", "CHOWN", "BPF"]}),
            "non-default capabilities",
            (
                f"{CONTAINER}.capabilities.add is forbidden, "
                "forbidden values found: [BPF NET_RAW]"
            ),
        ),
        (
            secured(seLinuxOptions={"type": "x", "user": "u", "role": "o"}),
            "seLinuxOptions",
            (
                f"{CONTAINER}.seLinuxOptions.type is forbidden, forbidden values "
                f"found: x, "
                f"{CONTAINER}.seLinuxOptions.user is forbidden, forbidden values "
                f"found: u, "
                f"{CONTAINER}.seLinuxOptions.role is forbidden, forbidden values "
                f"found: o"
            ),
        ),
        (
            secured(windowsOptions={"hostProcess": True}),
            "hostProcess",
            (
                f"{CONTAINER}.windowsOptions.hostProcess is forbidden, "
                "forbidden values found: true"
            ),
        ),
        (
            secured(seccompProfile={"type": "Unconfined"}),
            "seccompProfile",
            (
                f"{CONTAINER}.seccompProfile.type is forbidden, "
                "forbidden values found: Unconfined"
            ),
        ),
        (
            secured(appArmorProfile={"type": "Unconfined"}),
            "forbidden AppArmor profile",
            (
                f"{CONTAINER}.appArmorProfile.type is forbidden, "
                "forbidden values found: Unconfined"
            ),
        ),
        (
            a_pod(securityContext={"sysctls": [{"name": "kernel.msgmax"}]}),
            "forbidden sysctls",
            (
                "spec.securityContext.sysctls[0].name is forbidden, "
                "forbidden values found: kernel.msgmax"
            ),
        ),
        (
            a_pod({"livenessProbe": {"httpGet": {"host": "h"}}}),
            "probe or lifecycle host",
            "",
        ),
    ],
)
def test_a_baseline_control_reports_field_and_value(
    pod: dict[str, Any], reason: str, errors: str
) -> None:
    """The text appears verbatim in denials and in reports."""
    expected = f"(Forbidden reason: {reason}, field error list: [{errors}])"
    assert expected == message(pod, BASELINE)
    assert not passes(BASELINE, pod, "Pod")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            a_pod({"securityContext": None}),
            (
                "(Forbidden reason: allowPrivilegeEscalation != false, field error "
                "list: "
                f"[{CONTAINER}.allowPrivilegeEscalation: Required value])"
                "(Forbidden reason: unrestricted capabilities, field error list: "
                f"[{CONTAINER}.capabilities.drop: Required value])"
                "(Forbidden reason: runAsNonRoot != true, field error list: "
                f"[{CONTAINER}.runAsNonRoot: Required value])"
                "(Forbidden reason: seccompProfile, field error list: "
                f"[{CONTAINER}.seccompProfile.type: Required value])"
            ),
        ),
        (
            secured(allowPrivilegeEscalation=None),
            (
                "(Forbidden reason: allowPrivilegeEscalation != false, field error "
                "list: "
                f"[{CONTAINER}.allowPrivilegeEscalation is forbidden, forbidden values "
                "found: nil])"
            ),
        ),
        (
            secured(runAsUser=0),
            (
                "(Forbidden reason: runAsUser=0, field error list: "
                f"[{CONTAINER}.runAsUser is forbidden, forbidden values found: 0])"
            ),
        ),
        (
            secured(runAsNonRoot=False),
            (
                "(Forbidden reason: runAsNonRoot != true, field error list: "
                f"[{CONTAINER}.runAsNonRoot is forbidden, forbidden values found: "
                f"false])"
            ),
        ),
        (
            a_pod(volumes=[{"name": "v", "nfs": {}}, {"name": "e", "emptyDir": {}}]),
            (
                "(Forbidden reason: restricted volume types, field error list: "
                "[spec.volumes[0].nfs: Forbidden])"
            ),
        ),
        (
            secured(capabilities={"add": ["CHOWN"], "drop": ["KILL"]}),
            (
                "(Forbidden reason: unrestricted capabilities, field error list: "
                f"[{CONTAINER}.capabilities.drop is forbidden, forbidden values found: "
                f"[KILL], {CONTAINER}.capabilities.add is forbidden, forbidden values "
                "found: [CHOWN]])"
            ),
        ),
    ],
)
def test_a_restricted_control_reports_field_and_value(
    pod: dict[str, Any], expected: str
) -> None:
    """The restricted level requires fields; a missing one has its own message."""
    assert expected == message(pod, RESTRICTED)


def test_a_conforming_pod_passes() -> None:
    """The common case must need no message."""
    assert passes(RESTRICTED, a_pod(), "Pod")
    verdict = evaluate(RESTRICTED, a_pod(), "Pod", rule="r")
    assert (
        verdict.passed,
        verdict.message,
        verdict.properties,
    ) == (True, "Validation rule 'r' passed.", {})


@pytest.mark.parametrize(
    ("level", "version", "passed"),
    [
        ("baseline", "v1.28", False),
        ("baseline", "v1.29", True),
        ("baseline", "", True),
        ("restricted", "v1.24", False),
        ("restricted", "v1.29", True),
        ("privileged", "v1.28", False),
    ],
)
def test_the_newest_implementation_of_the_version_is_used(
    level: str, version: str, *, passed: bool
) -> None:
    """A sysctl became safe in 1.29; ``privileged`` runs all checks (6.5)."""
    pod = a_pod(
        securityContext={"sysctls": [{"name": "net.ipv4.tcp_fin_timeout"}]},
        os={"name": "windows"},
    )
    ir = PodSecurityIR(level, version)
    assert passed is evaluate(ir, pod, "Pod", rule="r").passed
    assert passed is passes(ir, pod, "Pod")


def test_a_windows_pod_is_exempt_since_1_25() -> None:
    """Windows has neither seccomp nor capabilities."""
    pod = a_pod({"securityContext": {"runAsNonRoot": True}}, os={"name": "windows"})
    assert passes(PodSecurityIR("restricted", "v1.25"), pod, "Pod")
    assert not passes(PodSecurityIR("restricted", "v1.24"), pod, "Pod")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Deployment", "spec.template.spec"),
        ("CronJob", "spec.jobTemplate.spec.template.spec"),
    ],
)
def test_controllers_name_the_fields_of_their_template(kind: str, spec: str) -> None:
    """Every ``spec`` in a field is replaced (6.5)."""
    inner: dict[str, Any] = {"template": a_pod(hostPID=True)}
    outer = {"jobTemplate": {"spec": inner}} if kind == "CronJob" else inner
    assert message({"spec": outer}, BASELINE, kind) == (
        "(Forbidden reason: host namespaces, field error list: "
        f"[{spec}.hostPID is forbidden, forbidden values found: true])"
    )


def test_annotations_are_named_in_the_template_even_of_a_pod() -> None:
    """Upstream replaces ``metadata`` for all kinds."""
    key = "container.apparmor.security.beta.kubernetes.io/c"
    pod = {**a_pod(), "metadata": {"annotations": {key: "unconfined"}}}
    assert message(pod, BASELINE) == (
        "(Forbidden reason: forbidden AppArmor profile, field error list: "
        f"[spec.template.metadata.annotations[{key}] is forbidden, "
        "forbidden values found: unconfined])"
    )


def test_properties_name_controls_and_images() -> None:
    """Reports contain the properties; the images are the violating containers'."""
    pod = a_pod({"securityContext": {**STRICT, "privileged": True}}, hostPID=True)
    properties = evaluate(BASELINE, pod, "Pod", rule="r").properties
    assert (properties["standard"], properties["version"]) == ("baseline", "latest")
    assert properties["controls"] == "hostNamespaces,privileged"
    assert json.loads(properties["controlsJSON"]) == [
        {"ID": "hostNamespaces", "Name": "Host Namespaces", "Images": None},
        {
            "ID": "privileged",
            "Name": "Privileged Containers",
            "Images": ["docker.io/nginx:1"],
        },
    ]
    assert list(json.loads(properties["controlsJSON"])[0]) == ["ID", "Name", "Images"]


ADD = "spec.containers[*].securityContext.capabilities.add"


@pytest.mark.parametrize(
    ("exclude", "passed"),
    [
        (PodSecurityExcludeIR("Capabilities", ("nginx*",)), True),
        (PodSecurityExcludeIR("Capabilities", ("other*",)), False),
        (PodSecurityExcludeIR("Seccomp", ("nginx*",)), False),
        (PodSecurityExcludeIR("Capabilities", ("nginx*",), ADD), True),
        (PodSecurityExcludeIR("Capabilities", ("nginx*",), ADD, ("NET_*",)), True),
        (PodSecurityExcludeIR("Capabilities", ("nginx*",), ADD, ("SYS_*",)), False),
        (PodSecurityExcludeIR("Capabilities", ("nginx*",), f"{ADD}x"), False),
        (PodSecurityExcludeIR("Capabilities"), False),
    ],
)
def test_an_exclude_removes_the_named_violation(
    exclude: PodSecurityExcludeIR, *, passed: bool
) -> None:
    """Control, image, field and values must all agree."""
    pod = secured(capabilities={"add": ["NET_RAW"], "drop": ["ALL"]})
    ir = PodSecurityIR("restricted", "latest", (exclude,))
    assert passed is evaluate(ir, pod, "Pod", rule="r").passed
    assert passed is passes(ir, pod, "Pod")


def test_an_exclude_without_images_removes_pod_level_fields() -> None:
    """Host namespaces belong to the Pod; two flags, one of them excluded."""
    pod = a_pod(hostPID=True, hostNetwork=True)
    exclude = PodSecurityExcludeIR("Host Namespaces", (), "spec.hostPID")
    assert message(pod, PodSecurityIR("baseline", "v1.30", (exclude,))) == (
        "(Forbidden reason: host namespaces, field error list: "
        "[spec.hostNetwork is forbidden, forbidden values found: true])"
    )


def test_the_last_error_replaces_an_excluded_one() -> None:
    """Upstream removes elements by swapping, which affects the order of the text."""
    one = {"name": "a", "image": "a", "securityContext": {"privileged": True}}
    two, three = ({**one, "name": n, "image": n} for n in "bc")
    pod = {"spec": {"containers": [one, two, three]}}
    exclude = PodSecurityExcludeIR("Privileged Containers", ("a",))
    errors = message(pod, PodSecurityIR("baseline", "", (exclude,)))
    assert errors.index("containers[2]") < errors.index("containers[1]")


def test_exceptions_remove_the_other_violations() -> None:
    """A PolicyException with podSecurity turns a failure into a skip."""
    pod = a_pod(hostPID=True)
    exempt = (PodSecurityExcludeIR("Host Namespaces"),)
    verdict = evaluate(BASELINE, pod, "Pod", rule="r", exempt=exempt)
    assert verdict.passed
    assert verdict.exempted
    other = evaluate(
        BASELINE, pod, "Pod", rule="r", exempt=(PodSecurityExcludeIR("Sysctls"),)
    )
    assert not other.passed
    assert not evaluate(BASELINE, a_pod(), "Pod", rule="r", exempt=exempt).exempted


@pytest.mark.parametrize(
    ("pod", "kind", "version", "text"),
    [
        (
            {},
            "Service",
            "",
            "Error while getting new resource: could not find correct resource type",
        ),
        (
            secured(capabilities={"add": [1]}),
            "Pod",
            "",
            (
                "Error while getting new resource: json: cannot unmarshal number "
                "into Go struct field"
                " Capabilities.spec.containers.securityContext.capabilities.add"
                " of type v1.Capability"
            ),
        ),
        (
            a_pod(securityContext={"runAsUser": 0.5}),
            "Pod",
            "",
            (
                "Error while getting new resource: json: cannot unmarshal number 0.5 "
                "into Go struct field PodSecurityContext.spec.securityContext.runAsUser"
                " of type int64"
            ),
        ),
        (
            secured(runAsUser=1e21),
            "Pod",
            "",
            (
                "Error while getting new resource: json: cannot unmarshal number 1e+21 "
                "into Go struct field"
                " SecurityContext.spec.containers.securityContext.runAsUser"
                " of type int64"
            ),
        ),
        (
            a_pod(hostPID="yes"),
            "Pod",
            "",
            (
                "Error while getting new resource: json: cannot unmarshal string "
                "into Go "
                "struct field PodSpec.spec.hostPID of type bool"
            ),
        ),
        (
            a_pod(),
            "Pod",
            "v1.x",
            'failed to parse pod security api version: must be "latest" or "v1.x"',
        ),
        (
            a_pod(),
            "Pod",
            "v1.01",
            'failed to parse pod security api version: must be "latest" or "v1.x"',
        ),
    ],
)
def test_pod_that_cannot_be_evaluated_is_an_error(
    pod: dict[str, Any], kind: str, version: str, text: str
) -> None:
    """An error must never be treated as a pass."""
    ir = PodSecurityIR("baseline", version)
    assert not passes(ir, pod, kind)
    with pytest.raises(ExpressionFailed) as caught:
        evaluate(ir, pod, kind, rule="r")
    assert text == caught.value.message


_WORDS = st.sampled_from(["", "ALL", "NET_BIND_SERVICE", "CHOWN", "container_t", "x"])
_PROFILE = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["RuntimeDefault", "Localhost", "x", None])}
)
_FLAG = st.sampled_from([True, False, None, 0, "x"])
_CONTEXT = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "privileged": _FLAG,
        "allowPrivilegeEscalation": _FLAG,
        "runAsNonRoot": _FLAG,
        "runAsUser": st.sampled_from([0, 1, None, 0.0]),
        "seccompProfile": st.none() | _PROFILE,
        "appArmorProfile": st.none() | _PROFILE,
        "procMount": st.sampled_from(["Default", "Unmasked", None]),
        "capabilities": st.none()
        | st.fixed_dictionaries(
            {}, optional={"add": st.lists(_WORDS), "drop": st.lists(_WORDS)}
        ),
        "seLinuxOptions": st.none()
        | st.dictionaries(st.sampled_from(["type", "user", "role"]), _WORDS),
        "windowsOptions": st.none() | st.fixed_dictionaries({"hostProcess": _FLAG}),
        "sysctls": st.lists(
            st.fixed_dictionaries({"name": st.just("net.ipv4.tcp_rmem") | _WORDS})
        ),
    },
)
_CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("c"), "securityContext": _CONTEXT | st.just(STRICT)},
        optional={
            "ports": st.lists(
                st.fixed_dictionaries({"hostPort": st.sampled_from([0, 1, None])})
            ),
            "livenessProbe": st.fixed_dictionaries(
                {"tcpSocket": st.fixed_dictionaries({"host": _WORDS})}
            ),
            "lifecycle": st.fixed_dictionaries({"preStop": st.none()}),
        },
    ),
    max_size=2,
)
_SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"containers": _CONTAINERS},
    optional={
        "initContainers": st.none() | _CONTAINERS,
        "securityContext": _CONTEXT,
        "hostPID": _FLAG,
        "os": st.fixed_dictionaries({"name": st.sampled_from(["windows", "linux"])}),
        "volumes": st.lists(
            st.dictionaries(
                st.sampled_from(["name", "emptyDir", "hostPath", "nfs"]),
                st.sampled_from([None, {}]),
            ),
            max_size=2,
        ),
    },
)


@settings(max_examples=400)
@given(
    _SPECS,
    st.sampled_from(["baseline", "restricted"]),
    st.sampled_from(["v1.18", "v1.24", "v1.30", "latest"]),
)
def test_the_fast_path_never_passes_a_violation(
    spec: dict[str, Any], level: str, version: str
) -> None:
    """A Pod that passes on the fast path must pass on the explaining path."""
    pod = {"spec": spec}
    fast = conforms(pod, "Pod", facts_of(level, version))
    try:
        slow = not violations(read_pod(pod, "Pod"), level, minor_version(version))
    except ExpressionFailed:
        assert not fast
        return
    assert fast is slow
