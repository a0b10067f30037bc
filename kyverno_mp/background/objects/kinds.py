"""Keep the list of resources that the API server serves, for triggers and downstreams.

Room: background. Takes: a Client. Gives: Kinds. Next: background/objects/triggers.py,
background/objects/downstream.py. May touch: the API server through kube/discovery.py,
the clock.
Source: docs/behaviour/controllers 5.4.
"""

import threading
from collections.abc import Callable
from typing import Final

from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind

_ASK_AGAIN_S: Final = 5.0
_LISTED: Final = frozenset({"list", "delete"})


class Kinds:
    """The latest discovery results; threads may share it."""

    def __init__(self, client: Client, monotonic_s: Callable[[], float]) -> None:
        self._discovery = Discovery(client)
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._asked_s = -_ASK_AGAIN_S

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of a kind; ``api_version`` "" = any version.

        Raises: DependencyError.
        """
        resource = self._of_kind(api_version, kind)
        if resource is None:
            self._refresh()
            resource = self._of_kind(api_version, kind)
        return resource

    def serves(self, api_version: str, kind: str) -> bool:
        """Return whether a kind is served now, after a refresh of the list.

        Raises: DependencyError.
        """
        self._refresh()
        return self._of_kind(api_version, kind) is not None

    def find(self, selector: KindSelector) -> tuple[Resource, ...]:
        """Return the resources of a kind selector. Raises: DependencyError."""
        resources = self._discovery.directory.find(selector)
        if not resources:
            self._refresh()
            resources = self._discovery.directory.find(selector)
        return resources

    def of_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """Return a resource by its plural name, without subresources.

        Raises: DependencyError.
        """
        resource = self._of_plural(group, version, plural)
        if resource is None:
            self._refresh()
            resource = self._of_plural(group, version, plural)
        return resource

    def deletable(self) -> tuple[Resource, ...]:
        """Return one resource for each kind with list and delete.

        Raises: DependencyError.
        """
        self._refresh()
        chosen: dict[tuple[str, str], Resource] = {}
        for resource in self._discovery.directory.resources:
            if not resource.subresource and _LISTED.issubset(resource.verbs):
                chosen.setdefault((resource.group, resource.plural), resource)
        return tuple(chosen.values())

    def _of_kind(self, api_version: str, kind: str) -> Resource | None:
        directory = self._discovery.directory
        if api_version:
            return directory.of_kind(api_version, kind)
        return next(iter(directory.find(parse_kind(kind))), None)

    def _of_plural(self, group: str, version: str, plural: str) -> Resource | None:
        for resource in self._discovery.directory.resources:
            identity = (resource.group, resource.version, resource.plural)
            if identity == (group, version, plural) and not resource.subresource:
                return resource
        return None

    def _refresh(self) -> None:
        """Refresh the list, unless that was just done. Raises: DependencyError.

        Another thread may have refreshed it while this one waited, so that the caller
        has to look again in any case.
        """
        with self._lock:
            now_s = self._monotonic_s()
            if self._discovery.directory.resources and (
                now_s - self._asked_s < _ASK_AGAIN_S
            ):
                return
            self._discovery.refresh()
            self._asked_s = now_s
