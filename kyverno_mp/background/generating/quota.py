"""Choose the kinds of generated objects to watch, within limits.

Room: background. Takes: the kinds that each policy has generated. Gives: ``chosen``.
Next: background/generating/watches.py.
Source: docs/background.md (GeneratingPolicies).

Cluster policies come first, because their authors are trusted. Then each namespace gets
one kind, then each gets its second, so that no namespace uses up the rest.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kyverno_mp.background.policies import policy_key
from kyverno_mp.limits import GENERATED_KINDS_MAX, GENERATED_KINDS_OF_NAMESPACE_MAX

Place: TypeAlias = tuple[str, str]
"""Group and plural name of a resource."""


def chosen(places_of: Mapping[str, Iterable[Place]]) -> frozenset[Place]:
    """Return the resources to watch. ``places_of``: the resources by policy."""
    by_namespace: dict[str, set[Place]] = {}
    for policy, places in places_of.items():
        by_namespace.setdefault(policy_key(policy)[0], set()).update(places)
    watched = set(sorted(by_namespace.pop("", ()))[:GENERATED_KINDS_MAX])
    queues = [
        sorted(places - watched)[:GENERATED_KINDS_OF_NAMESPACE_MAX]
        for _, places in sorted(by_namespace.items())
    ]
    for rank in range(GENERATED_KINDS_OF_NAMESPACE_MAX):
        for queue in queues:
            if rank < len(queue) and len(watched) < GENERATED_KINDS_MAX:
                watched.add(queue[rank])
    return frozenset(watched)
