"""Decide requests of a proxy: in the event loop, or in a thread if that takes long.

Room: webhook. Takes: the Authorizer in force, its ports, the operator's options.
Gives: Deciding, Outcome. Next: http_app.py, grpc_server.py. May touch: threads, the
clock, the log, the worker's metric page.
Source: docs/behaviour/cel 15.1, 15.6.

SAFETY: whatever goes wrong - an error of a policy or of this program, a deadline, too
many requests, no policies yet - is an Outcome with an error, and an error never lets a
request through.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from kyverno_mp.errors import DeadlinePassed, Error, Preempted, QueueFull
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.cel.authz.tokens import KeySetPort
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.limits import AUTHZ_ERROR_CHARS_MAX, INLINE_SLICE_NS
from kyverno_mp.program.authorization import Authorizer, Check
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.webhook.review.pace import EventLoopPace, LongEvaluations

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
ALLOW: Final = "allow"
DENY: Final = "deny"
ERROR: Final = "error"
_SHOWN_MAX: Final = 512


class Outcome(NamedTuple):
    """What became of one request.

    ``response``: a policy's answer, None for the default decision and for errors.
    ``error``: why it could not be decided, "" if it was.
    """

    is_allowed: bool
    response: Message | None = None
    error: str = ""
    source: str = "policy"
    """What decided: policy, default, or server."""
    policy: str = ""

    @property
    def decision(self) -> str:
        """The decision in metrics and logs: allow, deny or error."""
        if self.error:
            return ERROR
        return ALLOW if self.is_allowed else DENY


class Asked(NamedTuple):
    """What is logged about a request: never a header's value, body or query."""

    method: str
    host: str
    path: str


class Options(NamedTuple):
    """The operator's options."""

    mode: str
    """HTTP or Envoy."""
    denies_by_default: bool
    timeout_s: float
    threads: int
    waiting_max: int
    logs: str
    """Which decisions are logged: off, denied, all."""


class Access(NamedTuple):
    """What policies may read besides the request."""

    ports: CelPorts = CelPorts()
    key_sets: KeySetPort | None = None


class Deciding:
    """Decides requests; one for each worker."""

    def __init__(
        self,
        options: Options,
        authorizer: Callable[[], Authorizer | None],
        access: Access,
        observe: Callable[[str, str, str, float], None],
    ) -> None:
        """``observe`` gets decision, source, policy and seconds of each request."""
        self.options = options
        self._authorizer = authorizer
        self._access = access
        self._observe = observe
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="authz")
        self._running = 0
        self.long_evaluations = LongEvaluations()

    def authorizer(self) -> Authorizer:
        """Return the policies in force. Raises: Error if there are none yet."""
        authorizer = self._authorizer()
        if authorizer is None:
            raise not_loaded()
        return authorizer

    def check(self, request: Message, runtime: Runtime) -> Check:
        """Return a check with this worker's access."""
        return Check(request, runtime, *self._access)

    def outcome(self, request: Message, runtime: Runtime) -> Outcome:
        """Decide a request. Raises: Error, Preempted."""
        decision = self.authorizer().decide(self.check(request, runtime))
        if decision is None:
            return Outcome(
                is_allowed=not self.options.denies_by_default, source="default"
            )
        policy = decision.policy.name
        if decision.error is not None:
            return Outcome(
                is_allowed=False, error=shown(decision.error.message), policy=policy
            )
        return Outcome(decision.is_allowed, decision.response, policy=policy)

    async def run(
        self, work: Callable[[Runtime], T], *, arrived_ns: int, is_pure: bool
    ) -> T:
        """Run ``work`` within the time limit. Raises: Error.

        ``is_pure``: it declares no external calls, so it is tried in the event loop.
        """
        deadline_ns = arrived_ns + int(self.options.timeout_s * 1e9)
        if is_pure:
            pace = EventLoopPace(time.monotonic_ns() + INLINE_SLICE_NS)
            try:
                return work(runtime_of(deadline_ns, pace))
            except Preempted:
                # It takes long, and starts over in a thread.
                pass
        return await self._in_thread(work, deadline_ns)

    async def _in_thread(self, work: Callable[[Runtime], T], deadline_ns: int) -> T:
        if self._running >= self.options.threads + self.options.waiting_max:
            raise QueueFull("webhook.no_room", "too many requests are being decided")

        def paced() -> T:
            if time.monotonic_ns() > deadline_ns:
                raise _late()
            with self.long_evaluations.pace() as pace:
                return work(runtime_of(deadline_ns, pace))

        self._running += 1
        running = asyncio.get_running_loop().run_in_executor(self._pool, paced)
        # Until the thread has ended, and not only until the answer.
        running.add_done_callback(self._ended)
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        done, _ = await asyncio.wait((running,), timeout=left_s)
        if not done:
            raise _late()
        return running.result()

    def _ended(self, running: "asyncio.Future[T]") -> None:
        self._running -= 1
        if not running.cancelled():
            running.exception()  # Otherwise asyncio logs it, with its text.

    def decided(self, outcome: Outcome, asked: Asked, arrived_ns: int) -> None:
        """Count a request, and log it if the operator wants to."""
        seconds = (time.monotonic_ns() - arrived_ns) / 1e9
        decision = outcome.decision
        self._observe(decision, outcome.source, outcome.policy, seconds)
        logs = self.options.logs
        if logs == "all" or (logs == "denied" and decision != ALLOW):
            line = {
                "mode": self.options.mode,
                "method": asked.method[:_SHOWN_MAX],
                "host": asked.host[:_SHOWN_MAX],
                "path": asked.path.partition("?")[0][:_SHOWN_MAX],
                "decision": decision,
                "source": outcome.source,
                "policy": outcome.policy,
                "ms": round(seconds * 1e3, 3),
            }
            _LOG.info("request decided", extra={"fields": line})

    def stop(self) -> None:
        """End the threads that wait for work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def failed(error: Exception) -> Outcome:
    """Return the outcome of a request that could not be judged.

    SAFETY: the text of an unexpected error may quote anything, and is not shown.
    """
    if isinstance(error, Error):
        return Outcome(is_allowed=False, error=shown(error.message), source="server")
    _LOG.error("internal error while deciding a request", exc_info=error)
    return Outcome(is_allowed=False, error="internal error", source="server")


def shown(message: str) -> str:
    """Return an error's text for the proxy: one line without control characters."""
    text = "".join(char if char.isprintable() else " " for char in message)
    return text[:AUTHZ_ERROR_CHARS_MAX] or "error"


def _late() -> DeadlinePassed:
    return DeadlinePassed("webhook.deadline", "the request was not decided in time")


def not_loaded() -> QueueFull:
    """Return the error of a worker that has no policies yet."""
    return QueueFull("webhook.no_snapshot", "the policies are not loaded yet")


def runtime_of(deadline_ns: int, pace: Pace) -> Runtime:
    """Return the budget and the clock of one request."""
    return Runtime(
        now=lambda: datetime.now(UTC),
        monotonic_ns=time.monotonic_ns,
        deadline_ns=deadline_ns,
        pace=pace,
    )
