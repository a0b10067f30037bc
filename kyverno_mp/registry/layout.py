"""Serve registry requests from an OCI image layout, a folder on this machine.

Room: registry. Takes: a folder, RegistryCalls. Gives: LayoutRegistry, an Exchange.
Next: cli/cluster/image_access.py. May touch: files below the folder.
Source: OCI image specification 1.1 (image-layout.md, annotations.md), distribution
specification 1.1 (referrers); cosign's pkg/oci/layout (kinds of entries).

A layout names its entries by tag or by whole reference and has no repositories: a tag
without a repository matches every repository. Clients compute the digests as for a
registry.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.errors import RequestInvalid, SettingInvalid
from kyverno_mp.limits import (
    LAYOUT_ENTRIES_MAX,
    REGISTRY_JSON_PARTS_MAX,
    REGISTRY_MANIFEST_BYTES_MAX,
)
from kyverno_mp.registry.client import OCI_INDEX, OCI_MANIFEST
from kyverno_mp.registry.exchange import (
    RegistryCall,
    RegistryResponse,
    taken_apart,
)
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.values.go.gojson import JsonInvalid, decode_parts
from kyverno_mp.values.jsonvalue import Json

_OK, _MISSING, _REFUSED = 200, 404, 405
_PATH: Final = re.compile(r"/v2/(.+)/(manifests|blobs|referrers)/([^/]+)")
_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})")
_SIGNED_TAG: Final = re.compile(r"(sha256)-([0-9a-f]{64})\.(sig|att)")
_REFERRERS_TAG: Final = re.compile(r"sha(256|512)-[0-9a-f]+")
_NAMES: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
"""The first annotation is a whole reference; the second may be only a tag."""
_KIND: Final = "kind"
_IMAGES: Final = (
    "dev.cosignproject.cosign/image",
    "dev.cosignproject.cosign/imageIndex",
)
_KINDS: Final = {
    "sig": "dev.cosignproject.cosign/sigs",
    "att": "dev.cosignproject.cosign/atts",
}


class LayoutRegistry:
    """The content of one folder; threads may share it."""

    def __init__(self, folder: Path) -> None:
        """Read the index. Raises: SettingInvalid if the folder is not a layout."""
        self._folder = folder
        listed = self._json(folder / "index.json").get("manifests")
        entries = listed if type(listed) is list else []
        if len(entries) > LAYOUT_ENTRIES_MAX:
            message = f"{folder}: more than {LAYOUT_ENTRIES_MAX} entries in index.json"
            raise SettingInvalid("registry.layout", message)
        self._entries: list[Mapping[str, Json]] = [
            entry
            for entry in entries
            if type(entry) is dict and _DIGEST.fullmatch(str(entry.get("digest")))
        ]

    def __call__(self, call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        """Answer one request. Raises: RequestInvalid (``registry.size``)."""
        parts, _ = taken_apart(call.url)
        if call.method not in ("GET", "HEAD"):
            return RegistryResponse(_REFUSED, {}, b"")
        if parts.path == "/v2/":
            return RegistryResponse(_OK, {}, b"{}")
        match = _PATH.fullmatch(parts.path)
        if match is None:
            return RegistryResponse(_MISSING, {}, b"")
        repository, resource, name = f"{parts.netloc}/{match[1]}", match[2], match[3]
        if resource == "blobs":
            return self._blob(name, call.bytes_max)
        if resource == "manifests":
            return self._manifest(repository, name, call.bytes_max)
        return self._referrers(repository, name)

    def _blob(self, digest: str, bytes_max: int) -> RegistryResponse:
        content = self._content(digest, bytes_max)
        if content is None:
            return _missing("BLOB_UNKNOWN", "blob unknown to registry", digest)
        return RegistryResponse(_OK, {}, content)

    def _manifest(self, repository: str, name: str, bytes_max: int) -> RegistryResponse:
        digest = name if ":" in name else self._named(repository, name)
        content = self._content(digest, bytes_max)
        if content is None:
            return _missing("MANIFEST_UNKNOWN", "manifest unknown", name)
        headers = {"content-type": self._type(digest, content)}
        return RegistryResponse(_OK, headers, content)

    def _referrers(self, repository: str, digest: str) -> RegistryResponse:
        referrers = list(self._about(digest))
        if not referrers and self._named(repository, digest.replace(":", "-", 1)):
            # A client then reads the list of referrers, which the layout has under a
            # tag.
            return RegistryResponse(_MISSING, {}, b"")
        index: Json = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": referrers,
        }
        body = msgspec.json.encode(index)
        return RegistryResponse(_OK, {"content-type": OCI_INDEX}, body)

    def _about(self, digest: str) -> Iterator[dict[str, Json]]:
        """Yield the descriptors of manifests with this subject."""
        for digest_of_one in dict.fromkeys(
            str(entry["digest"]) for entry in self._entries
        ):
            content = self._content(digest_of_one, REGISTRY_MANIFEST_BYTES_MAX)
            manifest = _object(content or b"")
            subject = manifest.get("subject")
            if type(subject) is not dict or subject.get("digest") != digest:
                continue
            config = manifest.get("config")
            kind = config.get("mediaType") if type(config) is dict else None
            yield {
                "mediaType": manifest.get("mediaType") or OCI_MANIFEST,
                "digest": digest_of_one,
                "size": len(content or b""),
                "artifactType": manifest.get("artifactType") or kind or "",
                "annotations": manifest.get("annotations") or {},
            }

    def _named(self, repository: str, tag: str) -> str:
        """Return the digest of the entry with this name, "" if no entry has it."""
        for entry in self._entries:
            if _is_named(entry, repository, tag):
                return str(entry["digest"])
        # ``cosign save`` writes one image, its signatures and its attestations.
        images = [str(entry["digest"]) for entry in self._of(*_IMAGES)]
        signed = _SIGNED_TAG.fullmatch(tag)
        if signed is None:
            return self._only(images, tag)
        if images != [f"{signed[1]}:{signed[2]}"]:
            return ""
        return next((str(entry["digest"]) for entry in self._of(_KINDS[signed[3]])), "")

    def _only(self, images: list[str], tag: str) -> str:
        """Return the one image of a layout without names, "" if there is none."""
        has_names = any(
            _annotations(entry).get(key) for entry in self._entries for key in _NAMES
        )
        if len(images) != 1 or has_names or _REFERRERS_TAG.fullmatch(tag):
            return ""
        return images[0]

    def _of(self, *kinds: str) -> Iterator[Mapping[str, Json]]:
        return (
            entry for entry in self._entries if _annotations(entry).get(_KIND) in kinds
        )

    def _type(self, digest: str, content: bytes) -> str:
        for entry in self._entries:
            if entry["digest"] == digest and type(entry.get("mediaType")) is str:
                return str(entry["mediaType"])
        manifest = _object(content)
        media_type = manifest.get("mediaType")
        if type(media_type) is str and media_type:
            return media_type
        return OCI_INDEX if "manifests" in manifest else OCI_MANIFEST

    def _content(self, digest: str, bytes_max: int) -> bytes | None:
        # SAFETY: the digest becomes a file name.
        if not _DIGEST.fullmatch(digest):
            return None
        algorithm, _, name = digest.partition(":")
        try:
            with (self._folder / "blobs" / algorithm / name).open("rb") as file:
                content = file.read(bytes_max + 1)
        except OSError:
            return None
        if len(content) > bytes_max:
            message = f"{self._folder}: {digest} is larger than {bytes_max} bytes"
            raise RequestInvalid("registry.size", message)
        return content

    def _json(self, path: Path) -> dict[str, Json]:
        try:
            with path.open("rb") as file:
                content = file.read(REGISTRY_MANIFEST_BYTES_MAX)
        except OSError as error:
            message = (
                f"{self._folder} is not an OCI image layout: {path.name}:"
                f" {error.strerror}"
            )
            raise SettingInvalid("registry.layout", message) from error
        document = _object(content)
        if not document:
            message = (
                f"{self._folder} is not an OCI image layout: {path.name} is not JSON"
            )
            raise SettingInvalid("registry.layout", message)
        return document


def _annotations(entry: Mapping[str, Json]) -> Mapping[str, Json]:
    annotations = entry.get("annotations")
    return annotations if type(annotations) is dict else {}


def _is_named(entry: Mapping[str, Json], repository: str, tag: str) -> bool:
    """Return whether an entry has this tag and this repository, or no repository."""
    for key in _NAMES:
        name = _annotations(entry).get(key)
        if type(name) is not str or not name:
            continue
        if name == tag:
            return True
        try:
            return str(parse_reference(name)) == f"{repository}:{tag}"
        except RequestInvalid:
            return False
    return False


def _object(content: bytes) -> dict[str, Json]:
    try:
        value = decode_parts(content, REGISTRY_JSON_PARTS_MAX)
    except JsonInvalid:
        return {}
    return value if type(value) is dict else {}


def _missing(code: str, message: str, name: str) -> RegistryResponse:
    error: Json = {"code": code, "message": message, "detail": {"Name": name}}
    body = msgspec.json.encode({"errors": [error]})
    return RegistryResponse(_MISSING, {"content-type": "application/json"}, body)
