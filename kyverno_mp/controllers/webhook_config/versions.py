"""Decide which policies can share a webhook whose matchPolicy is Equivalent.

Room: controllers. Takes: entries of policies. Gives: NamedVersions.
Next: controllers/webhook_config/cel.py.
Source: k8s apiserver, webhook/generic/webhook.go (ShouldCallHook): an object that a
rule of the webhook names is sent as it is; any other is converted to a version that a
rule names.

If one policy names v2 of a resource and another policy of the same webhook names v1, an
object of v1 is sent unconverted and the first policy does not match it. Therefore,
policies share a webhook only if they name a resource in the same versions.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kyverno_mp.controllers.webhook_config.rules import Entry

_Where: TypeAlias = frozenset[tuple[str, str, str]]
"""(group, version, scope)."""
_Place: TypeAlias = tuple[str, str]
"""(subresource, operation)."""


class NamedVersions:
    """The versions in which the policies of one webhook name each resource.

    K8S: a kind can be served in several groups, as Ingress was, so groups are compared,
    too.
    """

    __slots__ = ("_by_resource", "_entries", "_values")

    def __init__(self) -> None:
        self._entries: set[Entry] = set()
        self._by_resource: dict[str, dict[_Place, _Where]] = {}
        self._values: set[_Where] = set()

    def agree(self, entries: Iterable[Entry]) -> bool:
        """Return whether adding another policy's entries would change no match.

        Cost: linear in the new entries; for a wildcard, also in the existing ones.
        """
        given = frozenset(entries)
        return given == self._entries or all(
            self._agrees(resource, places)
            for resource, places in _by_resource(given).items()
        )

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the entries of a policy."""
        given = frozenset(entries)
        self._entries |= given
        for resource, places in _by_resource(given).items():
            # Entries for the same place name the same versions, because ``agree`` was
            # checked.
            self._by_resource.setdefault(resource, {}).update(places)
            self._values.update(places.values())

    def _agrees(self, resource: str, places: Mapping[_Place, _Where]) -> bool:
        if resource == "*":
            return all(self._values <= {found} for found in places.values())
        everywhere = set(self._by_resource.get("*", {}).values())
        ours = self._by_resource.get(resource, {})
        for (part, operation), found in places.items():
            # K8S: "pods/*" names Pods and all of their subresources.
            near = [ours.get((part, operation)), ours.get(("*", operation))]
            if part == "*":
                near += [ours[one] for one in ours if one[1] == operation]
            if not {*filter(None, near), *everywhere} <= {found}:
                return False
        return True


def _by_resource(entries: Iterable[Entry]) -> Mapping[str, Mapping[_Place, _Where]]:
    found: dict[str, dict[_Place, set[tuple[str, str, str]]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for entry in entries:
        where = (entry.group, entry.version, entry.scope)
        found[entry.resource][entry.subresource, entry.operation].add(where)
    return {
        resource: {place: frozenset(where) for place, where in places.items()}
        for resource, places in found.items()
    }
