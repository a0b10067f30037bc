"""Define the format of a recording: a header, then one line of JSON per review.

Room: webhook. Takes: nothing. Gives: Header, Line and their codecs, for files.py,
which writes them, and for cli/replay, which reads them. Next: files.py.
Source: docs/replay.md (the format).

A reader rejects other versions. A field can be added without a new version; a field
with a new meaning requires one.
"""

from typing import Any, Final

import msgspec

VERSION: Final = 1
SUFFIX: Final = ".jsonl.gz"
OPEN_SUFFIX: Final = ".jsonl.gz.part"
"""The suffix of the file that a worker is writing."""


class Header(msgspec.Struct, rename="camel", omit_defaults=False):
    """The first line of a file."""

    kyverno_mp_recording: int
    """The version of the format."""
    program: str = ""
    started: str = ""
    """RFC 3339."""
    one_of: int = 1
    """One in this many reviews is recorded."""


class Answer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The webhook's answer, without a message, because it can quote the object."""

    allowed: bool
    policies: list[str] = []
    """Keys of the policies that denied, sorted."""
    patch: list[dict[str, Any]] = []
    failed: bool = False
    """The request could not be evaluated; the failurePolicy decided."""


class Line(msgspec.Struct, rename="camel", omit_defaults=True):
    """One review."""

    time_ms: int
    """Unix time."""
    path: str
    """The path of the webhook, e.g. ``/validate/fail``."""
    kind: tuple[str, str, str]
    """The (group, version, kind) that policies match."""
    request: dict[str, Any]
    """The AdmissionRequest, without the redacted values."""
    answer: Answer
    namespace_labels: dict[str, str] | None = None
    """None if the namespace was unknown."""
    roles: list[str] = []
    cluster_roles: list[str] = []
    redacted: list[str] = []
    """JSON pointers into the request; ``*`` stands for every element."""


_HEADER: Final = msgspec.json.Decoder(Header)
_LINE: Final = msgspec.json.Decoder(Line)


def header_of(data: bytes) -> Header:
    """Decode a header. Raises: msgspec.DecodeError."""
    return _HEADER.decode(data)


def line_of(data: bytes) -> Line:
    """Decode a line. Raises: msgspec.DecodeError."""
    return _LINE.decode(data)
