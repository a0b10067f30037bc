"""Link again what could not be linked, at growing intervals.

Room: program. Takes: a link function, the error of its first call. Gives: Relinking,
StandIn. Next: unlinked_rule.py, cel_sources.py.

What this version cannot evaluate or decode stays an error. Anything else is an internal
error, which may not recur: each review that needs the policy takes the way of an
internal error, so the failurePolicy decides, and some reviews link it again. A new
generation keeps no stand-in, so it links at once.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from kyverno_mp.errors import InputError, SnapshotUnusable, StateError
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    RELINKING_PAUSE_NS,
    RELINKING_PAUSE_NS_MAX,
    RELINKING_SHARE,
)

T = TypeVar("T")
_NEVER: Final = -1


class _Record(Protocol):
    """The record of a policy in CEL."""

    @property
    def policy(self) -> PolicyIR: ...


RecordT = TypeVar("RecordT", bound=_Record)


def decoded(record: RecordT) -> RecordT:
    """Return the record. Raises: SnapshotUnusable if it only stands for a policy."""
    if not record.policy.is_decoded:
        raise SnapshotUnusable("snapshot.record", "the policy cannot be decoded")
    return record


class StandIn:
    """A policy or rule without its expressions, in place of one that is not linked."""

    __slots__ = ()


class Relinking(Generic[T]):
    """One policy or rule of a worker whose linking has failed.

    The first review tries again at once; later attempts follow after 1, 2, 4, ...
    seconds, and take at most a fixed share of one core.
    """

    __slots__ = ("_code", "_link", "_next_ns", "_pause_ns", "_whole")

    def __init__(self, link: Callable[[], T], error: Exception) -> None:
        is_final = isinstance(error, InputError | SnapshotUnusable)
        self._link = link
        self._whole: T | None = None
        self._pause_ns = RELINKING_PAUSE_NS
        self._next_ns = _NEVER if is_final else 0
        self._code = f" ({error.code})" if is_final else ""  # type: ignore[attr-defined] # both have a code

    @property
    def whole(self) -> T | None:
        """What is linked meanwhile, if it is."""
        return self._whole

    def linked(self, runtime: Runtime) -> T:
        """Return the linked policy or rule.

        Raises: the internal error of linking; StateError if it is not linked now;
        Preempted, because linking can take long.
        """
        linked = self._whole
        if linked is not None:
            return linked
        now_ns = runtime.monotonic_ns()
        if self._next_ns == _NEVER or now_ns < self._next_ns:
            message = f"the policy could not be linked{self._code}"
            raise StateError("program.unlinked", message)
        runtime.before_waiting()
        # Set first: other threads do not link it at the same time.
        self._next_ns = now_ns + self._pause_ns
        try:
            linked = self._whole = self._link()
        finally:
            ended_ns = runtime.monotonic_ns()
            pause_ns = max(self._pause_ns, (ended_ns - now_ns) * RELINKING_SHARE)
            self._next_ns = ended_ns + pause_ns
            self._pause_ns = min(2 * self._pause_ns, RELINKING_PAUSE_NS_MAX)
        return linked
