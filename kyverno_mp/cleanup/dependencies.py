"""Define the dependencies of the clean-up controller.

Room: cleanup. Takes: nothing. Gives: CleanupDependencies. Next:
cleanup/start.py.
Source: docs/architecture.md 2; docs/behaviour/controllers 7.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import MissingRights
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings


def _no_exclusions(_request: Request) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupDependencies:
    """The controller's dependencies; any thread may call their functions."""

    client: Client
    """Acts as the clean-up account."""
    cluster_data: ClusterData
    """Data that policies may read: namespace labels, global context, API calls (by the
    same account)."""
    events: EventSink
    metrics: Metrics
    settings: Settings
    holds_lease: Callable[[], bool]
    """Called before each write."""
    health: Callable[[Sequence[str]], None]
    """Called every few seconds with the current problems; empty = healthy."""
    is_excluded: Callable[[Request], bool] = _no_exclusions
    """Returns whether the operator's resourceFilters exempt an object."""
    served: Callable[[], Directory] = lambda: Directory(())
    """Returns the resources that the leader has published, without a call."""
    bound_namespaces: Callable[[], Collection[str]] = tuple
    """Namespaces with a RoleBinding of the clean-up account."""
    rights: MissingRights = field(default_factory=MissingRights)
    """Gets the permissions that TTL labels need and the account lacks."""
    author_reason: Callable[[Resource, Key], str] = lambda _resource, _key: ""
    """Returns the right that a policy uses and its author lacks, or ""."""
    clock: Clock = field(default_factory=Clock)
