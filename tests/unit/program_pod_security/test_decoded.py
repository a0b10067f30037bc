"""Compare the decoding of Pods with the real program's, for objects of these shapes."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.pod_security.decoded import as_decoded

_FIELD = "json: cannot unmarshal {} into Go struct field {} of type {}"


def _pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}


def _with(**container: Any) -> dict[str, Any]:
    return _pod(containers=[{"name": "c", "image": "i", **container}])


def _deployment(**spec: Any) -> dict[str, Any]:
    return {"kind": "Deployment", "spec": {"template": {"spec": spec}}}


def _cron(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": spec}}}
    return {"kind": "CronJob", "spec": {"jobTemplate": template}}


def _told_of(kind: str, status: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "status": status}


@pytest.mark.parametrize(
    ("resource", "kind", "field", "go_type"),
    [
        (
            _pod(securityContext={"runAsUser": "abc"}),
            "string",
            "PodSecurityContext.spec.securityContext.runAsUser",
            "int64",
        ),
        (
            _pod(securityContext={"seccompProfile": {"type": 1.0}}),
            "number",
            "SeccompProfile.spec.securityContext.seccompProfile.type",
            "v1.SeccompProfileType",
        ),
        (
            _pod(containers={"a": {}}),
            "object",
            "PodSpec.spec.containers",
            "[]v1.Container",
        ),
        (
            _deployment(ephemeralContainers={}),
            "object",
            "PodSpec.spec.template.spec.ephemeralContainers",
            "[]v1.EphemeralContainer",
        ),
        (
            _pod(ephemeralContainers=[{"securityContext": []}]),
            "array",
            (
                "EphemeralContainer.spec.ephemeralContainers.EphemeralContainerCommon"
                ".securityContext"
            ),
            "v1.SecurityContext",
        ),
        (
            _cron(volumes=[{"name": "v", "hostPath": "x"}]),
            "string",
            "Volume.spec.jobTemplate.spec.template.spec.volumes.VolumeSource.hostPath",
            "v1.HostPathVolumeSource",
        ),
        (
            _pod(nodeSelector={"a": 1}),
            "number",
            "PodSpec.spec.nodeSelector",
            "string",
        ),
        (_pod(nodeSelector=1), "number", "PodSpec.spec.nodeSelector", None),
        (
            _with(resources={"limits": []}),
            "array",
            "ResourceRequirements.spec.containers.resources.limits",
            "v1.ResourceList",
        ),
        (
            _pod(priority=1.5),
            "number 1.5",
            "PodSpec.spec.priority",
            "int32",
        ),
        (
            _with(ports=[{"hostPort": 3000000000}]),
            "number 3000000000",
            "ContainerPort.spec.containers.ports.hostPort",
            "int32",
        ),
        (
            _with(livenessProbe={"httpGet": {"port": True}}),
            "bool",
            "HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port",
            "int32",
        ),
        # Fields that no control checks are decoded, too.
        (_told_of("Pod", "x"), "string", "Pod.status", "v1.PodStatus"),
        (
            _told_of("Pod", {"containerStatuses": [{"restartCount": "x"}]}),
            "string",
            "ContainerStatus.status.containerStatuses.restartCount",
            "int32",
        ),
        (
            _told_of("Pod", {"phase": 7}),
            "number",
            "PodStatus.status.phase",
            "v1.PodPhase",
        ),
        (
            _told_of("Deployment", {"replicas": 1.5}),
            "number 1.5",
            "DeploymentStatus.status.replicas",
            "int32",
        ),
        # Every Pod controller is decoded as a Deployment.
        (
            _told_of("StatefulSet", {"conditions": {}}),
            "object",
            "DeploymentStatus.status.conditions",
            "[]v1.DeploymentCondition",
        ),
        (
            _told_of("CronJob", {"active": ["x"]}),
            "string",
            "CronJobStatus.status.active",
            "v1.ObjectReference",
        ),
        # The first error in key order is reported.
        (
            _pod(terminationGracePeriodSeconds="x", affinity=0),
            "number",
            "PodSpec.spec.affinity",
            "v1.Affinity",
        ),
    ],
)
def test_wrong_type_is_reported(
    resource: dict[str, Any], kind: str, field: str, go_type: str | None
) -> None:
    """This includes fields that no control checks."""
    with pytest.raises(ExpressionFailed) as caught:
        as_decoded(resource, resource["kind"])
    told = _FIELD.format(kind, field, go_type or "map[string]string")
    assert caught.value.message == f"Error while getting new resource: {told}"


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        (
            {**_pod(priority="x"), "metadata": {"creationTimestamp": "abc"}},
            (
                'parsing time "abc" as "2006-01-02T15:04:05Z07:00": cannot parse "abc"'
                ' as "2006"'
            ),
        ),
        (
            _pod(overhead={"cpu": "x"}, affinity=1),
            (
                "quantities must match the regular expression"
                " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ),
        ),
    ],
)
def test_errors_of_a_types_own_decoder_come_first(
    resource: dict[str, Any], words: str
) -> None:
    """Such an error ends the decoder, which reports type mismatches only at the end."""
    with pytest.raises(ExpressionFailed, match="Error while getting") as caught:
        as_decoded(resource, "Pod")
    assert caught.value.message.endswith(f": {words}")


def test_names_are_case_insensitive_and_unknown_ones_ignored() -> None:
    read = as_decoded(
        _pod(HostNetwork=True, volumes=[{"name": "v", "unknown": {}}], nothing=1), "Pod"
    )
    assert read == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"hostNetwork": True, "volumes": [{"name": "v"}]},
    }


def test_well_formed_resource_is_unchanged() -> None:
    resource = _with(
        securityContext={"runAsUser": 1000.0, "capabilities": None},
        resources={"limits": {"cpu": 1.0, "memory": "1Gi"}},
        livenessProbe={"httpGet": {"port": "http"}},
    )
    assert as_decoded(resource, "Pod") is resource
    other = {"kind": "ConfigMap", "spec": 1}
    assert as_decoded(other, "ConfigMap") is other
    # A DaemonSet is decoded as a Deployment, whose status lacks the field.
    daemons = _told_of("DaemonSet", {"currentNumberScheduled": "x"})
    assert as_decoded(daemons, "DaemonSet") is daemons
