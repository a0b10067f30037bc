"""Define the sources of a leader's policies and data: folders or the API server.

Room: leader. Takes: nothing. Gives: Sources; leader/{folder,cluster_data}.py and
leader/cluster.py satisfy its Protocols. Next: leader/loop.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.status import Status
from kyverno_mp.leader.stored_document import Key


class PolicySource(Protocol):
    """Policies and exceptions, as documents by name."""

    def poll(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return the changes since the last call."""


class ClusterDataSource(Protocol):
    """The cluster data for policies."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The errors of unreadable inputs."""

    def poll(self, now_ns: int, *, force: bool) -> bool:
        """Return whether anything changed since the last call."""

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment by name; an unchanged one is the identical object."""


class ConfigurationSource(Protocol):
    """The operator's options at run time."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The errors of rejected values."""

    def poll(self) -> bool:
        """Return whether anything changed since the last call."""

    def values(self) -> Mapping[str, bytes]:
        """Return the content of the segment ``settings``."""


_NONE: Final[Mapping[Key, str]] = {}


def _always() -> bool:
    return True


def _ignore(_generation: int) -> None:
    """Ignore a generation."""


def _untold(_status: Status) -> None:
    """Ignore a status, which others read from its file."""


def _never(_wake: Callable[[], None]) -> None:
    """Never call ``wake``, because changes are found by polling."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of a leader.

    ``are_complete`` returns whether all sources were read at least once. ``published``
    is called after each poll with the generation of its policies. ``on_change``
    registers a callback, called in any thread when something changed. ``tell`` gets
    each status, for threads of this process. ``lost`` returns the policies whose author
    has lost a right that they use, a new object after each change. ``is_polled``
    returns whether something can change without a call of that callback.
    """

    policies: PolicySource | None
    cluster_data: ClusterDataSource
    configuration: ConfigurationSource
    are_complete: Callable[[], bool] = _always
    published: Callable[[int], None] = _ignore
    on_change: Callable[[Callable[[], None]], None] = _never
    tell: Callable[[Status], None] = _untold
    lost: Callable[[], Mapping[Key, str]] = lambda: _NONE
    is_polled: Callable[[], bool] = _always
