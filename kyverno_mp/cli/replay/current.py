"""Hold the review of a replay that is being evaluated, and what it reports.

Room: cli. Takes: a Line. Gives: CurrentReview, which implements the ports of
webhook/review/dependencies.py from the Line, and NotedEngine. Next: verdicts.
Source: docs/replay.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.recording.format import Line


class NotedEngine(Engine):
    """An engine that keeps the context of the running evaluation."""

    __slots__ = ("context",)

    def __init__(self, cluster_data: ClusterData, clock: Clock) -> None:
        super().__init__(cluster_data, clock)
        self.context: RequestContext | None = None

    def open(
        self, request: Request, deadline_ns: int = 0, pace: Pace | None = None
    ) -> RequestContext:
        """Create the context, and keep it."""
        self.context = super().open(request, deadline_ns, pace)
        return self.context


@dataclass(slots=True)
class CurrentReview:
    """The current review; implements the ports for recorded data and results."""

    line: Line | None = None
    responses: Sequence[PolicyResponse] = ()
    codes: list[str] = field(default_factory=list)
    lacking: set[tuple[str, str]] = field(default_factory=set)
    audits: list[Callable[[], None]] = field(default_factory=list)
    """Audits that follow the answer."""
    audited: list[PolicyResponse] = field(default_factory=list)
    records_successes: bool = False

    # Implements webhook.ports.NamespaceLabels and Roles, and decode's top kind.

    def labels(self, _namespace: str) -> Mapping[str, str] | None:
        """Return the recorded labels."""
        assert self.line is not None
        return self.line.namespace_labels

    def roles_of(
        self, _namespace: str, _username: str, _groups: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the recorded roles."""
        assert self.line is not None
        return tuple(self.line.roles), tuple(self.line.cluster_roles)

    def top_kind(self, _group: str, _version: str, _resource: str) -> str | None:
        """Return the kind that policies match on."""
        assert self.line is not None
        return self.line.kind[2]

    # Implements webhook.ports.Records.

    def review(
        self,
        _request: Request,
        _webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Keep the responses of the policies."""
        del allowed, seconds
        self.responses = responses

    def audit(self, *_arguments: object) -> None:
        """Ignore audits, which do not change verdicts."""

    def http(self, *_arguments: object) -> None:
        """Ignore HTTP metrics, because no requests arrive."""

    def error(self, code: str) -> None:
        """Keep the code of an evaluation that failed."""
        self.codes.append(code)

    # Implements the audit queue of Dependencies, and webhook.ports.AuditSink.

    def put(self, task: Callable[[], None], _size: int, _namespace: str) -> None:
        """Keep an audit."""
        self.audits.append(task)

    def answered(self, *_arguments: object, **_named: object) -> None:
        """Ignore an answer, because the service returns it."""

    def deliver(
        self,
        _request: Request,
        _enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: Callable[[PolicyResponse], PolicyResponse],
        *,
        seconds: float = 0.0,
    ) -> None:
        """Keep the responses of auditing policies."""
        del seconds
        self.audited += map(with_messages, audited)
