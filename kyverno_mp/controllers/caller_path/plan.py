"""Decide which secret path segments exist and which one is registered.

Room: controllers. Takes: Paths as stored in the Secret, Facts. Gives: the next Paths.
Next: controllers/caller_path/controller.py stores them.
Source: docs/SECURITY.md (the caller).

A new segment is known to every replica before it is registered, and the old one stays
valid until no API server can use it any more. So no review is lost.

    known by nobody -> stored -> known by every replica -> registered -> the only one
"""

from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.limits import CALLER_PATH_ROTATE_S_MIN
from kyverno_mp.snapshot.callers import Callers, is_segment

KNOWN_MAX: Final = 2
"""The registered segment, and its successor or predecessor."""


class Path(msgspec.Struct, frozen=True):
    """One segment. ``made``: Unix time in seconds."""

    segment: str
    serial: int
    made: float

    def __repr__(self) -> str:
        """Hide the secret."""
        return f"Path(serial={self.serial})"


class Paths(msgspec.Struct, frozen=True):
    """The content of the Secret.

    ``known``: the valid segments, the oldest first. ``registered``: the number of the
    one in the webhook configurations, 0 if these have none. ``since``: Unix time of its
    registration. ``exposed``: a requester may have seen it.
    """

    known: tuple[Path, ...] = ()
    registered: int = 0
    since: float = 0.0
    exposed: bool = False

    def segment(self) -> str:
        """Return the registered segment, "" if there is none."""
        return next(
            (one.segment for one in self.known if one.serial == self.registered), ""
        )

    def callers(self, *, required: bool) -> Callers:
        """Return what workers need."""
        segments = tuple(one.segment for one in self.known)
        serial = self.known[-1].serial if self.known else 0
        return Callers(segments, serial, required)

    def is_sound(self) -> bool:
        """Return whether the content can be what this program stored."""
        serials = [one.serial for one in self.known]
        return (
            len(serials) <= KNOWN_MAX
            and serials == sorted(set(serials))
            and all(one.serial > 0 and is_segment(one.segment) for one in self.known)
            and self.registered in (0, *serials)
        )


class Facts(msgspec.Struct, frozen=True):
    """The state of the cluster. ``now``: Unix time in seconds."""

    now: float
    can_keep: bool
    """Every replica that can answer understands paths with a segment."""
    all_know: Callable[[int], bool]
    """Returns whether every replica accepts a segment, by its number."""
    is_written: Callable[[str], bool]
    """Returns whether all our webhook configurations have this segment."""
    exposed: bool = False
    """A call has failed, so that the API server may have shown its path."""


def plan(
    paths: Paths,
    facts: Facts,
    new: Callable[[], str],
    *,
    overlap_s: float,
    rotate_s: float,
) -> Paths:
    """Return the next state; it is the same object if nothing is due."""
    now = facts.now
    if not paths.known:
        # Greater than the number of any segment that a lost Secret contained.
        return Paths((Path(new(), max(1, int(now)), now),), since=now)
    if facts.exposed and not paths.exposed:
        return msgspec.structs.replace(paths, exposed=True)
    newest = paths.known[-1]
    if paths.registered and not facts.can_keep:
        return msgspec.structs.replace(paths, registered=0, since=now)
    if paths.registered != newest.serial:
        if facts.can_keep and facts.all_know(newest.serial):
            return msgspec.structs.replace(paths, registered=newest.serial, since=now)
        return paths
    if not (facts.is_written(newest.segment) and has_passed(overlap_s, paths, now)):
        return paths
    if len(paths.known) > 1:
        return msgspec.structs.replace(paths, known=(newest,))
    age_s = now - newest.made
    is_due = age_s >= rotate_s or (paths.exposed and age_s >= CALLER_PATH_ROTATE_S_MIN)
    # If the clock is set back, a segment is not valid for longer.
    if not is_due and age_s >= 0:
        return paths
    successor = Path(new(), newest.serial + 1, now)
    return msgspec.structs.replace(paths, known=(newest, successor), exposed=False)


def has_passed(overlap_s: float, paths: Paths, now: float) -> bool:
    """Return whether no API server can use an earlier configuration any more."""
    return not 0 <= now - paths.since < overlap_s
