"""Read the policy files of an image, whose layers lie over each other.

Room: registry. Takes: an Image of registry/image.py. Gives: the content of each file by
path. Next: leader/artifacts.py. May touch: the network, through the client.
Source: docs/behaviour/cel 15.8 (OCI sources); OCI image specification 1.1 (layer.md,
whiteouts); docs/behaviour/cli 19 (layers with one policy).

An image whose files are not all understood is refused as a whole, because a missing
policy could allow what it denies. Digests of the layers are checked by the client.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import (
    ARTIFACT_BYTES_MAX,
    ARTIFACT_ENTRIES_MAX,
    POLICY_FILE_BYTES_MAX,
    REGISTRY_LAYERS_MAX,
)
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.image import Image, descriptor_digest

SUFFIXES: Final = (".yaml", ".yml", ".json")
POLICY_LAYER: Final = "application/vnd.cncf.kyverno.policy.layer.v1+yaml"
"""The media type of a layer that is one policy, as ``oci push`` writes it."""
_GZIP: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 31
"""A window of 32 KiB, with gzip's header (zlib's inflateInit2)."""
_BLOCK: Final = 512
_PATH_LETTERS_MAX: Final = 4096
"""As Linux has it; the work for a file is the product of its length and its depth."""
_HIDES: Final = ".wh."
_HIDES_ALL: Final = ".wh..wh..opq"
_MALFORMED: Final = (tarfile.TarError, ValueError, OverflowError, OSError, EOFError)
Files = dict[str, bytes]


def policy_files(client: Client, image: Image, deadline_ns: int) -> Files:
    """Return the YAML and JSON files of an image by path, in the order of paths.

    Hidden files and folders are left out, as in a folder of policies. Raises:
    RequestInvalid (``registry.artifact``), and the errors of ``Client.blob``.
    """
    layers = image.manifest.get("layers")
    if type(layers) is not list or not 0 < len(layers) <= REGISTRY_LAYERS_MAX:
        raise _refused(f"expected 1 to {REGISTRY_LAYERS_MAX} layers")
    files: Files = {}
    bytes_left = ARTIFACT_BYTES_MAX
    for layer in layers:
        digest = descriptor_digest(layer, image.reference)
        data = client.blob(image.reference, digest, deadline_ns)
        data = _plain(data, bytes_left)
        bytes_left -= len(data)
        if layer.get("mediaType") == POLICY_LAYER:
            files[f"{digest.replace(':', '-')}.yaml"] = data
        else:
            _lay_over(files, data)
    return dict(sorted(files.items()))


def _plain(data: bytes, bytes_max: int) -> bytes:
    """Return a layer without its compression, if it has one."""
    parts = []
    while data.startswith(_GZIP):
        inflating = zlib.decompressobj(_GZIP_BITS)
        try:
            part = inflating.decompress(data, bytes_max + 1)
        except zlib.error as error:
            raise _refused(f"a layer is not valid gzip: {error}") from error
        bytes_max -= len(part)
        if bytes_max < 0:
            break
        if not inflating.eof:
            raise _refused("a layer is truncated")
        parts.append(part)
        # A file of gzip may consist of several.
        data = inflating.unused_data
    if bytes_max < 0 or (not parts and len(data) > bytes_max):
        raise _refused(f"the layers have more than {ARTIFACT_BYTES_MAX} bytes")
    return b"".join(parts) if parts else data


def _lay_over(files: Files, layer: bytes) -> None:
    """Change the files as a layer does: first what it hides, then what it has."""
    added: Files = {}
    hidden: set[str] = set()
    emptied: set[str] = set()
    for path, content in _entries(layer):
        folder, _, name = path.rpartition("/")
        if name == _HIDES_ALL:
            emptied.add(folder)
        elif name.startswith(_HIDES):
            hidden.add(f"{folder}/{name.removeprefix(_HIDES)}".lstrip("/"))
        elif content is not None:
            hidden.add(path)
            if path.endswith(SUFFIXES) and not _is_hidden(path):
                added[path] = content
    for path in [one for one in files if _is_below(one, hidden, emptied)]:
        del files[path]
    files.update(added)


def _is_below(path: str, hidden: set[str], emptied: set[str]) -> bool:
    """Return whether a layer hides a file of the layers below."""
    while path:
        if path in hidden:
            return True
        path = path.rpartition("/")[0]
        if path in emptied:
            return True
    return False


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _entries(layer: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yield path and content of each entry; a folder has none.

    Only the content of policy files is read, b"" stands for others.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(layer), mode="r:") as archive:
            for count, entry in enumerate(archive):
                if count >= ARTIFACT_ENTRIES_MAX:
                    raise _refused(f"more than {ARTIFACT_ENTRIES_MAX} entries")
                path = str(PurePosixPath("/", entry.name)).lstrip("/")
                if len(path) > _PATH_LETTERS_MAX:
                    raise _refused(f"a path of more than {_PATH_LETTERS_MAX} letters")
                if ".." in path.split("/"):
                    raise _refused(f"{path}: a path with ..")
                yield path, _content(archive, entry, path)
            # tarfile takes a damaged header for the end.
            end = layer[archive.offset : archive.offset + _BLOCK]
            if end.strip(b"\0"):
                raise _refused("a layer is not a valid tar archive")
    except _MALFORMED as error:
        raise _refused(f"a layer is not a valid tar archive: {error}") from error


def _content(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str
) -> bytes | None:
    if entry.isdir():
        return None
    if not path.endswith(SUFFIXES) or _is_hidden(path):
        return b""
    if not entry.isreg() or entry.issparse():
        raise _refused(f"{path}: not a regular file")
    if entry.size > POLICY_FILE_BYTES_MAX:
        raise _refused(f"{path}: larger than {POLICY_FILE_BYTES_MAX} bytes")
    file = archive.extractfile(entry)
    assert file is not None
    content = file.read()
    if len(content) != entry.size:
        raise _refused(f"{path}: truncated")
    return content


def _refused(reason: str) -> RequestInvalid:
    return RequestInvalid("registry.artifact", reason)
