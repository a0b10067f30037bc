"""Buffer a cluster's objects in a file instead of in memory.

Room: cli. Takes: JSON strings of objects. Gives: Spool, a Given. Next: apply.
May touch: one unnamed temporary file; Secrets stay in memory, compressed.

PERF: 100,000 Pods take gigabytes as Python objects. Here they take 2 MB of offsets, and
worker processes read the same file.
"""

import os
import tempfile
import threading
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec

from kyverno_mp.cli.sources.resources import Location, with_floats
from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.jsonvalue import Json

_NOWHERE = Location("", 0, -1, 0)
_SHOWN = ("name", "namespace", "uid", "resourceVersion")


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    """The metadata that the output shows."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Identity(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_IDENTITY = msgspec.json.Decoder(_Identity)


def identity_of(raw: dict[str, Json]) -> dict[str, Json]:
    """Return the parts of an object that the output shows."""
    metadata = raw.get("metadata")
    names = metadata if type(metadata) is dict else {}
    return {
        "apiVersion": raw.get("apiVersion"),
        "kind": raw.get("kind"),
        "metadata": {key: names[key] for key in _SHOWN if names.get(key)},
    }


class Part:
    """The objects of one resource, in the API server's order."""

    def __init__(self, spool: "Spool", resource: Resource) -> None:
        self.resource = resource
        self.starts = array("Q")
        self.lengths = array("L")
        self._spool = spool
        self._is_secret = (resource.group, resource.plural) == ("", "secrets")
        self._secrets: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Store one object."""
        if self._is_secret:
            # SAFETY: Secrets are never written to disk.
            self.starts.append(len(self._secrets))
            self._secrets.append(zlib.compress(data, 1))
        else:
            self.starts.append(self._spool.write(data))
        self.lengths.append(len(data))

    def clear(self) -> None:
        """Remove all objects; the file keeps their texts until the end."""
        del self.starts[:], self.lengths[:], self._secrets[:]

    def text(self, position: int) -> bytes:
        """Return one object's text."""
        start = self.starts[position]
        if self._is_secret:
            return zlib.decompress(self._secrets[start])
        return self._spool.read(start, self.lengths[position])


class Spool:
    """All parts in order; threads can add to their parts until ``finish``."""

    def __init__(self) -> None:
        # The file has no name, so that no other process can open it.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``__exit__``
        self._end = 0
        self._lock = threading.Lock()
        self._parts: Sequence[Part] = ()
        self._firsts = array("Q")
        self._length = 0

    def write(self, data: bytes) -> int:
        """Write one object; return its offset."""
        with self._lock:
            start = self._end
            self._end += len(data)
        written = 0
        while written < len(data):
            written += os.pwrite(self._file.fileno(), data[written:], start + written)
        return start

    def read(self, start: int, length: int) -> bytes:
        """Read an object from the file."""
        return os.pread(self._file.fileno(), length, start)

    def __enter__(self) -> Self:
        """Return the spool itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the file."""
        self._file.close()

    def finish(self, parts: Sequence[Part]) -> None:
        """Set the parts in their final order; no objects can be added afterwards."""
        self._parts = parts
        for part in parts:
            self._firsts.append(self._length)
            self._length += len(part.starts)

    def __len__(self) -> int:
        """Return the number of objects."""
        return self._length

    def object(self, position: int) -> dict[str, Json]:
        """Return the whole object, its numbers floats as everywhere in the CLI."""
        part, index = self._find(position)
        raw: dict[str, Json] = msgspec.json.decode(part.text(index))
        # K8S: items of a list have no kind and no apiVersion.
        raw["apiVersion"] = part.resource.api_version
        raw["kind"] = part.resource.kind
        return with_floats(raw)

    def identity(self, position: int) -> dict[str, Json]:
        """Return kind, name and version of the object."""
        part, index = self._find(position)
        metadata = _IDENTITY.decode(part.text(index)).metadata
        return {
            "apiVersion": part.resource.api_version,
            "kind": part.resource.kind,
            "metadata": msgspec.to_builtins(metadata),
        }

    @property
    def total(self) -> int:
        """The number of objects."""
        return self._length

    def exceptions(self) -> Iterator[dict[str, Json]]:
        """Yield all objects."""
        return (self.object(position) for position in range(self._length))

    def location(self, _position: int) -> Location:
        """Return an empty location: the object was not read from a file."""
        return _NOWHERE

    def _find(self, position: int) -> tuple[Part, int]:
        # If several parts begin at this position, all but the last are empty.
        number = bisect_right(self._firsts, position) - 1
        return self._parts[number], position - self._firsts[number]
