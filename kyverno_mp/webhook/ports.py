"""Define Protocols for the objects of other rooms that the webhook uses.

Room: webhook. Gives: Plans and Plan (the engine), Records (telemetry), Roles,
NamespaceLabels, Filters (shared data and settings), AuditSink. Wired in wire.py.
May touch: nothing; the adapters do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.changes import Change
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json


class PlanOf(Protocol):
    """The policies selected for one request, but not yet run."""

    needs_io: bool
    """Whether a candidate can call the cluster, a service or a registry."""
    fails: bool
    """Whether a candidate has failurePolicy Fail."""
    reads_registry: bool
    """Whether a candidate can read from a registry, which counts as I/O."""
    reads_namespace: bool
    """Whether a candidate depends on the labels or the existence of the namespace."""


class Plan(PlanOf, Protocol):
    """The policies that may validate one request.

    Its methods can run in another thread than its constructor, one at a time. Only
    ``reached`` can run concurrently with another method.
    """

    warns: bool
    """Whether any auditing policies have emitWarning."""
    audits: bool
    """Whether there are rules whose effective action can be Audit."""
    left_out: list[tuple[PolicyIR, Exception]]
    """Policies with rules that could not be evaluated, and why; their responses contain
    an error for each."""

    travels: bool
    """Whether the plan has results for reports that only a review can produce."""
    travels_late: bool
    """Whether policies that can make external calls have such results, which are
    computed after the answer."""
    triggers: bool
    """Whether any generate or mutate-existing rules may match."""

    def triggered(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[Triggered]:
        """Return the triggered rules. Raises: Preempted from ``pace``."""

    def triggered_by_match(self, deadline_ns: int) -> Sequence[Triggered]:
        """Return the rules that the request may trigger, by match alone."""

    def asks_for_labels(self) -> bool:
        """Return whether the answer depends on labels of the request's namespace."""

    def enforce(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the enforcing rules. Raises: Preempted from ``pace``."""

    def reached(
        self, error: Exception, deadline_ns: int, pace: Pace
    ) -> Sequence[PolicyResponse]:
        """Return ``enforce``'s results so far, with ``error`` for the other rules."""

    def warn(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the auditing rules of the policies with emitWarning."""

    def audit(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate all auditing rules."""

    def audit_ahead(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the auditing policies with results for reports, except slow ones."""

    def travelling(
        self,
        responses: Sequence[PolicyResponse],
        deadline_ns: int,
        pace: Pace | None = None,
        *,
        slow: bool,
    ) -> Sequence[PolicyResponse]:
        """Return the results that must be sent to the reports pool, with messages.

        ``slow`` selects the policies that can make external calls, or all others.
        """

    def with_messages(
        self, response: PolicyResponse, deadline_ns: int, pace: Pace | None = None
    ) -> PolicyResponse:
        """Return a response of this plan with the results of all its rules."""


class Denials(Protocol):
    """Records the denials that a step of a gradually enforced policy adds."""

    def denied(self, policies: Sequence[PolicyIR], request: Request) -> None:
        """Record that these policies deny the request."""


PlanT_co = TypeVar("PlanT_co", bound=PlanOf, covariant=True)


class Plans(Protocol[PlanT_co]):
    """The policies of the snapshot in force, for one kind of webhook."""

    def plan(
        self,
        request: Request,
        failure_policies: frozenset[str],
        policy_key: str,
        pace: Pace | None = None,
    ) -> PlanT_co | None:
        """Select the candidates, None if no policy can match.

        If ``policy_key`` is empty, all policies are candidates. Raises:
        SnapshotUnusable if this worker has no snapshot yet; Preempted from ``pace``.
        """


class Records(Protocol):
    """The metrics that the webhook records."""

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count one answered review and the results of its policies."""

    def audit(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        """Count the results of auditing policies, which took ``seconds``."""

    def http(self, method: str, path: str, seconds: float) -> None:
        """Count one HTTP request."""

    def error(self, code: str) -> None:
        """Count one error by its code."""


class Roles(Protocol):
    """The role bindings of the cluster."""

    def roles_of(
        self, namespace: str, username: str, groups: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return ``(roles as ns:name, cluster roles)``, sorted, without duplicates."""


class NamespaceLabels(Protocol):
    """Labels of namespaces; program.ports.Namespaces satisfies it."""

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels, None if the namespace is unknown."""


class Filters(Protocol):
    """The configured exclusions, e.g. resourceFilters (behaviour/controllers 2.3)."""

    def excludes(self, request: Request) -> bool:
        """Return whether the request is always allowed."""


class AuditSink(Protocol):
    """Converts admission results into reports and events."""

    @property
    def records_successes(self) -> bool:
        """Whether to record reviews in which every rule passed."""

    def answered(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        """Record the responses known with the answer, e.g. a denial or a mutation.

        Called before the answer is sent, so it must not block; any thread can call it.
        """

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: Callable[[PolicyResponse], PolicyResponse],
        *,
        seconds: float = 0.0,
    ) -> None:
        """Record the results of one allowed review; called in the audit queue's thread.

        ``with_messages`` adds to a response the rules that the fast program evaluated.
        ``seconds``: duration of the evaluation of ``audited`` after the answer.
        """


class Recording(Protocol):
    """Records answered reviews, for ``kyverno-mp replay``."""

    def record(
        self,
        request: Request,
        path: str,
        responses: Sequence[PolicyResponse],
        patch: Sequence[dict[str, Json]],
        *,
        allowed: bool,
        failed: bool,
    ) -> None:
        """Record one review that no filter excludes, and its answer.

        Must not block; any thread can call it. ``failed``: the failurePolicy decided.
        """


class Triggers(Protocol):
    """Records triggered rules for the background pool."""

    def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
        """Record the rules that an allowed request triggers, before its answer is sent.

        Must not block; any thread can call it.
        """

    def changed(self, request: Request, change: Change) -> None:
        """Record that an allowed request changes a source or a generated object."""


class Results(Protocol):
    """Records results that only reviews can produce, for the reports pool.

    Called before the answer is sent, so it must not block; any thread can call it.
    """

    def takes(self, request: Request) -> bool:
        """Return whether an object exists whose report gets the results."""

    def validated(self, request: Request, responses: Sequence[PolicyResponse]) -> None:
        """Record results of an allowed request for reports, with their messages."""

    def evaluated(
        self,
        request: Request,
        responses: Sequence[PolicyResponse],
        derived: Sequence[PolicyResponse],
    ) -> None:
        """Record results of policies in CEL; scans also produce ``derived``."""

    def mutated(self, request: Request, responses: Sequence[PolicyResponse]) -> None:
        """Record the results of mutate rules."""

    def verified(self, request: Request, responses: Sequence[PolicyResponse]) -> None:
        """Record the results of verifyImages rules."""
