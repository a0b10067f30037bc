"""Define the format of a recording: a header, then one line of JSON for each review.

Room: webhook. Takes: nothing. Gives: Header, Line and their codecs, for files.py,
which writes them, and for cli/replay, which reads them. Next: files.py.
May touch: nothing outside its arguments.
Source: docs/replay.md (the format).

A reader refuses another version. A field may be added without a new version; one that
changes its meaning needs one.
"""

from typing import Any, Final

import msgspec

VERSION: Final = 1
SUFFIX: Final = ".jsonl.gz"
OPEN_SUFFIX: Final = ".jsonl.gz.part"
"""Of the file that a worker writes at the moment."""


class Header(msgspec.Struct, rename="camel", omit_defaults=False):
    """The first line of a file."""

    kyverno_mp_recording: int
    """The version of the format."""
    program: str = ""
    started: str = ""
    """RFC 3339."""
    one_of: int = 1
    """One of so many reviews is recorded."""


class Answer(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the webhook answered; no message, because it may quote the object."""

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
    """Of the webhook, e.g. ``/validate/fail``."""
    kind: tuple[str, str, str]
    """(group, version, kind) that policies match on."""
    request: dict[str, Any]
    """The AdmissionRequest, without the redacted values."""
    answer: Answer
    namespace_labels: dict[str, str] | None = None
    """None: the namespace was not known."""
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
