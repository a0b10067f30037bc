"""Give the resources of the kinds of policies, and of their exceptions.

Room: kube. Takes: rows of the table of kinds. Gives: Resources. Next: the informers and
writers of leader, controllers and pools.
Source: docs/behaviour/controllers 1.1.
"""

from typing import Final, NamedTuple

from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_POLICY_EXCEPTION,
    POLICY_EXCEPTION,
    WITH_RULES,
    PolicyKind,
    StoredKind,
)


def resource_of(kind: StoredKind) -> Resource:
    """Return the resource in the version that this program reads."""
    return Resource(
        group=kind.group,
        version=kind.version,
        plural=kind.plural,
        kind=kind.kind,
        namespaced=kind.namespaced,
    )


class Resources(NamedTuple):
    """The resources of a kind of policies: the cluster's and the namespaced ones."""

    cluster: Resource
    namespaced: Resource


def resources_of(policy_kind: PolicyKind) -> Resources:
    """Return both resources of a kind."""
    return Resources(
        resource_of(policy_kind.cluster), resource_of(policy_kind.namespaced)
    )


RULE_POLICIES: Final = resources_of(WITH_RULES)
EXCEPTIONS: Final = resource_of(POLICY_EXCEPTION)
CEL_EXCEPTIONS: Final = resource_of(CEL_POLICY_EXCEPTION)
