"""Define all errors of the program, grouped by who must act and matched by stable code.

Room: errors (below every other). Gives: the error classes that all rooms raise.
Expected results of a rule (pass, fail, skip) are values, never errors.

Error:
      InputError        the author of a policy, or the caller, must act
        PolicyInvalid     a policy document cannot be accepted
        RequestInvalid    an admission review cannot be understood
        SettingInvalid    an environment variable, flag or settings file is invalid
        ExpressionInvalid an expression does not parse
        ExpressionFailed  an expression or substitution failed at run time
          NamespaceGone     the namespace of a listed object is gone
        BudgetExceeded    an expression spent its steps or bytes
      DependencyError   the operator must act; retry later (retry_after_s)
        KubeUnavailable, KubeConflict, KubeNotFound, KubeRefused, KubeExpired
        RegistryUnavailable, DeadlinePassed
      StateError        the local machine is in an unsuitable state
        SnapshotUnusable, LeaseLost, QueueFull, Preempted
"""

from typing import NamedTuple, TypeVar


class Where(NamedTuple):
    """The location of an error; any part may be empty.

    Shape: ``Where(policy="ns/name", rule="r", path="spec.rules[0].match")``.
    """

    policy: str = ""
    rule: str = ""
    path: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [
            f"{label} {value}"
            for label, value in (
                ("policy", self.policy),
                ("rule", self.rule),
                ("path", self.path),
                ("file", self.file),
            )
            if value
        ]
        if self.line:
            parts.append(f"line {self.line}")
        return ", ".join(parts)


NOWHERE = Where()
_AnError = TypeVar("_AnError", bound=Exception)


class Error(Exception):
    """Base of all errors of kyverno-mp.

    ``code`` is a stable ``room.reason`` string for tests and metrics. ``message`` is
    for people; its text can change, unless it must equal upstream's.
    """

    def __init__(self, code: str, message: str, where: Where = NOWHERE) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where


class InputError(Error):
    """The author of a policy or the caller must act."""


class PolicyInvalid(InputError):
    """A policy document cannot be accepted."""


class RequestInvalid(InputError):
    """An admission review or a resource cannot be understood."""


class SettingInvalid(InputError):
    """A setting has a value that cannot be used."""


class ExpressionInvalid(InputError):
    """An expression does not parse."""


class ExpressionFailed(InputError):
    """An expression, substitution or look-up failed while a rule ran."""


class NamespaceGone(ExpressionFailed):
    """The namespace of a listed object is gone, and so is the object."""


class BudgetExceeded(InputError):
    """An expression spent its budget of steps or bytes.

    This is not an ExpressionFailed: Kyverno ignores some failed expressions (a skipped
    foreach element, an ignored exception), but an exhausted budget must not result in a
    pass.
    """


class DependencyError(Error):
    """Something outside of this process is unavailable now."""

    retry_after_s: float = 1.0


class KubeUnavailable(DependencyError):
    """The API server cannot answer."""


class KubeConflict(DependencyError):
    """An object changed between read and write."""


class KubeNotFound(DependencyError):
    """The API server does not know the object or the resource."""


class KubeRefused(DependencyError):
    """The API server rejects the request: forbidden, invalid or too large."""


class KubeExpired(DependencyError):
    """A resource version or a page is too old (410 Gone); list again."""


class RegistryUnavailable(DependencyError):
    """An OCI registry cannot answer."""

    is_connected: bool = False
    """Whether the registry accepted the connection."""


class DeadlinePassed(DependencyError):
    """The caller's deadline has passed."""

    is_connected: bool = False
    """Whether the server accepted the connection."""


class StateError(Error):
    """The local state of this process or machine does not allow the operation."""


class SnapshotUnusable(StateError):
    """A snapshot file is damaged, not ours or has another layout."""


class LeaseLost(StateError):
    """This replica no longer holds the lease."""


class QueueFull(StateError):
    """A bounded queue is full."""


class Preempted(StateError):
    """An evaluation used up the time slice of its thread and starts over elsewhere.

    Code that handles errors of rules or policies must not catch it, because the rule or
    policy did not fail.
    """


def without_frames(error: _AnError) -> _AnError:
    """Return the error without the frames that it has passed through.

    SAFETY: use it for an error that is stored beyond its ``except`` block. A frame
    refers to its callers, so an error with frames can form a reference cycle that keeps
    the whole review in memory until a garbage collection, which workers avoid. For an
    internal error, the notes contain the location.
    """
    trace = error.__traceback__
    while trace is not None and not isinstance(error, Error):
        code = trace.tb_frame.f_code
        error.add_note(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}\n")
        trace = trace.tb_next
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
