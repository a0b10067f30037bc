"""Implement image references, parsed like go-containerregistry.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, ImageReference. Next:
expr/cel/catalogue.py. May touch: nothing outside its arguments; nothing is fetched.
Source: kyverno/sdk cel/libs/image; go-containerregistry pkg/name (weak validation);
docs/behaviour/cel 12.
"""

from typing import Final, NamedTuple

import re2

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter, text_bytes
from kyverno_mp.values.go.gourl import is_authority

_DEFAULT_REGISTRY: Final = "index.docker.io"
_ALIAS: Final = "docker.io"
_COST: Final = 180
_SHOWN_MAX: Final = 256
# SAFETY: RE2, because the strings come from requests and may be long.
_TAG: Final = re2.compile(r"[A-Za-z0-9_.\-]{1,128}")
_REPOSITORY: Final = re2.compile(r"[a-z0-9_./\-]{2,255}")
_DIGEST: Final = re2.compile(r"sha256:[0-9a-f]{64}")


class ImageReference(NamedTuple):
    """The parts of a reference; without a digest ``tag`` is never empty.

    KYVERNO: references with different texts are not equal, even ``nginx`` and
    ``nginx:latest``.
    """

    registry: str
    repository: str
    tag: str
    digest: str
    text: str

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "kyverno.image"


def parse_reference(image: str) -> ImageReference | None:
    """Return the parts of a reference; None if the string is not a reference."""
    return _tagged(image) or _digested(image)


def _split_tag(image: str) -> tuple[str, str] | None:
    base, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        return image, ""
    return (base, tag) if _TAG.fullmatch(tag) else None


def _tagged(image: str) -> ImageReference | None:
    parts = _split_tag(image)
    repository = _repository(parts[0]) if parts else None
    if parts is None or repository is None:
        return None
    return ImageReference(*repository, parts[1] or "latest", "", image)


def _digested(image: str) -> ImageReference | None:
    """Parse ``name[:tag]@sha256:...``; the tag is dropped."""
    base, at, digest = image.partition("@")
    if not at or not _DIGEST.fullmatch(digest):
        return None
    parts = _split_tag(base)
    repository = _repository(parts[0]) if parts else None
    if repository is None:
        repository = _repository(base)
    return (
        None if repository is None else ImageReference(*repository, "", digest, image)
    )


def _repository(repository: str) -> tuple[str, str] | None:
    """Return the registry and the repository."""
    head, slash, rest = repository.partition("/")
    registry, path = "", repository
    # KYVERNO: ``localhost`` without a dot or a port is a part of the path.
    if slash and ("." in head or ":" in head):
        registry, path = head, rest
    if not (_REPOSITORY.fullmatch(path) and is_authority(registry)):
        return None
    if registry in ("", _ALIAS):
        registry = _DEFAULT_REGISTRY
    if registry == _DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    return registry, path


def _parsed(meter: Meter, image: str) -> ImageReference | None:
    # The regular expressions read a string up to six times, and the parts are copies.
    meter.charge_text(20 * len(image))
    meter.charge_bytes(4 * text_bytes(len(image), image))
    return parse_reference(image)


def _image(meter: Meter, image: str) -> ImageReference:
    reference = _parsed(meter, image)
    if reference is None:
        raise CelFailed(f"could not parse reference: {image[:_SHOWN_MAX]}")
    return reference


OVERLOADS: Final = (
    function("image(string) -> Image", _image, cost=_COST),
    function("parseImageReference(string) -> Image", _image, cost=_COST),
    function(
        "isImage(string) -> bool", lambda m, t: _parsed(m, t) is not None, cost=_COST
    ),
    member("containsDigest(Image) -> bool", lambda _m, i: bool(i.digest)),
    member("registry(Image) -> string", lambda _m, i: i.registry),
    member("repository(Image) -> string", lambda _m, i: i.repository),
    member("identifier(Image) -> string", lambda _m, i: i.digest or i.tag),
    member("tag(Image) -> string", lambda _m, i: i.tag),
    member("digest(Image) -> string", lambda _m, i: i.digest),
)
