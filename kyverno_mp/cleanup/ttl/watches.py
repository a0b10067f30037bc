"""Watch the labelled objects of every resource that the account may clean up.

Room: cleanup. Takes: the served resources, the account's permissions. Gives: Watches:
one informer for each resource, or for each of its namespaces. Next:
cleanup/ttl/timers.py. May touch: the API server through kube/cache.py, threads, the
log.
Source: docs/behaviour/controllers 7 (TTL: Manager), 14.29.

A resource whose list or watch fails does not affect the others: each informer has its
own thread and retries. Permissions are checked again when they or the resources change.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from kyverno_mp.cleanup.ttl.label import Labelled, labelled
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import Right
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import CLEANUP_WATCHES_MAX
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.pool.term import FAILING
from kyverno_mp.telemetry.families import TTL_INFO
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.kubernetes.grants import TTL_VERBS
from kyverno_mp.values.ttl import LABEL

_log = logging.getLogger(__name__)
VERBS: Final = TTL_VERBS
_READS: Final = ("list", "watch")
_DUPLICATES: Final = frozenset({("events.k8s.io", "events")})
"""K8S: contains the same objects as the Events of the core group."""
Place = tuple[str, str, str]
"""Group and plural of a resource, and a namespace; "" = all."""


class Watches:
    """The informers; ``refresh`` starts and stops them, always in the same thread."""

    def __init__(
        self,
        client: Client,
        access: OwnAccess,
        bound_namespaces: Callable[[], Collection[str]],
        metrics: Metrics,
        on_change: Callable[[Place, Key], None],
    ) -> None:
        self._client = client
        self._access = access
        self._bound_namespaces = bound_namespaces
        self._metrics = metrics
        self._on_change = on_change
        self._lock = threading.Lock()
        self._informers: dict[Place, Informer[Labelled]] = {}
        self._kept: dict[Place, Informer[Labelled]] = {}
        """Resources whose labelled objects may be read and not deleted."""
        self._refreshed_for: object = None
        self._is_confirmed = False
        self._omitted = 0

    def refresh(self, directory: Directory, *, trusts_rules: bool = False) -> None:
        """Watch the resources that the account may watch.

        ``trusts_rules``: whether to ask for no permission again while the listed rules
        stay, even if an authorizer does not list its own. Raises: DependencyError.
        """
        bound = sorted(self._bound_namespaces())
        rules = self._access.rules(bound)
        inputs = (rules, directory, bound)
        is_known = rules.is_complete or trusts_rules
        is_equal = inputs == self._refreshed_for
        if is_known and is_equal and (self._is_confirmed or not rules.is_complete):
            return
        # The next round, too, asks for everything: each API server knows the rules from
        # a cache of its own, and one of the answers may have been older.
        self._is_confirmed = is_equal
        self._access.forget(rules)
        desired = self._desired(directory, bound, VERBS)
        readable = self._desired(directory, bound, _READS)
        self._keep(
            {
                location: scope
                for location, scope in readable.items()
                if location not in desired
            },
            CLEANUP_WATCHES_MAX - len(desired),
        )
        self._omitted = max(0, len(desired) - CLEANUP_WATCHES_MAX)
        for location in [
            informer for informer in self._informers if informer not in desired
        ]:
            self._stop(location)
        for location, scope in list(desired.items())[:CLEANUP_WATCHES_MAX]:
            running = self._informers.get(location)
            if running is not None and running.scope.resource != scope.resource:
                self._stop(location)
                running = None
            if running is None:
                self._start(location, scope)
        self._refreshed_for = inputs

    def _keep(self, desired: Mapping[Place, WatchScope], count: int) -> None:
        """Follow the objects whose label has no effect, for health and metrics."""
        watched = dict(list(desired.items())[: max(0, count)])
        for location in [
            location for location in self._kept if location not in watched
        ]:
            self._kept.pop(location).stop()
        for location, scope in watched.items():
            if location not in self._kept:
                self._kept[location] = Informer(self._client, scope, labelled)
                self._kept[location].start()

    def undeletable(self) -> dict[Right, str]:
        """Return the permissions that labelled objects need and the account lacks."""
        counted = {
            Right("delete", name_of(location), location[2]): len(informer)
            for location, informer in list(self._kept.items())
        }
        return {
            right: f"the TTL label has no effect on {number} of them"
            for right, number in counted.items()
            if number
        }

    def get(self, location: Place) -> Informer[Labelled] | None:
        """Return the informer of a resource and namespace."""
        with self._lock:
            return self._informers.get(location)

    def all(self) -> Mapping[Place, Informer[Labelled]]:
        """Return all informers."""
        with self._lock:
            return dict(self._informers)

    def stop(self) -> None:
        """Stop all threads."""
        places = list(self.all())
        stopping = [
            threading.Thread(target=self._stop, args=(location,)) for location in places
        ]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self._keep({}, 0)

    def problems(self) -> Iterator[str]:
        """Yield the resources that cannot be watched."""
        if self._omitted:
            yield (
                f"{self._omitted} resources above the limit of {CLEANUP_WATCHES_MAX}"
                " are not watched for TTL labels"
            )
        for (group, plural, namespace), informer in self.all().items():
            if informer.failures >= FAILING:
                suffix = f" in {namespace}" if namespace else ""
                name = name_of((group, plural, namespace))
                yield f"TTL watch of {name}{suffix}: {informer.last_error}"

    def _desired(
        self, directory: Directory, bound: Collection[str], verbs: Iterable[str]
    ) -> dict[Place, WatchScope]:
        """Return the scopes in which the account has the permissions.

        They are whole resources, or single namespaces of them.
        """
        desired: dict[Place, WatchScope] = {}
        for resource in preferred(directory.resources):
            for namespace in self._namespaces(resource, bound, verbs):
                location = (resource.group, resource.plural, namespace)
                desired[location] = WatchScope(
                    resource=resource,
                    namespace=namespace,
                    label_selector=LABEL,
                    metadata_only=True,
                )
        return desired

    def _namespaces(
        self, resource: Resource, bound: Collection[str], verbs: Iterable[str]
    ) -> list[str]:
        def may(namespace: str) -> bool:
            return all(self._access.allows(verb, resource, namespace) for verb in verbs)

        if may(""):
            return [""]
        return [
            namespace for namespace in bound if resource.namespaced and may(namespace)
        ]

    def _start(self, location: Place, scope: WatchScope) -> None:
        informer = Informer(self._client, scope, labelled)
        informer.on_change(lambda key: self._on_change(location, key))
        with self._lock:
            self._informers[location] = informer
        self._metrics.hold(TTL_INFO, labels_of(scope.resource), 1.0)
        _log.debug("TTL watch started", extra=fields(resource=scope.path))
        informer.start()

    def _stop(self, location: Place) -> None:
        with self._lock:
            informer = self._informers.pop(location)
        self._metrics.hold(TTL_INFO, labels_of(informer.scope.resource), 0.0)
        informer.stop()


def name_of(location: Place) -> str:
    """Return the name of a place's resource, such as ``deployments.apps``."""
    group, plural, _ = location
    return f"{plural}.{group}" if group else plural


def labels_of(resource: Resource) -> tuple[str, str, str]:
    """Return the values of the labels resource_group, _version and _resource."""
    return resource.group, resource.version, resource.plural


def preferred(resources: Iterable[Resource]) -> list[Resource]:
    """Return each resource with the three verbs once, in its first version."""
    by_plural: dict[tuple[str, str], Resource] = {}
    for resource in resources:
        name = (resource.group, resource.plural)
        if (
            resource.subresource
            or name in _DUPLICATES
            or not set(VERBS) <= set(resource.verbs)
        ):
            continue
        by_plural.setdefault(name, resource)
    return list(by_plural.values())
