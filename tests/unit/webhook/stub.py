"""An engine that answers what a test says, and the parts around it."""

import json
from collections.abc import Callable, Sequence

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult


def response(
    status: str = "fail", *, action: str = "Enforce", failure_policy: str = "Fail"
) -> PolicyResponse:
    policy = PolicyIR(kind="ClusterPolicy", name="p", failure_policy=failure_policy)
    return PolicyResponse(
        policy, [RuleResult("r", "Validation", status, "m")], action=action
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
        self.needs_io = needs_io
        self.warns = bool(warn)
        self.audits = bool(audit)
        self.fails = fails
        self._enforce, self._warn, self._audit = enforce, warn, audit
        self._work = work

    def enforce(self, deadline_ns: int) -> list[PolicyResponse]:
        self._work(deadline_ns)
        return list(self._enforce)

    def enforce_pure(self, deadline_ns: int) -> list[PolicyResponse]:
        assert deadline_ns
        return []

    def warn(self, deadline_ns: int) -> list[PolicyResponse]:
        assert deadline_ns
        return list(self._warn)

    def audit(self, deadline_ns: int) -> list[PolicyResponse]:
        assert deadline_ns
        return list(self._audit)

    def in_words(self, response: PolicyResponse, deadline_ns: int) -> PolicyResponse:
        assert deadline_ns
        return response


class StubEvaluate:
    def __init__(self, plan: StubPlan | Exception | None = None) -> None:
        self.answer = plan
        self.asked: list[tuple[Request, frozenset[str], str]] = []

    def plan(
        self, request: Request, failure_policies: frozenset[str], policy_key: str
    ) -> StubPlan | None:
        self.asked.append((request, failure_policies, policy_key))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class StubRecords:
    def __init__(self) -> None:
        self.reviews: list[tuple[str, str, bool]] = []
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

    def audit(
        self, request: Request, webhook: str, responses: Sequence[PolicyResponse]
    ) -> None:
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
