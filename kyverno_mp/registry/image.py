"""Read the metadata of an image: manifest, config, image index.

Room: registry. Takes: a reference. Gives: the value of ``imageRegistry`` entries, and
the layers of an artifact. Next: cli/cluster/data.py, cli/oci.py.
May touch: the network through registry/client.py.
Source: docs/behaviour/engine 3.7 (imageRegistry); docs/behaviour/controllers 11.7;
docs/behaviour/lessons 4.2 row 1 (the reference is resolved once; everything else is
read by digest).
"""

from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import REGISTRY_JSON_PARTS_MAX
from kyverno_mp.registry.client import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    Client,
    Manifest,
)
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.values.go.gojson import JsonInvalid, decode_parts
from kyverno_mp.values.jsonvalue import Json

_PLATFORM: Final = ("linux", "amd64")


@dataclass(frozen=True, slots=True)
class Image:
    """One image; ``index`` is None if the reference does not name an image index."""

    reference: Reference
    digest: str
    index: Json
    manifest: Json


def read_image(client: Client, reference: Reference, deadline_ns: int) -> Image:
    """Resolve the reference once and read its manifest.

    KYVERNO: from an image index it selects linux/amd64 on every machine (the default of
    go-containerregistry). Raises: RequestInvalid (``registry.manifest``), and the
    errors of ``Client.manifest``.
    """
    top = client.manifest(reference, deadline_ns)
    document = _document(top, reference)
    if not _is_of(top, document, INDEX_TYPES):
        return Image(reference, top.digest, None, document)
    chosen = reference.at(_for_platform(document, reference))
    below = client.manifest(chosen, deadline_ns)
    manifest = _document(below, chosen)
    return Image(reference, top.digest, document, manifest)


def _document(manifest: Manifest, reference: Reference) -> dict[str, Json]:
    document = _json(manifest.body, reference)
    is_supported = _is_of(manifest, document, (*INDEX_TYPES, *MANIFEST_TYPES))
    if type(document) is not dict or not is_supported:
        raise _invalid(reference, f"unsupported media type {manifest.media_type!r}")
    return document


def _is_of(manifest: Manifest, document: Json, types: tuple[str, ...]) -> bool:
    """Compare the media type, or the document's if the registry sends only JSON."""
    if manifest.media_type in (*INDEX_TYPES, *MANIFEST_TYPES):
        return manifest.media_type in types
    return type(document) is dict and document.get("mediaType") in types


def _for_platform(index: Json, reference: Reference) -> str:
    manifests = index.get("manifests")
    for entry in manifests if type(manifests) is list else []:
        platform = entry.get("platform") if type(entry) is dict else None
        if type(platform) is not dict:
            continue
        if (platform.get("os"), platform.get("architecture")) == _PLATFORM:
            return descriptor_digest(entry, reference)
    raise _invalid(reference, "no child with platform linux/amd64")


def descriptor_digest(descriptor: Json, reference: Reference) -> str:
    """Return the digest that a descriptor names. Raises: RequestInvalid."""
    digest = descriptor.get("digest") if type(descriptor) is dict else None
    if type(digest) is not str:
        raise _invalid(reference, "a descriptor has no digest")
    return parse_reference(f"{reference.place}@{digest}").digest


def image_data(client: Client, image_name: str, deadline_ns: int) -> Json:
    """Return the value of an imageRegistry entry.

    Shape: ``{image, resolvedImage, registry, repository, identifier, manifestList,
    manifest, configData}``. Raises: as ``read_image``.
    """
    reference = parse_reference(image_name)
    image = read_image(client, reference, deadline_ns)
    config = descriptor_digest(image.manifest.get("config"), reference)
    blob = client.blob(reference, config, deadline_ns)
    return {
        "image": image_name,
        "resolvedImage": f"{reference.place}@{image.digest}",
        "registry": reference.registry,
        "repository": reference.repository,
        "identifier": _identifier(image_name, reference),
        "manifestList": image.index,
        "manifest": image.manifest,
        "configData": _json(blob, reference),
    }


def _identifier(image_name: str, reference: Reference) -> str:
    """Return the tag, the digest, or both if the reference has both.

    KYVERNO: the tag is whatever follows the last colon before the digest, also the port
    of a registry: ``localhost:5000/app@sha256:...`` has the tag ``5000/app``.
    """
    before, separator, _ = image_name.partition("@")
    tag = before.rpartition(":")[2] if separator and ":" in before else ""
    return f"{tag}@{reference.digest}" if tag else reference.identifier


def _json(data: bytes, reference: Reference) -> Json:
    try:
        return decode_parts(data, REGISTRY_JSON_PARTS_MAX)
    except JsonInvalid as error:
        raise _invalid(reference, "not JSON") from error


def _invalid(reference: Reference, reason: str) -> RequestInvalid:
    return RequestInvalid("registry.manifest", f"{reference.name}: {reason}")
