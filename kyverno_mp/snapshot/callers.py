"""Encode and decode the path segments by which workers recognize the API server.

Room: snapshot. Takes: Callers. Gives: the values of the data segment ``callers``, and
Callers decoded from it; the form of a path segment. Next: leader/callers.py publishes
it, webhook/http/callers.py checks requests, kube/translate.py hides it in errors.
Source: docs/SECURITY.md (the caller).

SAFETY: the path segments are secrets, like the private key in the same folder.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.data import DataSegment, encode_value
from kyverno_mp.values.records import RecordType

CALLERS: Final = "callers"
"""Name of the segment of the snapshot, and of its only value."""
PREFIX: Final = "caller-"
"""K8S: the API server accepts only DNS names between the slashes of a path."""
RANDOM_BYTES: Final = 20
SEGMENT_CHARS: Final = len(PREFIX) + 2 * RANDOM_BYTES
_SEGMENT: Final = re.compile(rf"{PREFIX}[0-9a-f]{{{2 * RANDOM_BYTES}}}")


class Callers(msgspec.Struct, frozen=True):
    """The path segments that prove a call.

    ``serial`` is the number of the newest one, 0 if there is none. ``required``: every
    caller knows one, so that calls without proof are rejected.
    """

    segments: tuple[str, ...] = ()
    serial: int = 0
    required: bool = False

    def __repr__(self) -> str:
        """Hide the secrets."""
        return f"Callers(serial={self.serial}, required={self.required})"


_CALLERS: Final = RecordType(Callers)


def values_of(callers: Callers) -> Mapping[str, bytes]:
    """Return the content of the segment."""
    return {CALLERS: encode_value(msgspec.to_builtins(callers))}


def callers_of(segment: DataSegment) -> Callers:
    """Decode the segment. Raises: SnapshotUnusable."""
    try:
        return _CALLERS.convert(segment.get(CALLERS))
    except msgspec.ValidationError as error:
        raise SnapshotUnusable(
            "snapshot.record", "the path segments cannot be read"
        ) from error


def split_path(path: str) -> tuple[str, str]:
    """Return the path segment of a registered path, "" without one, and the rest."""
    first, slash, rest = path.removeprefix("/").partition("/")
    if _SEGMENT.fullmatch(first):
        return first, f"{slash}{rest}"
    return "", path


def without_segments(message: str) -> str:
    """Return a text of the API server without the segments of paths in it.

    K8S: the error of a call that failed names the path of the webhook.
    """
    return _SEGMENT.sub(f"{PREFIX}***", message) if PREFIX in message else message


def is_segment(segment: str) -> bool:
    """Return whether a text has the form of a path segment."""
    return _SEGMENT.fullmatch(segment) is not None
