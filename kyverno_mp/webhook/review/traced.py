"""Describe a review in its trace.

Room: webhook. Takes: a Trace, the review and what its policies decided. Gives: the
trace's attributes. Next: telemetry/traces.py sends it.
Source: docs/behaviour/controllers 9.3.

SAFETY: names of policies and rules, kind, operation, outcome, code; nothing else of the
request. Its uid is the API server's, and tells which review it is.
"""

from collections.abc import Sequence
from typing import Any, Final

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PolicyResponse
from kyverno_mp.telemetry.trace import Trace, cut, names
from kyverno_mp.telemetry.traces import Tracer

REVIEW: Final = "review"
_WORST: Final = (ERROR, FAIL)
_PASS: Final = "pass"  # noqa: S105 - a result
_SKIP: Final = "skip"


def undecoded(tracer: Tracer, parent: bytes, began_ns: int, code: str) -> None:
    """Trace a review that cannot be decoded."""
    trace = tracer.begin(REVIEW, parent, began_ns)
    if trace is not None:
        trace.is_server = True
        trace.end(error=code)


def observe(
    tracer: Tracer,
    parent: bytes,
    request: Request,
    webhook: str,
    times: tuple[int, int],
) -> Trace | None:
    """Begin the trace of a decoded review, and let its evaluation add to it.

    ``parent``: the caller's traceparent header. ``times``: of the arrival, and before
    decoding.
    """
    trace = tracer.begin(REVIEW, parent, times[0])
    if trace is None:
        return None
    trace.is_server = True
    trace.add("decode", times[1])
    trace.attributes |= {
        "kyverno.webhook": webhook,
        "kyverno.kind": cut(request.kind),
        "kyverno.operation": request.operation,
        "kyverno.uid": cut(request.uid),
    }
    request.observer = trace.policy
    return trace


def decided(
    trace: Trace, responses: Sequence[PolicyResponse], code: str, *, allowed: bool
) -> None:
    """End the trace of a review that is answered."""
    trace.leave_evaluation()
    if trace.policies:
        trace.results = {one.policy.key: _results(one) for one in responses}
    failed = [
        f"{response.policy.key}/{found.rule}"
        for response in responses
        for found in response.results
        if found.status in _WORST
    ]
    facts: dict[str, Any] = {"kyverno.allowed": allowed}
    if failed:
        facts["kyverno.failed"] = names(failed)
    trace.end(facts, code)


def _results(response: PolicyResponse) -> dict[str, Any]:
    statuses = [found.status for found in response.results]
    statuses += [_PASS] * len(response.passed) + [_SKIP] * len(response.skipped)
    worst = [status for status in (*_WORST, _PASS, _SKIP) if status in statuses]
    rules = (found.rule for found in response.results)
    return {
        "kyverno.rules": names((*rules, *response.passed, *response.skipped)),
        "kyverno.result": worst[0] if worst else "",
    }
