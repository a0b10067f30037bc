"""Where a leader's policies and cluster data come from: folders, or the API server.

Room: leader. Takes: nothing. Gives: Sources, whose parts leader/{folder,world}.py and
leader/cluster.py satisfy by shape. Next: leader/loop.py. May touch: nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kyverno_mp.leader.folder import Changes


class PolicySource(Protocol):
    """Policies and exceptions, as documents by name."""

    def look(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return what changed since the last look."""


class WorldSource(Protocol):
    """What policies may read."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read."""

    def look(self, now_ns: int, *, force: bool) -> bool:
        """Tell whether anything changed since the last look."""

    def segments(self) -> Mapping[str, Mapping[str, bytes]]:
        """Return every segment by name; one that did not change is the same object."""


class ConfigurationSource(Protocol):
    """What the operator decides at run time."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What of it was refused."""

    def look(self) -> bool:
        """Tell whether anything changed since the last look."""

    def values(self) -> Mapping[str, bytes]:
        """Return the content of the segment ``settings``."""


def _always() -> bool:
    return True


def _nobody(_generation: int) -> None:
    """Hear of a generation where nobody asks."""


def _never(_wake: Callable[[], None]) -> None:
    """Wake nobody: what changed is found by looking."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources. ``are_whole``: everything was read at least once.

    ``published`` hears after each look with which generation its policies are in force.
    ``on_change`` is given what is to be called, in any thread, when something changed.
    """

    policies: PolicySource | None
    cluster_data: WorldSource
    configuration: ConfigurationSource
    are_whole: Callable[[], bool] = _always
    published: Callable[[int], None] = _nobody
    on_change: Callable[[Callable[[], None]], None] = _never
