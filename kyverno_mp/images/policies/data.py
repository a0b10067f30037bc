"""Read an image's manifest and configuration, with upstream's error messages.

Room: images. Takes: Artifacts, a reference. Gives: ReadImage. Next: review.py.
May touch: the network through images/artifacts.py.
Source: kyverno/sdk extensions/imagedataloader/loader.go; docs/behaviour/images 6
(index, digests), 8.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed, RequestInvalid
from kyverno_mp.images.artifacts import Artifacts, Descriptor, json_object, parsed
from kyverno_mp.images.keys import failed
from kyverno_mp.registry.client import INDEX_TYPES
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.values.jsonvalue import Json

_PLATFORM: Final = ("linux", "amd64")


class ReadImage(NamedTuple):
    """One image; ``descriptor``: its reference's target, an index or a manifest."""

    reference: Reference
    descriptor: Descriptor
    data: Mapping[str, Json]
    size: int = 0
    """Total size of its documents in bytes."""

    @property
    def digest(self) -> str:
        """The digest of its reference's target."""
        return self.descriptor.digest


def read_image(artifacts: Artifacts, image: str, deadline_ns: int) -> ReadImage:
    """Read an image. Raises: ExpressionFailed, DependencyError."""
    reference = _reference(image)
    named = artifacts.manifest(reference, deadline_ns)
    document = json_object(named.body, reference.name)
    index: Json = None
    size = len(named.body)
    if _is_index(named, document):
        index = document
        chosen = reference.at(_for_platform(document, reference))
        chosen_manifest = artifacts.manifest(chosen, deadline_ns)
        document = json_object(chosen_manifest.body, chosen.name)
        size += len(chosen_manifest.body)
    config = document.get("config")
    digest = config.get("digest") if type(config) is dict else None
    if type(digest) is not str:
        raise failed(f"{reference.name}: the manifest has no configuration")
    blob = artifacts.blob(reference, digest, deadline_ns)
    tag = f":{reference.tag}" if not reference.digest else ""
    data: dict[str, Json] = {
        "image": image,
        "resolvedImage": f"{reference.place}{tag}@{named.digest}",
        "registry": reference.registry,
        "repository": reference.repository,
        "identifier": reference.identifier,
        "tag": "" if reference.digest else reference.tag,
        "digest": named.digest,
        "imageIndex": index,
        "manifest": document,
        "config": json_object(blob, reference.name),
    }
    return ReadImage(reference, named, data, size + len(blob))


def _reference(image: str) -> Reference:
    try:
        parse_reference(image)
    except RequestInvalid as error:
        raise ExpressionFailed(error.code, error.message) from error
    return parsed(image)


def _is_index(descriptor: Descriptor, document: Mapping[str, Json]) -> bool:
    """Compare the media type, or the document's if the registry sends only JSON."""
    return (
        descriptor.media_type in INDEX_TYPES or document.get("mediaType") in INDEX_TYPES
    )


def _for_platform(index: Mapping[str, Json], reference: Reference) -> str:
    listed = index.get("manifests")
    for entry in listed if type(listed) is list else []:
        platform = entry.get("platform") if type(entry) is dict else None
        if type(platform) is not dict:
            continue
        digest = entry.get("digest")
        pair = (platform.get("os"), platform.get("architecture"))
        if pair == _PLATFORM and type(digest) is str:
            return parsed(f"{reference.place}@{digest}").digest
    raise failed(f"no child with platform linux/amd64 in index {reference.name}")
