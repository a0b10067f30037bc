"""List the fields of an object that its signature does not cover.

Room: images. Takes: an object, the policy's ignoreFields, the annotations' domain.
Gives: patterns of fields. Next: images/manifests/compare.py.
Source: docs/behaviour/images 7 (ignore lists): the defaults of the library and of
Kyverno.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kyverno_mp.policy.fields.validation import ObjectFieldBinding, ObjectReference
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import WITH_RULES

_ANNOTATIONS: Final = (
    "resourceBundleRef",
    "signature",
    "message",
    "certificate",
    "bundle",
)
_LIBRARY_DOMAIN: Final = "cosign.sigstore.dev"
_ANY: Final = (
    "metadata.namespace",
    "spec.containers.*.imagePullPolicy",
    "spec.containers.*.terminationMessagePath",
    "spec.containers.*.terminationMessagePolicy",
    "spec.dnsPolicy",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.terminationGracePeriodSeconds",
    "metadata.labels.app.kubernetes.io/instance",
    "metadata.managedFields.*",
    "metadata.resourceVersion",
    "metadata.selfLink",
    "metadata.annotations.control-plane.alpha.kubernetes.io/leader",
    "metadata.annotations.kubectl.kubernetes.io/last-applied-configuration",
    "metadata.finalizers*",
    "metadata.annotations.namespace",
    "metadata.annotations.deprecated.daemonset.template.generation",
    "metadata.creationTimestamp",
    "metadata.uid",
    "metadata.generation",
    "status",
    "metadata.annotations.deployment.kubernetes.io/revision",
)
_ACCOUNT: Final = ("secrets.*.name", "imagePullSecrets.*.name")
_POLICY: Final = (
    "metadata.annotations.pod-policies.kyverno.io/autogen-controllers",
    "spec.failurePolicy",
    "spec.background",
    "spec.validationFailureAction",
)
# KYVERNO: many of these fields decide what a workload can do (docs/behaviour/images 7).
# They stay ignored, because existing signed manifests may depend on it.
_BY_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "ServiceAccount": _ACCOUNT,
    "Service": (
        "spec.ports.*.nodePort",
        "spec.clusterIP",
        "spec.clusterIPs.0",
        "spec.sessionAffinity",
        "spec.type",
        "spec.ipFamilies.*",
        "spec.ipFamilyPolicy",
        "spec.internalTrafficPolicy",
    ),
    "Pod": (
        "spec.volumes.*.name",
        "spec.volumes.*.projected.*",
        "spec.volumes.*.configMap.defaultMode",
        "spec.containers.*.volumeMounts.*",
        "spec.tolerations.*",
        "spec.enableServiceLinks",
        "spec.preemptionPolicy",
        "spec.priority",
        "spec.serviceAccount",
    ),
    "Deployment": (
        "spec.progressDeadlineSeconds",
        "spec.revisionHistoryLimit",
        "spec.strategy.*",
        "spec.template.metadata.creationTimestamp",
        "spec.containers.*.ports.*.protocol",
        "spec.containers.*.resources",
        "spec.securityContext",
    ),
    "CustomResourceDefinition": ("spec.conversion.strategy", "spec.names.listKind"),
    **dict.fromkeys(WITH_RULES.names, _POLICY),
}
_ROUTE: Final = ("Route", "route.openshift.io", ("spec.host",))


def ignored_fields(
    document: Mapping[str, Json], bindings: Sequence[ObjectFieldBinding], domain: str
) -> list[str]:
    """Return the patterns for an object: the defaults, then the policy's patterns."""
    about = _about(document)
    return [
        *_ANY,
        *_BY_KIND.get(about["kind"], ()),
        *(_ROUTE[2] if (about["kind"], about["group"]) == _ROUTE[:2] else ()),
        *_of_signatures(domain),
        *(
            # In upstream's paths, an index can be in brackets.
            field.replace("[", ".").replace("]", "")
            for binding in bindings
            if not binding.objects
            or any(_is_meant(reference, about) for reference in binding.objects)
            for field in binding.fields
            if field
        ),
    ]


def _of_signatures(domain: str) -> Iterator[str]:
    for prefix in dict.fromkeys((_LIBRARY_DOMAIN, domain)):
        for name in _ANNOTATIONS:
            yield f"metadata.annotations.{prefix}/{name}"


def _about(document: Mapping[str, Json]) -> dict[str, str]:
    metadata = document.get("metadata")
    named = metadata if type(metadata) is dict else {}
    group, slash, version = str(document.get("apiVersion") or "").rpartition("/")
    return {
        "group": group if slash else "",
        "version": version,
        "kind": str(document.get("kind") or ""),
        "name": str(named.get("name") or ""),
        "namespace": str(named.get("namespace") or ""),
    }


def _is_meant(reference: ObjectReference, about: Mapping[str, str]) -> bool:
    return (
        _matches(reference.group, about["group"])
        and _matches(reference.version, about["version"])
        and _matches(reference.kind, about["kind"])
        and _matches(reference.name, about["name"])
        and _matches(reference.namespace, about["namespace"])
    )


def _matches(pattern: str, value: str) -> bool:
    pattern = pattern.strip()
    if not pattern or pattern == value or (pattern == "-" and not value):
        return True
    if pattern.endswith("*"):
        return value.startswith(pattern.rstrip("*"))
    return "," in pattern and any(_matches(part, value) for part in pattern.split(","))
