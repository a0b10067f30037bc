"""Decode the message of a signed manifest: the signed YAML documents.

Room: images. Takes: the text of the message annotation. Gives: the signed bytes, the
objects in them. Next: images/manifests/compare.py.
Source: docs/behaviour/images 7.

The message is the signed data, gzipped and in base64: a compressed archive of YAML
files, or YAML. All of it comes from the object under verification, so all sizes are
bounded.
"""

import base64
import binascii
import zlib
from collections.abc import Iterator
from typing import Final

from kyverno_mp.errors import ExpressionFailed, PolicyInvalid
from kyverno_mp.limits import MANIFEST_BYTES_MAX, MANIFEST_DOCUMENTS_MAX
from kyverno_mp.policy.reading.yaml_documents import parse_yaml
from kyverno_mp.values.jsonvalue import Json

_GZIP: Final = b"\x1f\x8b"
_BLOCK: Final = 512
_NAME, _SIZE, _KIND, _PREFIX = (
    slice(0, 100),
    slice(124, 136),
    slice(156, 157),
    slice(345, 500),
)
_FILES: Final = frozenset((b"0", b"\x00"))
_IGNORED: Final = frozenset((b"5", b"x", b"g"))
"""Folders, and headers that only extend names and times."""
_UNREAD: Final = "failed to read YAMLs in the gzipped message"


def failed(message: str) -> ExpressionFailed:
    """Return the error for an unreadable message, which becomes the rule's error."""
    return ExpressionFailed("manifest.message", message)


def decoded(encoded: str, noun: str) -> bytes:
    """Decode base64, and gzip if compressed. Raises: ExpressionFailed."""
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise failed(f"failed to decode base64 {noun}: {error}") from error
    if not data.startswith(_GZIP):
        return data
    return _inflated(data, noun)


def signed_objects(message: bytes) -> list[dict[str, Json]]:
    """Return the objects in a signed message. Raises: ExpressionFailed."""
    if not message.startswith(_GZIP):
        return _objects(message)
    archive = _inflated(message, "message")
    objects: list[dict[str, Json]] = []
    for _, content in sorted(_files(archive)):
        objects.extend(_objects(content))
    return objects


def _inflated(data: bytes, noun: str) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        inflated = stream.decompress(data, MANIFEST_BYTES_MAX)
    except zlib.error as error:
        raise failed(f"{_UNREAD}: {noun}: {error}") from error
    if not stream.eof:
        raise failed(f"{_UNREAD}: {noun}: cut, or more than {MANIFEST_BYTES_MAX} bytes")
    if stream.unused_data:
        raise failed(f"{_UNREAD}: {noun}: bytes after the end")
    return inflated


def _files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield an archive's YAML files; reject everything except files and folders."""
    at = 0
    while at + _BLOCK <= len(archive):
        header = archive[at : at + _BLOCK]
        if not any(header):
            return
        size, kind = _size_of(header), header[_KIND]
        end = at + _BLOCK + size
        if end > len(archive):
            raise failed(f"{_UNREAD}: the archive is cut")
        if kind in _FILES:
            name = _name_of(header)
            if name.endswith((".yaml", ".yml")) and not name.startswith(".."):
                yield name, archive[at + _BLOCK : end]
        elif kind not in _IGNORED:
            raise failed(
                f"{_UNREAD}: faced unknown type {kind!r} while decompressing tar gz"
            )
        at = end + -size % _BLOCK
    if at != len(archive):
        raise failed(f"{_UNREAD}: the archive is cut")


def _size_of(header: bytes) -> int:
    try:
        size = int(header[_SIZE].strip(b" \x00") or b"0", 8)
    except ValueError as error:
        raise failed(f"{_UNREAD}: the archive is damaged") from error
    if size < 0:
        raise failed(f"{_UNREAD}: the archive is damaged")
    return size


def _name_of(header: bytes) -> str:
    parts = [header[part].partition(b"\x00")[0] for part in (_PREFIX, _NAME)]
    return b"/".join(filter(None, parts)).decode(errors="replace")


def _objects(content: bytes) -> list[dict[str, Json]]:
    try:
        documents = parse_yaml(content, "message")
    except PolicyInvalid:
        # As upstream: a file that is not YAML has no manifest.
        return []
    if len(documents) > MANIFEST_DOCUMENTS_MAX:
        raise failed(f"{_UNREAD}: more than {MANIFEST_DOCUMENTS_MAX} documents")
    return [document.raw for document in documents if type(document.raw) is dict]
