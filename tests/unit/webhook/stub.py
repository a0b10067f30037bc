"""An engine that gives the answers a test defines, and the parts around it."""

import json
from collections.abc import Callable, Sequence

from kyverno_mp.errors import Error
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult


def response(
    status: str = "fail",
    *,
    action: str = "Enforce",
    failure_policy: str = "Fail",
    message: object = "m",
) -> PolicyResponse:
    policy = PolicyIR(kind="ClusterPolicy", name="p", failure_policy=failure_policy)
    return PolicyResponse(
        policy, [RuleResult("r", "Validation", status, str(message))], action=action
    )


class StubPlan:
    def __init__(
        self,
        *,
        enforce: Sequence[PolicyResponse] = (),
        warn: Sequence[PolicyResponse] = (),
        audit: Sequence[PolicyResponse] = (),
        needs_io: bool = False,
        fails: bool = True,
        work: Callable[[int], None] = lambda _deadline_ns: None,
    ) -> None:
        self.left_out: list[tuple[PolicyIR, Exception]] = []
        self.needs_io = needs_io
        self.warns = bool(warn)
        self.audits = bool(audit)
        self.fails = fails
        self.reads_namespace = True
        self.reads_registry = False
        self.triggers = False
        self.travels = self.travels_late = False
        self.has_reached = False
        """Whether ``reached`` was called with a deadline and a pace."""
        self._enforce, self._warn, self._audit = enforce, warn, audit
        self._work = work

    def triggered(self, deadline_ns: int, pace: Pace | None = None) -> list[Triggered]:
        assert not deadline_ns or pace is None
        return []

    def triggered_by_match(self, deadline_ns: int) -> list[Triggered]:
        assert deadline_ns
        return []

    def asks_for_labels(self) -> bool:
        return False

    def enforce(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> list[PolicyResponse]:
        del pace
        self._work(deadline_ns)
        return list(self._enforce)

    def reached(
        self, error: Exception, deadline_ns: int, pace: Pace
    ) -> list[PolicyResponse]:
        """Return an error for the only rule, because nothing was evaluated."""
        assert deadline_ns < pace.slice_ends_ns + 10**9
        self.has_reached = True
        text = f"{error.code}: {error}" if isinstance(error, Error) else "internal"
        failure_policy = "Fail" if self.fails else "Ignore"
        return [response("error", failure_policy=failure_policy, message=text)]

    def warn(self, deadline_ns: int, pace: Pace | None = None) -> list[PolicyResponse]:
        del pace
        assert deadline_ns
        return list(self._warn)

    def audit(self, deadline_ns: int, pace: Pace | None = None) -> list[PolicyResponse]:
        del pace
        assert deadline_ns
        return list(self._audit)

    def audit_ahead(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> list[PolicyResponse]:
        return self.audit(deadline_ns, pace)

    def travelling(
        self,
        responses: Sequence[PolicyResponse],
        deadline_ns: int,
        pace: Pace | None = None,
        *,
        slow: bool,
    ) -> list[PolicyResponse]:
        del responses, pace
        assert deadline_ns
        assert not slow
        return []

    def with_messages(
        self, response: PolicyResponse, deadline_ns: int, pace: Pace | None = None
    ) -> PolicyResponse:
        del pace
        assert deadline_ns
        return response


class StubEvaluate:
    def __init__(self, plan: StubPlan | Exception | None = None) -> None:
        self.answer = plan
        self.asked: list[tuple[Request, frozenset[str], str]] = []

    def plan(
        self,
        request: Request,
        failure_policies: frozenset[str],
        policy_key: str,
        pace: Pace | None = None,
    ) -> StubPlan | None:
        del pace
        self.asked.append((request, failure_policies, policy_key))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class StubRecords:
    def __init__(self) -> None:
        self.reviews: list[tuple[str, str, bool]] = []
        self.evaluated: list[int] = []
        """The number of reported policies of each review."""
        self.errors: list[str] = []

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        assert seconds >= 0
        assert isinstance(responses, list | tuple)
        self.reviews.append((webhook, request.operation, allowed))
        self.evaluated.append(len(responses))

    def audit(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        assert seconds >= 0
        self.reviews.append((webhook, request.operation, bool(responses)))

    def http(self, method: str, path: str, seconds: float) -> None:
        raise AssertionError((method, path, seconds))

    def error(self, code: str) -> None:
        self.errors.append(code)


def review(**changes: object) -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "web",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["dev"]},
        "object": {"kind": "Pod", "metadata": {"name": "web"}, "data": "geheim"},
        "oldObject": None,
        "dryRun": False,
        **changes,
    }
    return json.dumps({"request": request}).encode()
