"""Read one part of the objects of a dump: which one depends on their identity only.

Room: cli. Takes: the texts of sources/resources, the number of a part. Gives: Kept, a
Given (cli/apply/given). Next: cli/apply/shard.
May touch: one unnamed temporary file; Secrets stay in memory, compressed.

PERF: of an object of another part, only its identity is decoded, which is a hundredth
of what an evaluation costs, and nothing is kept. Exception: objects in YAML.
"""

import hashlib
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.cluster.spool import Spool, identity_of
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.resources import (
    GLOBAL_ENTRY,
    Location,
    Text,
    normalised,
    parse,
)
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.values.jsonvalue import Json

_EXCEPTION: Final = "PolicyException"
_MASK: Final = (1 << 64) - 1


class Part(NamedTuple):
    """One of ``of`` parts; ``number`` from 1."""

    number: int
    of: int

    def has(self, digest: int) -> bool:
        """Return whether an object belongs to the part."""
        return digest % self.of == self.number - 1

    def __str__(self) -> str:
        """Return the part as ``--shard`` takes it."""
        return f"{self.number}/{self.of}"


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    items: list[msgspec.Raw] | None = None


PACKED_OBJECT = tuple[int, Location, bytes]
"""The number of an object in the dump, its location, its msgpack."""
_HEAD: Final = msgspec.json.Decoder(_Head)
_PACKED: Final = msgspec.msgpack.Encoder()
_UNPACKED: Final = msgspec.msgpack.Decoder()


def digest_of(api_version: str, kind: str, namespace: str, name: str) -> int:
    """Return 64 bits of a hash of the identity; the version of the API is no part."""
    group = api_version.rpartition("/")[0]
    # An object without a namespace counts as one of ``default`` (docs/behaviour/cli 5).
    key = "\0".join((group, kind, namespace or "default", name))
    data = key.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def part_of(argument: str) -> Part:
    """Parse ``I/N``. Raises: CommandFailed."""
    number, slash, of = argument.partition("/")
    if slash and number.isdecimal() and of.isdecimal():
        part = Part(int(number), int(of))
        if 1 <= part.number <= part.of:
            return part
    raise CommandFailed(f'--shard "{argument}": expected I/N, I from 1 to N')


@contextmanager
def kept(texts: Iterable[Text], part: Part) -> Iterator["Kept"]:
    """Yield the objects of the part; they are gone at the end of the block."""
    with Spool() as spool:
        objects = Kept(spool, part)
        objects.read(texts)
        yield objects


class Kept:
    """The objects of one part, in a file; and what is known of all objects."""

    def __init__(self, spool: Spool, part: Part) -> None:
        self._spool = spool
        self._part = part
        self._starts = array("Q")
        self._lengths = array("L")
        self._secrets: dict[int, bytes] = {}
        self._locations: list[Location] = []
        self.numbers = array("Q")
        """For each object, how many objects precede it in the whole dump."""
        self._exceptions: list[dict[str, Json]] = []
        self.total = 0
        """The number of objects of all parts."""
        self.fingerprint = 0
        """Equal for runs that have read the same objects, in any order."""

    def read(self, texts: Iterable[Text]) -> None:
        """Take the objects of the part from the texts. Raises: CommandFailed."""
        for piece in texts:
            if not self._read_json(piece):
                for raw, location in _parsed(piece):
                    self._add_whole(raw, location)

    def _read_json(self, piece: Text) -> bool:
        """Take the objects of JSON text; return False if it has to be parsed whole."""
        if not piece.data[:64].lstrip().startswith(b"{"):
            return False
        head = _decoded(piece.data)
        if head is None or not (head.kind and head.api_version):
            return False
        if head.items is None and not head.kind.endswith("List"):
            if self._is_kept(head):
                for raw, location in _parsed(piece):
                    self._keep(raw, location)
            return True
        items = [(item, _decoded(item)) for item in head.items or ()]
        if head.kind != "List" or head.metadata.name or not _are_plain(items):
            return False
        for position, (item, item_head) in enumerate(items):
            assert item_head is not None  # _are_plain
            if self._is_kept(item_head):
                location = Location(piece.file, piece.document, position, piece.line)
                self._keep(_item(bytes(item), piece.file), location)
        return True

    def _is_kept(self, head: _Head) -> bool:
        metadata = head.metadata
        digest = digest_of(
            head.api_version, head.kind, metadata.namespace, metadata.name
        )
        return self._count(head.kind, digest) or head.kind == _EXCEPTION

    def _count(self, kind: str, digest: int) -> bool:
        """Count an object; return whether it belongs to the part."""
        if kind == GLOBAL_ENTRY:
            message = f"a {GLOBAL_ENTRY} reads all objects, so they have no parts"
            raise CommandFailed(message)
        self.total += 1
        self.fingerprint = (self.fingerprint + digest) & _MASK
        return self._part.has(digest)

    def _add_whole(self, raw: dict[str, Json], location: Location) -> None:
        if self._count(raw["kind"], _digest(raw)) or raw["kind"] == _EXCEPTION:
            self._keep(raw, location)

    def _keep(self, raw: dict[str, Json], location: Location) -> None:
        """Keep the object that was counted last, if it belongs to the part."""
        if raw["kind"] == _EXCEPTION:
            self._exceptions.append(raw)
            if not self._part.has(_digest(raw)):
                return
        data = _PACKED.encode(raw)
        if (raw["kind"], raw["apiVersion"]) == ("Secret", "v1"):
            # SAFETY: Secrets are never written to disk.
            self._secrets[len(self._starts)] = zlib.compress(data, 1)
            self._starts.append(0)
        else:
            self._starts.append(self._spool.write(data))
        self._lengths.append(len(data))
        self._locations.append(location)
        self.numbers.append(self.total - 1)

    def __len__(self) -> int:
        """Return the number of objects of the part."""
        return len(self._starts)

    def packed(self, positions: range) -> bytes:
        """Return PACKED_OBJECTs as msgpack, for another process."""
        return _PACKED.encode(
            [
                (self.numbers[at], self._locations[at], self._data(at))
                for at in positions
            ]
        )

    def object(self, position: int) -> dict[str, Json]:
        """Return the whole object."""
        raw: dict[str, Json] = _UNPACKED.decode(self._data(position))
        return raw

    def _data(self, position: int) -> bytes:
        secret = self._secrets.get(position)
        if secret is not None:
            return zlib.decompress(secret)
        return self._spool.read(self._starts[position], self._lengths[position])

    def exceptions(self) -> list[dict[str, Json]]:
        """Return the PolicyExceptions of all parts."""
        return self._exceptions

    def identity(self, position: int) -> dict[str, Json]:
        """Return kind, name and version of the object."""
        return identity_of(self.object(position))

    def location(self, position: int) -> Location:
        """Return the location of the object in its file."""
        return self._locations[position]


def _decoded(data: bytes | msgspec.Raw) -> _Head | None:
    try:
        return _HEAD.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _are_plain(items: list[tuple[msgspec.Raw, _Head | None]]) -> bool:
    """Return whether each item is an object with kind and apiVersion, and no list."""
    return all(
        head is not None
        and head.kind
        and head.api_version
        and head.items is None
        and not head.kind.endswith("List")
        for _, head in items
    )


def _item(data: bytes, file: str) -> dict[str, Json]:
    try:
        (document,) = load(data, file=file)
    except InputError as error:
        message = f"failed to load resources ({file}: {error.message})"
        raise CommandFailed(message) from error
    return normalised(document.raw)


def _parsed(piece: Text) -> Iterator[tuple[dict[str, Json], Location]]:
    locations: list[Location] = []
    objects = parse(piece, locations=locations)
    return zip(objects, locations, strict=True)


def _digest(raw: dict[str, Json]) -> int:
    namespace, name = (metadata_text(raw, key) for key in ("namespace", "name"))
    return digest_of(raw["apiVersion"], raw["kind"], namespace, name)
