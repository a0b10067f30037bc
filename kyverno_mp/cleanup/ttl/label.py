"""Read the TTL label of an object, which defines when and how to delete it.

Room: cleanup. Takes: an object's metadata from the watch. Gives: Labelled,
which the informers keep. Next: cleanup/ttl/watches.py.
Source: docs/behaviour/controllers 7 (TTL).
"""

from typing import Final

import msgspec

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotime import GoTime
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time
from kyverno_mp.values.ttl import LABEL, parse_ttl

PROPAGATION: Final = "cleanup.kyverno.io/propagation-policy"
_POLICIES: Final = frozenset(("Foreground", "Background", "Orphan"))
_SECOND_NS: Final = 10**9


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_DECODER: Final = msgspec.json.Decoder(_Object)


class Labelled(msgspec.Struct, frozen=True, gc=False):
    """An object with the label. ``due_s``: Unix seconds, None = an invalid value."""

    uid: str
    resource_version: str
    due_s: float | None
    propagation: str
    value: str


def labelled(raw: msgspec.Raw) -> Labelled | None:
    """Read an object; return None if it has no label or is being deleted."""
    metadata = _DECODER.decode(raw).metadata
    value = (metadata.labels or {}).get(LABEL)
    if value is None or metadata.deletion_timestamp:
        return None
    # KYVERNO: other values of the annotation are ignored
    # (docs/behaviour/controllers 7, TTL).
    propagation = (metadata.annotations or {}).get(PROPAGATION, "")
    return Labelled(
        metadata.uid,
        metadata.resource_version,
        _due_s(value, metadata.creation_timestamp),
        propagation if propagation in _POLICIES else "",
        value,
    )


def _due_s(value: str, created: str) -> float | None:
    try:
        duration = parse_ttl(value)
        if isinstance(duration, GoTime):
            return duration.seconds + duration.nanos / _SECOND_NS
        return parse_time(RFC3339, created).seconds + duration / _SECOND_NS
    except ExpressionFailed:
        return None


def fault_of(value: str) -> str:
    """Return upstream's message for a value that cannot be parsed."""
    try:
        parse_ttl(value)
    except ExpressionFailed as error:
        return (
            f"{LABEL} label value cannot be parsed as any recognizable format"
            f" ({error.message})"
        )
    return ""
