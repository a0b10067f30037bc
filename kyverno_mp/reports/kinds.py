"""Choose the resources to scan from the kinds that rules name.

Room: reports. Takes: a Client, the leader's directory, kind selectors. Gives: Kinds.
Next: reports/scan/coordinator.py. May touch: the API server through kube/discovery.py,
the clock.
Source: docs/behaviour/controllers 6.3.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.reports.named import Named
from kyverno_mp.values.kubernetes.kinds import KindSelector

_REFRESH_S: Final = 30.0
"""Delay until a new kind is scanned, while the leader publishes none."""
_NEEDED: Final = frozenset({"list", "watch"})
_EVENTS: Final = frozenset({("", "events"), ("events.k8s.io", "events")})
"""KYVERNO: Events are never reported."""


class Kinds:
    """The resources of the API server; one thread uses it."""

    def __init__(
        self,
        client: Client,
        monotonic_s: Callable[[], float],
        published: Callable[[], Directory] = lambda: Directory(()),
    ) -> None:
        """``published`` returns the leader's directory, empty before the first."""
        self._discovery = Discovery(client)
        self._published = published
        self._monotonic_s = monotonic_s
        self._asked_s = float("-inf")

    def refresh(self) -> bool:
        """Refresh the resources if due; return whether they changed.

        Raises: DependencyError.
        """
        published = self._published()
        if published.resources:
            before, self._discovery.directory = self._discovery.directory, published
            return published is not before and published != before
        now_s = self._monotonic_s()
        if now_s - self._asked_s < _REFRESH_S:
            return False
        changed = self._discovery.refresh()
        self._asked_s = now_s
        return changed

    def served(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of a kind, or None if it is not served."""
        return self._discovery.directory.of_kind(api_version, kind)

    def of(
        self, selectors: Iterable[KindSelector], named: Collection[Named] = ()
    ) -> list[Resource]:
        """Return the resources to scan, each in one version.

        A version that a rule names is preferred to the server's first version.
        """
        resources: dict[tuple[str, str], Resource] = {}
        ordered = sorted(selectors, key=lambda selector: "*" in selector.version)
        for selector in ordered:
            for candidate in self._discovery.directory.find(selector):
                if _NEEDED.issubset(candidate.verbs):
                    resources.setdefault((candidate.group, candidate.plural), candidate)
        for resource in self._discovery.directory.resources if named else ():
            is_named = (resource.group, resource.version, resource.plural) in named
            if (
                is_named
                and not resource.subresource
                and _NEEDED.issubset(resource.verbs)
            ):
                resources.setdefault((resource.group, resource.plural), resource)
        return [resource for key, resource in resources.items() if key not in _EVENTS]
