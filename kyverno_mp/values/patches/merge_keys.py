"""Define which lists of built-in kinds a strategic merge patch merges, by which keys.

Room: values. Takes: apiVersion and kind. Gives: Shape, None for all other kinds.
Next: values/patches/strategic_merge.
Source: Kubernetes API types, release 1.21 (patchStrategy, patchMergeKey, listMapKey):
KYVERNO: kustomize embeds the schema of that release, so lists of newer kinds, e.g.
autoscaling/v2, are replaced like those of custom resources (docs/behaviour/engine 7.3).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Shape(NamedTuple):
    """The merge rules of one field.

    ``keys``: None if the field is not a merged list; () for a merged list of scalars.
    ``fields``: the fields with merged lists of the map, or of the elements of a merged
    list.
    """

    fields: Mapping[str, "Shape"]
    keys: tuple[str, ...] | None = None


PLAIN: Final = Shape({})
"""A field of a known kind without merged lists."""


def _map(**fields: Shape) -> Shape:
    return Shape(fields)


def _merged(*keys: str, **fields: Shape) -> Shape:
    return Shape(fields, keys)


_METADATA: Final = _map(finalizers=_merged(), ownerReferences=_merged("uid"))
_META: Final = {"metadata": _METADATA}
_CONDITIONS: Final = _merged("type")
_CONDITIONED: Final = _map(conditions=_CONDITIONS)
_CLAIM: Final = _map(**_META, status=_CONDITIONED)

_MOUNTS: Final = {
    "env": _merged("name"),
    "volumeMounts": _merged("mountPath"),
    "volumeDevices": _merged("devicePath"),
}
_CONTAINERS: Final = _merged(
    "name", ports=_merged("containerPort", "protocol"), **_MOUNTS
)
_POD_SPEC: Final = _map(
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    ephemeralContainers=_merged("name", **_MOUNTS),
    hostAliases=_merged("ip"),
    imagePullSecrets=_merged("name"),
    topologySpreadConstraints=_merged("topologyKey", "whenUnsatisfiable"),
    volumes=_merged("name", ephemeral=_map(volumeClaimTemplate=_map(**_META))),
)
_TEMPLATE: Final = _map(**_META, spec=_POD_SPEC)
_WORKLOAD: Final = _map(**_META, spec=_map(template=_TEMPLATE), status=_CONDITIONED)
_WEBHOOKS: Final = _map(**_META, webhooks=_merged("name"))
_STATUS_ONLY: Final = _map(**_META, status=_CONDITIONED)
_OBJECT: Final = _map(**_META)

_SPECIAL: Final[dict[str, Shape]] = {
    "v1 Pod": _map(
        **_META,
        spec=_POD_SPEC,
        status=_map(conditions=_CONDITIONS, podIPs=_merged("ip")),
    ),
    "v1 PodTemplate": _map(**_META, template=_TEMPLATE),
    "v1 ReplicationController": _WORKLOAD,
    "v1 Service": _map(
        **_META, spec=_map(ports=_merged("port", "protocol")), status=_CONDITIONED
    ),
    "v1 ServiceAccount": _map(**_META, secrets=_merged("name")),
    "v1 Namespace": _STATUS_ONLY,
    "v1 Node": _map(
        **_META,
        spec=_map(podCIDRs=_merged()),
        status=_map(conditions=_CONDITIONS, addresses=_merged("type")),
    ),
    "v1 PersistentVolumeClaim": _CLAIM,
    "v1 ComponentStatus": _map(**_META, conditions=_CONDITIONS),
    "apps/v1 DaemonSet": _WORKLOAD,
    "apps/v1 Deployment": _WORKLOAD,
    "apps/v1 ReplicaSet": _WORKLOAD,
    "apps/v1 StatefulSet": _WORKLOAD,
    "batch/v1 Job": _WORKLOAD,
    "batch/v1 CronJob": _map(
        **_META,
        spec=_map(jobTemplate=_map(**_META, spec=_map(template=_TEMPLATE))),
    ),
    "apiregistration.k8s.io/v1 APIService": _STATUS_ONLY,
    "policy/v1 PodDisruptionBudget": _STATUS_ONLY,
    "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration": _WEBHOOKS,
    "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration": _WEBHOOKS,
    "storage.k8s.io/v1 CSINode": _map(**_META, spec=_map(drivers=_merged("name"))),
}
"""Shapes by version and kind; a beta version has the shape of v1."""

_KINDS: Final = """
v1 Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node
  PersistentVolume PersistentVolumeClaim Pod PodTemplate ReplicationController
  ResourceQuota Secret Service ServiceAccount
admissionregistration.k8s.io/v1,v1beta1 MutatingWebhookConfiguration
  ValidatingWebhookConfiguration
apiextensions.k8s.io/v1,v1beta1 CustomResourceDefinition
apiregistration.k8s.io/v1,v1beta1 APIService
apps/v1 ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet
authentication.k8s.io/v1,v1beta1 TokenReview
authentication.k8s.io/v1 TokenRequest
authorization.k8s.io/v1,v1beta1 LocalSubjectAccessReview SelfSubjectAccessReview
  SelfSubjectRulesReview SubjectAccessReview
autoscaling/v1 HorizontalPodAutoscaler Scale
autoscaling/v2beta1,v2beta2 HorizontalPodAutoscaler
batch/v1 Job
batch/v1,v1beta1 CronJob
certificates.k8s.io/v1,v1beta1 CertificateSigningRequest
coordination.k8s.io/v1,v1beta1 Lease
discovery.k8s.io/v1,v1beta1 EndpointSlice
events.k8s.io/v1,v1beta1 Event
extensions/v1beta1 Ingress
flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema PriorityLevelConfiguration
networking.k8s.io/v1,v1beta1 Ingress IngressClass
networking.k8s.io/v1 NetworkPolicy
node.k8s.io/v1,v1beta1 RuntimeClass
policy/v1,v1beta1 PodDisruptionBudget
policy/v1beta1 Eviction PodSecurityPolicy
rbac.authorization.k8s.io/v1,v1beta1 ClusterRole ClusterRoleBinding Role RoleBinding
scheduling.k8s.io/v1,v1beta1 PriorityClass
storage.k8s.io/v1,v1beta1 CSIDriver CSINode StorageClass VolumeAttachment
storage.k8s.io/v1beta1 CSIStorageCapacity
"""
"""All kinds of the release; an indented line continues the line above."""


def _shapes() -> dict[tuple[str, str], Shape]:
    shapes: dict[tuple[str, str], Shape] = {}
    for line in _KINDS.strip().replace("\n  ", " ").splitlines():
        group_versions, *kinds = line.split()
        group, _, versions = group_versions.rpartition("/")
        for version in versions.split(","):
            api_version = f"{group}/{version}" if group else version
            stable = f"{group}/v1" if group else "v1"
            for kind in kinds:
                shape = _SPECIAL.get(f"{stable} {kind}", _OBJECT)
                shapes[api_version, kind] = shape
    return shapes


_SHAPES: Final = _shapes()


def shape_of(api_version: str, kind: str) -> Shape | None:
    """Return the shape of a built-in kind; None if all its lists are replaced."""
    return _SHAPES.get((api_version, kind))
