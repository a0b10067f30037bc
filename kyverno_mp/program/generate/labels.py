"""Define and read the labels of sources and generated objects.

Room: program.generate. Takes: labels of objects. Gives: Origin, TriggerIdentity. Next:
program/changes.py, background/objects/labels.py.
Source: docs/behaviour/controllers 5.3.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kyverno_mp.values.jsonvalue import Json

PREFIX: Final = "generate.kyverno.io/"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
KYVERNO: Final = "kyverno"
POLICY: Final = f"{PREFIX}policy-name"
POLICY_NAMESPACE: Final = f"{PREFIX}policy-namespace"
RULE: Final = f"{PREFIX}rule-name"
CLONE_SOURCE: Final = f"{PREFIX}clone-source"
SOURCE_UID: Final = f"{PREFIX}source-uid"
SOURCE_GROUP: Final = f"{PREFIX}source-group"
SOURCE_VERSION: Final = f"{PREFIX}source-version"
SOURCE_KIND: Final = f"{PREFIX}source-kind"
SOURCE_NAMESPACE: Final = f"{PREFIX}source-namespace"
TRIGGER_GROUP: Final = f"{PREFIX}trigger-group"
TRIGGER_VERSION: Final = f"{PREFIX}trigger-version"
TRIGGER_KIND: Final = f"{PREFIX}trigger-kind"
TRIGGER_NAMESPACE: Final = f"{PREFIX}trigger-namespace"
TRIGGER_UID: Final = f"{PREFIX}trigger-uid"
TRIGGER_NAME: Final = f"{PREFIX}trigger-name"

COPIES_TRACKING: Final = "kyverno-mp.io/copies-tracking"
"""An annotation of a source: ``true``, and clones get the metadata of tracking, too."""
_TRACKING: Final = frozenset(
    {
        "app.kubernetes.io/instance",
        "applyset.kubernetes.io/part-of",
        "config.k8s.io/owning-inventory",
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
_TRACKING_PREFIXES: Final = (
    "argocd.argoproj.io/",
    "helm.sh/",
    "helm.toolkit.fluxcd.io/",
    "kapp.k14s.io/",
    "kustomize.toolkit.fluxcd.io/",
    "meta.helm.sh/",
    "objectset.rio.cattle.io/",
)


class Origin(NamedTuple):
    """The policy and the rule that generated an object."""

    policy: str
    """``name`` or ``namespace/name`` of the policy."""
    rule: str


class TriggerIdentity(NamedTuple):
    """The trigger named by labels."""

    api_version: str
    kind: str
    namespace: str
    name: str
    """Set only on objects from older releases."""
    uid: str


def without_tracking(metadata: dict[str, Json]) -> dict[str, Json]:
    """Return a source's metadata without what names the tool that manages the source.

    Such a tool would take a clone for an object that was removed from its manifests,
    and delete it.
    """
    annotations = metadata.get("annotations")
    if type(annotations) is dict and annotations.get(COPIES_TRACKING) == "true":
        return metadata
    copy = dict(metadata)
    for key in ("labels", "annotations"):
        names = copy.get(key)
        if type(names) is dict and any(map(_is_tracking, names)):
            copy[key] = {
                name: value for name, value in names.items() if not _is_tracking(name)
            }
    return copy


def _is_tracking(name: str) -> bool:
    return name in _TRACKING or name.startswith(_TRACKING_PREFIXES)


def origin_of(labels: Mapping[str, str]) -> Origin | None:
    """Return the policy and rule that generated an object; None if unknown."""
    name, rule = labels.get(POLICY, ""), labels.get(RULE, "")
    if labels.get(MANAGED_BY) != KYVERNO or not (name and rule):
        return None
    namespace = labels.get(POLICY_NAMESPACE, "")
    return Origin(f"{namespace}/{name}" if namespace else name, rule)


def is_generated(labels: Mapping[str, str]) -> bool:
    """Return whether the labels name the policy that generated the object."""
    return labels.get(MANAGED_BY) == KYVERNO and bool(labels.get(POLICY))


def trigger_identity(labels: Mapping[str, str]) -> TriggerIdentity | None:
    """Return the trigger named by labels; None if there is none."""
    kind, uid = labels.get(TRIGGER_KIND, ""), labels.get(TRIGGER_UID, "")
    name = labels.get(TRIGGER_NAME, "")
    if not (kind and (uid or name)):
        return None
    group, version = labels.get(TRIGGER_GROUP, ""), labels.get(TRIGGER_VERSION, "")
    api_version = f"{group}/{version}" if group else version
    return TriggerIdentity(
        api_version, kind, labels.get(TRIGGER_NAMESPACE, ""), name, uid
    )
