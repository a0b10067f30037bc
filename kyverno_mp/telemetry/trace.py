"""Record what a review, a reconcile or a command spent its time on.

Room: telemetry. Takes: the beginnings and ends of steps, in any thread. Gives: Trace;
External for calls of code that has no Trace at hand. Next: telemetry/traces.py queues
the finished ones. May touch: random numbers.
Source: docs/behaviour/controllers 9.3.

A Trace is a plain list until its root ends, so a step costs an append.

SAFETY: attributes are names of policies and rules, kinds, operations, outcomes and
codes. Nothing from an object, no user and no host of a policy's call is among them.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from kyverno_mp.errors import Error
from kyverno_mp.limits import SPANS_PER_TRACE_MAX, TRACE_NAMES_MAX

Attribute = str | int | bool | tuple[str, ...]
Attributes = Mapping[str, Attribute]
Link = tuple[int, int]
"""The ids of a trace and of one of its spans."""
POLICY: Final = "kyverno.policy"
ERROR_CODE: Final = "error.type"
_VALUE_CHARS_MAX: Final = 256


class Span(NamedTuple):
    """A finished step of a trace; times are those of ``time.monotonic_ns``."""

    name: str
    began_ns: int
    ended_ns: int
    attributes: Attributes
    error: str = ""
    """The code of the error that ended it."""
    is_call: bool = False
    """Whether it waited for another service."""


class Traces(Protocol):
    """What a Trace needs of its tracer."""

    slow_ns: int
    """Policies that take less get no step."""
    now_ns: Callable[[], int]

    def ended(self, trace: "Trace", /) -> None:
        """Take over a finished trace."""


class Trace:
    """One review, reconcile or command, and its steps so far."""

    __slots__ = (
        "_policy",
        "_policy_began_ns",
        "_tracer",
        "attributes",
        "began_ns",
        "ended_ns",
        "error",
        "is_ended",
        "is_server",
        "left_out",
        "link",
        "name",
        "parent_id",
        "policies",
        "results",
        "size",
        "span_id",
        "spans",
        "trace_id",
    )

    def __init__(
        self, tracer: Traces, name: str, ids: tuple[int, int], began_ns: int
    ) -> None:
        """``ids``: of the trace and of the caller's span; 0: no caller's span."""
        self._tracer = tracer
        self.name = name
        self.trace_id, self.parent_id = ids
        self.span_id = new_id(8)
        self.began_ns = began_ns
        self.ended_ns = 0
        self.attributes: dict[str, Attribute] = {}
        self.error = ""
        self.is_server = False
        """Whether it answers a request."""
        self.is_ended = False
        self.size = 0
        """The number of its steps when it ended, the root included."""
        self.left_out = 0
        """Steps beyond the limit."""
        self.link: Link | None = None
        """The review that this trace follows."""
        self.spans: list[Span] = []
        self.policies: list[tuple[Any, int, int]] = []
        """Policies that took long, with begin and end."""
        self.results: dict[str, Attributes] = {}
        """What policies decided, by their keys."""
        self._policy: Any = None
        self._policy_began_ns = 0

    def add(
        self,
        name: str,
        began_ns: int,
        attributes: Attributes | None = None,
        error: str = "",
        *,
        is_call: bool = False,
    ) -> None:
        """Add a step that ends now.

        A thread that is late may still run after the answer; its steps are dropped.
        """
        if self.is_ended:
            return
        if len(self.spans) >= SPANS_PER_TRACE_MAX:
            self.left_out += 1
            return
        now_ns = self._tracer.now_ns()
        self.spans.append(
            Span(name, began_ns, now_ns, attributes or {}, error, is_call)
        )

    def now_ns(self) -> int:
        """Return the time for the beginning of a step."""
        return self._tracer.now_ns()

    def step(self, name: str) -> None:
        """Add a step from the end of the last one until now."""
        self.add(name, self.spans[-1].ended_ns if self.spans else self.began_ns)

    def enter(self) -> None:
        """Let calls of this thread belong to the trace."""
        _ACTIVE.trace = self
        _ACTIVE.entered_ns = self._tracer.now_ns()

    def leave(self, name: str = "") -> None:
        """End ``enter`` and the policy that is being evaluated; add it as a step."""
        self.policy(None)
        if name:
            self.add(name, _ACTIVE.entered_ns)
        _ACTIVE.trace = None

    def leave_evaluation(self) -> None:
        """Leave if this thread has entered the trace, before its end."""
        if _ACTIVE.trace is self:
            self.leave("evaluate")

    def policy(self, policy: Any) -> None:
        """Begin the evaluation of a policy, which ends that of the one before.

        ``policy``: what ``Runtime.begin_policy`` gets; None: no policy follows.
        """
        before = self._policy
        if policy is before:
            return
        now_ns = self._tracer.now_ns()
        if before is not None:
            is_slow = now_ns - self._policy_began_ns >= self._tracer.slow_ns
            has_room = not self.is_ended and len(self.policies) < SPANS_PER_TRACE_MAX
            if is_slow and has_room:
                self.policies.append((before, self._policy_began_ns, now_ns))
        self._policy, self._policy_began_ns = policy, now_ns

    def follow(self, name: str) -> "Trace":
        """Return a new trace for work that follows this one, linked to it."""
        trace = Trace(self._tracer, name, (new_id(16), 0), self._tracer.now_ns())
        trace.link = self.trace_id, self.span_id
        return trace

    def end(self, attributes: Attributes | None = None, error: str = "") -> None:
        """End the root, and hand the trace over for sending; later calls do nothing."""
        if self.is_ended:
            return
        self.is_ended = True
        self.ended_ns = self._tracer.now_ns()
        self.attributes.update(attributes or {})
        self.error = error or self.error
        self.size = 1 + len(self.spans) + len(self.policies)
        self._tracer.ended(self)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        self.leave()
        self.end(error=code_of(error))


class _Active(threading.local):
    trace: Trace | None = None
    entered_ns = 0


_ACTIVE: Final = _Active()


class External:
    """A call of another service, as a step of the trace of the calling thread."""

    __slots__ = ("_began_ns", "_method", "_system", "_trace", "status")

    def __init__(self, system: str, method: str) -> None:
        """``system``: kubernetes, registry or service."""
        self._system = system
        self._method = method
        self._trace = _ACTIVE.trace
        self._began_ns = 0
        self.status = 0
        """The status of the response, 0: there was none."""

    def __enter__(self) -> Self:
        if self._trace is not None:
            self._began_ns = self._trace.now_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if self._trace is None:
            return
        facts: dict[str, Attribute] = {
            "peer.service": self._system,
            "http.request.method": method_of(self._method),
        }
        if self.status:
            facts["http.response.status_code"] = self.status
        self._trace.add(
            f"{self._system} {facts['http.request.method']}",
            self._began_ns,
            facts,
            code_of(error),
            is_call=True,
        )


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def method_of(method: str) -> str:
    """Return a method of HTTP; a policy can write anything."""
    return method if method in _METHODS else "_OTHER"


def code_of(error: BaseException | None) -> str:
    """Return the code of an error, never its message, which can quote anything."""
    if error is None:
        return ""
    return error.code if isinstance(error, Error) else type(error).__name__


def cut(text: str) -> str:
    """Return a name of bounded length."""
    return text[:_VALUE_CHARS_MAX]


def names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return some names of bounded length."""
    found: list[str] = []
    for text in texts:
        if len(found) >= TRACE_NAMES_MAX:
            break
        found.append(cut(text))
    return tuple(found)


def new_id(size: int) -> int:
    """Return a random id of ``size`` bytes, which is not zero."""
    return int.from_bytes(os.urandom(size), "big") or 1
