"""Select the policies in CEL of a webhook's path: what all kinds share.

Room: program. Takes: Request, a CelSource, the names in the path. Gives: CelPlannerOf,
PathPolicies, UNKNOWN. Next: plan.py, program/cel_policies/plan.py,
program/cel_policies/generating_plan.py, program/image_policies/plan.py.
Source: docs/behaviour/cel 9.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.admission_policy.match import resource_of
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.source import CelSource

UNKNOWN: Final = "webhook.policy_unknown"
"""Code of a path with a policy that this worker does not have yet."""


class _Linked(Protocol):
    """A linked policy; ``ir`` is a record with a field ``policy``."""

    @property
    def ir(self) -> Any: ...


LinkedT = TypeVar("LinkedT", bound=_Linked)
PlanT = TypeVar("PlanT")


class PathPolicies(Generic[LinkedT]):
    """The policies of one snapshot generation, by the paths of webhooks."""

    __slots__ = ("_knows", "_met", "_source")

    def __init__(
        self, source: CelSource[LinkedT], knows: Callable[[str], bool]
    ) -> None:
        """``knows`` returns whether a policy key exists or existed until recently."""
        self._source = source
        self._knows = knows
        self._met: Iterable[str] | None = None
        """The keys of the last path that this generation was found to have."""

    def require(self, keys: Iterable[str]) -> None:
        """Check that the worker has these policies.

        Raises: SnapshotUnusable for a policy that another replica registered and that
        this worker does not have yet.

        PERF: a path can name a thousand policies, and reviews share its names.
        """
        if keys is self._met:
            return
        for key in keys:
            if not self._knows(key):
                raise SnapshotUnusable(UNKNOWN, f"policy {key} is not known yet")
        self._met = keys

    def _named(
        self,
        request: Request,
        namespace: str,
        names: frozenset[str],
        pace: Pace | None,
    ) -> list[LinkedT]:
        """Return the policies that may apply; ``names``: as for ``plan``."""
        policies = self._source.candidates(request, namespace, pace)
        if not names:
            return policies
        return [each for each in policies if each.ir.policy.name in names]


class CelPlannerOf(PathPolicies[LinkedT], Generic[LinkedT, PlanT]):
    """Creates plans from one snapshot generation."""

    __slots__ = ("_background_user", "_make")

    def __init__(
        self,
        source: CelSource[LinkedT],
        knows: Callable[[str], bool],
        make: Callable[[Request, Sequence[LinkedT]], PlanT],
        background_user: str = "",
    ) -> None:
        """``make`` creates the plan for the policies that may apply.

        ``background_user``: policies skip its requests unless they opt in.
        """
        super().__init__(source, knows)
        self._make = make
        self._background_user = background_user

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> PlanT | None:
        """Select the policies of a path; return None if none applies.

        ``names``: the policies in the path; empty: all. Raises: Preempted, as ``pace``
        does.
        """
        policies = self.of_path(request, names, pace, is_namespaced=is_namespaced)
        return self._make(request, policies) if policies else None

    def of_path(
        self,
        request: Request,
        names: frozenset[str],
        pace: Pace | None,
        *,
        is_namespaced: bool,
    ) -> list[LinkedT]:
        """Return the policies of a path that may apply, as for ``plan``."""
        if is_namespaced and not is_in_namespace(request):
            return []
        namespace = request.namespace if is_namespaced else ""
        policies = self._named(request, namespace, names, pace)
        if self._background_user and request.username == self._background_user:
            return [each for each in policies if not each.ir.skips_background]
        return policies


def is_in_namespace(request: Request) -> bool:
    """Return whether the policies of the request's namespace apply to its object.

    A Namespace does not belong to itself (docs/differences.md).
    """
    return bool(request.namespace) and not is_namespace(request)


def is_namespace(request: Request) -> bool:
    """Return whether the object is a Namespace.

    K8S: other API groups can have a kind Namespace, too.
    """
    group, _, resource = resource_of(request)
    return (group, resource) == ("", "namespaces")
