"""Define a policy's plan for its runs: the kinds to list, the decision on an object.

Room: cleanup. Takes: a linked policy. Gives: Plan and Judge; CleanupPlan for
CleanupPolicies. Next: cleanup/scan.py, cleanup/evaluator.py; cleanup/deleting.py has
the plan of DeletingPolicies.
Source: docs/behaviour/controllers 7 (Matching).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kyverno_mp.ir.cel_policies import DeletingPolicyIR
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.match import FilterIR, KindIR
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.cleanup import LinkedCleanup
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.wildcard import contains_wildcard


class WantedKind(NamedTuple):
    """A kind as the policy spells it, and the resources that serve it.

    ``problem``: why its objects cannot be listed, or "". ``is_versioned``: the policy
    distinguishes versions, so each is listed.
    """

    text: str
    resources: Sequence[Resource]
    problem: str = ""
    is_versioned: bool = False


class Judge(Protocol):
    """Decides about objects; threads may share it."""

    reads_labels: bool
    """The decision depends on the labels of the object's namespace."""
    reads_namespace: bool
    """The decision also depends on other parts of the Namespace."""
    names_resources: bool
    """The policy names resources, not kinds."""

    def selects(self, request: Request) -> bool:
        """Return whether match and exclude select the object. Raises: InputError."""

    def holds(self, context: RequestContext, namespace: Json | None) -> bool:
        """Return whether the conditions on a selected object are true.

        ``namespace``: its Namespace if it was just read live, otherwise None.
        Raises: InputError, DependencyError.
        """


class Plan(Protocol):
    """A compiled policy of any kind."""

    @property
    def namespace(self) -> str:
        """The only namespace of its objects; "" = all."""

    @property
    def schedule(self) -> str:
        """The schedule in cron syntax."""

    @property
    def propagation(self) -> str:
        """``deletionPropagationPolicy``; "" = the default."""

    def kinds(self, directory: Directory) -> Iterable[WantedKind]:
        """Return the kinds that the policy names."""

    def exact(self, resource: Resource) -> tuple[list[str], list[str]]:
        """Return the only names and the only namespaces of the objects; [] = any."""

    def judge(self, data: ClusterData) -> Judge:
        """Return the judge of the objects of one run."""


class OfPolicy:
    """The properties of a policy of any kind that apply to all its objects."""

    def __init__(self, ir: CleanupIR | DeletingPolicyIR) -> None:
        self.namespace = ir.policy.namespace
        self.schedule = ir.schedule
        self.propagation = ir.propagation


class CleanupPlan(OfPolicy):
    """The plan of a CleanupPolicy or ClusterCleanupPolicy."""

    def __init__(self, linked: LinkedCleanup) -> None:
        super().__init__(linked.ir)
        self._linked = linked
        self._ir = linked.ir

    def kinds(self, directory: Directory) -> Iterator[WantedKind]:
        """Return the kinds of the match block; subresources cannot be deleted."""
        named = dict.fromkeys(
            k for filter_ir in self._ir.match.filters for k in filter_ir.kinds
        )
        for kind in named:
            if not kind.subresource:
                yield _wanted(kind, directory)

    def exact(self, resource: Resource) -> tuple[list[str], list[str]]:
        """Return the only names and the only namespaces of the objects; [] = any."""
        filters = [
            filter_ir
            for filter_ir in self._ir.match.filters
            if _names(filter_ir, resource)
        ]
        return (
            exact_texts(
                filter_ir.names or ((filter_ir.name,) if filter_ir.name else ())
                for filter_ir in filters
            ),
            exact_texts(filter_ir.namespaces for filter_ir in filters),
        )

    def judge(self, _data: ClusterData) -> Judge:
        """Return the judge of the objects of one run."""
        return _CleanupJudge(self._linked)


class _CleanupJudge:
    """Decides by match, exclude and conditions; the engine loads context entries."""

    reads_namespace = False
    names_resources = False

    def __init__(self, linked: LinkedCleanup) -> None:
        self._linked = linked
        blocks = (linked.ir.match, linked.ir.exclude)
        self.reads_labels = any(
            filter_ir.namespace_selector is not None
            for block in blocks
            for filter_ir in (block.filters if block is not None else ())
        )

    def selects(self, request: Request) -> bool:
        return self._linked.selects(request)

    def holds(self, context: RequestContext, _namespace: Json | None) -> bool:
        return self._linked.holds(context)


def _wanted(kind: KindIR, directory: Directory) -> WantedKind:
    name = kind.text or kind.kind
    if contains_wildcard(kind.kind):
        # Upstream cannot list these kinds either, because no such kind exists.
        return WantedKind(
            name, (), f"kind {name}: clean-up supports no wildcards in kinds"
        )
    selector = KindSelector(kind.group, kind.version, kind.kind, "")
    return WantedKind(name, directory.find(selector))


def _names(filter_ir: FilterIR, resource: Resource) -> bool:
    return any(kind.kind == resource.kind for kind in filter_ir.kinds)


def exact_texts(lists: Iterable[tuple[str, ...]]) -> list[str]:
    """Return all names; none if any list is empty or has a wildcard."""
    values: dict[str, None] = {}
    for listed in lists:
        if not listed or any(map(contains_wildcard, listed)):
            return []
        values |= dict.fromkeys(listed)
    return list(values)
