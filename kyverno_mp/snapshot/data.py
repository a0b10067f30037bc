"""Encode and read segments of shared data: JSON values by text key.

Room: snapshot. Takes: a mapping of keys to JSON. Gives: bytes of a segment, and
DataSegment. Next: the adapters of program/ports.
Source: docs/architecture.md 3 (shared data segments).
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.limits import DATA_CACHE_BYTES_MAX, DATA_CACHE_ENTRIES_MAX
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import UNDECODABLE

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder()


def encode_value(value: Json) -> bytes:
    """Encode one value, for callers that keep encoded values between publications."""
    return _ENCODER.encode(value)


def encode_data(
    name: str, values: Mapping[str, bytes], *, generation: int, salt: bytes
) -> bytearray:
    """Return the file content of data segment ``name``.

    Shape: values from ``encode_value``, e.g. ``{"default": b'{"a":"b"}'}``.
    """
    records = {key.encode("utf-8", "surrogatepass"): v for key, v in values.items()}
    return encode_segment(name, records, generation=generation, salt=salt)


class DataSegment:
    """The data of one generation; recently read values stay decoded.

    Returned values are shared, so callers must not modify them. Thread-safe.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._decoded: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:
        """The generation under which the segment was published."""
        return self._segment.generation

    def get(self, key: str) -> Json | None:
        """Return the value, None if the key is absent (or null is stored)."""
        with self._lock:
            cached = self._decoded.get(key)
            if cached is not None:
                self._decoded.move_to_end(key)
                return cached[0]
        content = self._segment.get(key.encode("utf-8", "surrogatepass"))
        if content is None:
            return None
        try:
            value = _DECODER.decode(content)
        except UNDECODABLE as error:
            raise SnapshotUnusable(
                "snapshot.record", f"a value cannot be read: {error}"
            ) from error
        with self._lock:
            self._keep(key, value, len(content))
        return value

    def __contains__(self, key: str) -> bool:
        return self._segment.find(key.encode("utf-8", "surrogatepass")) != 0

    def list_keys(self) -> list[str]:
        """Return all keys, sorted. Cost: one pass over the whole table."""
        keys = self._segment.list_keys()
        return sorted(key.decode("utf-8", "surrogatepass") for key in keys)

    def _keep(self, key: str, value: Json, size_bytes: int) -> None:
        if size_bytes > DATA_CACHE_BYTES_MAX or key in self._decoded:
            return
        self._decoded[key] = (value, size_bytes)
        self._kept_bytes += size_bytes
        while (
            len(self._decoded) > DATA_CACHE_ENTRIES_MAX
            or self._kept_bytes > DATA_CACHE_BYTES_MAX
        ):
            _, (_, dropped_bytes) = self._decoded.popitem(last=False)
            self._kept_bytes -= dropped_bytes


def projection_key(entry: str, projection: str) -> str:
    """Return the key of a GlobalContextEntry's projection; "" stands for the others.

    SAFETY: no entry has a name with ``/``, but one can have a name with a dot, which
    must not be read as a projection of another entry.
    """
    return f"{entry}/{projection}"


def opened_key(entry: str, namespace: str) -> str:
    """Return the key of a GlobalContextEntry that is opened to a namespace.

    K8S: no entry has a name that begins with ``@``.
    """
    return f"@{namespace}/{entry}"
