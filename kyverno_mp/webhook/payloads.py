"""Answer ``POST /json``: judge a JSON payload by the policies in evaluation mode JSON.

Room: webhook. Takes: bodies, the policies in force. Gives: a Falcon resource, whose
answer is a report; SnapshotPayloads. Next: program/payloads.py; webhook/rest.py
and webhook/authz/http_app.py route the path. May touch: threads, the clock, the log.
Source: docs/behaviour/cli 8, 10 (the report of a payload); docs/authorizer.md.

SAFETY: whoever reads a report takes a missing failure for a pass. So there is no report
unless every policy has been evaluated, or is an error in it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import falcon
import falcon.asgi
import orjson

from kyverno_mp.admission import decode as codes
from kyverno_mp.admission.decode import parse
from kyverno_mp.errors import Error, QueueFull, RequestInvalid
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import AUTHZ_ERROR_CHARS_MAX
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.scope import Begin
from kyverno_mp.program.payloads import Context, Judged, PayloadPolicies
from kyverno_mp.program.request import Request
from kyverno_mp.results.entries import merged_report, row_of, subject_of
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.http_errors import INTERNAL_ERROR, NO_SNAPSHOT, status_of
from kyverno_mp.webhook.review.lanes import Lane

_LOG = logging.getLogger(__name__)
PATH: Final = "/json"
REFUSED: Final = "refused"
_WORST: Final = ("error", "fail", "pass")
_INVALID: Final = frozenset({codes.EMPTY, codes.NOT_JSON, codes.TOO_DEEP})
Judge: TypeAlias = Callable[[dict[str, Json], int, Pace], Sequence[Judged]]
"""Judges a payload until a deadline. Raises: Error."""
Segments: TypeAlias = Callable[[], Sequence[CelSegment[Any]] | None]
"""Returns the newest policies of each kind that judges payloads, None if there are none
yet."""


class JsonPayloads:
    """Answers payloads in the threads of a lane, within the time of a review."""

    def __init__(
        self,
        lane: Lane,
        judge: Judge,
        timeout_ns: int,
        observe: Callable[[str, float], None],
        refused: Callable[[str], None],
    ) -> None:
        """``observe`` gets the outcome and the seconds; ``refused`` an error's code."""
        self._lane = lane
        self._judge = judge
        self._timeout_ns = timeout_ns
        self._observe = observe
        self._refused = refused

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        """Judge one payload."""
        arrived_ns = time.monotonic_ns()
        body = await req.stream.read()
        deadline_ns = arrived_ns + self._timeout_ns
        work = partial(self._answered, body, deadline_ns)
        answer = await self._lane.run(work, deadline_ns, _refusal)
        head, _, resp.data = answer.partition(b"\n")
        status, outcome, code = head.decode().split(" ")
        resp.status = int(status)
        resp.content_type = "application/json"
        if code:
            self._refused(code)
        self._observe(outcome, (time.monotonic_ns() - arrived_ns) / 1e9)

    async def on_options(
        self, _req: falcon.asgi.Request, _resp: falcon.asgi.Response
    ) -> None:
        """Reject OPTIONS: in an authorizer, only a decision or a report is a 200."""
        raise falcon.HTTPMethodNotAllowed(["POST"])

    def _answered(self, body: bytes, deadline_ns: int, pace: Pace) -> bytes:
        """Return a line with status, outcome and error code, then the answer's body."""
        try:
            payload = _payload_of(body)
            return _report(payload, self._judge(payload, deadline_ns, pace))
        except Error as error:
            return _refusal(error)
        except Exception:  # noqa: BLE001 - the exit for internal errors
            _LOG.exception("internal error while judging a payload")
            # SAFETY: its text may quote anything, and is not shown.
            return _refusal(QueueFull(INTERNAL_ERROR, "internal error"))


def _payload_of(body: bytes) -> dict[str, Json]:
    """Read a payload, within the limits of a review. Raises: RequestInvalid."""
    payload = parse(body)
    if type(payload) is not dict:
        raise RequestInvalid(codes.NOT_JSON, "the payload: expected an object")
    return payload


def _report(payload: dict[str, Json], judged: Sequence[Judged]) -> bytes:
    subject, now_s = subject_of(payload), int(time.time())
    rows = [row_of(policy, result, now_s, subject=subject) for policy, result in judged]
    words = Counter(row.result for row in rows)
    outcome = next((word for word in _WORST if words[word]), "pass")
    return b"200 %b \n%b" % (outcome.encode(), orjson.dumps(merged_report(rows)))


def _refusal(error: Error) -> bytes:
    status = 400 if error.code in _INVALID else status_of(error.code)
    message = error.message[:AUTHZ_ERROR_CHARS_MAX]
    body = orjson.dumps({"code": error.code, "message": message})
    return b"%d %b %b\n%b" % (status, REFUSED.encode(), error.code.encode(), body)


class SnapshotPayloads:
    """The policies of a webhook without a cluster, linked once for each generation."""

    def __init__(self, engine: Engine, segments: Segments, begin: Begin | None) -> None:
        self._engine = engine
        self._segments = segments
        self._begin = begin
        self._lock = threading.Lock()
        self._linked: tuple[tuple[int, ...], PayloadPolicies] | None = None

    def judge(
        self, payload: dict[str, Json], deadline_ns: int, pace: Pace
    ) -> list[Judged]:
        """Return the results of all policies. Raises: DeadlinePassed, QueueFull."""
        policies = self._current()
        context = self._engine.open(Request(), deadline_ns, pace)
        ports = self._engine.cluster_data.cel
        return policies.judge(payload, Context(context.runtime, ports, self._begin))

    def _current(self) -> PayloadPolicies:
        segments = self._segments()
        if segments is None:
            raise QueueFull(NO_SNAPSHOT, "the policies are not loaded yet")
        generations = tuple(segment.generation for segment in segments)
        with self._lock:
            if self._linked is None or self._linked[0] != generations:
                validating, images = (
                    map(segment.record, range(segment.policy_count))
                    for segment in segments
                )
                self._linked = generations, PayloadPolicies(validating, images)
            return self._linked[1]
