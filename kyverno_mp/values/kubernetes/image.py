"""Parse image references, and find the image references in a resource.

Room: values. Takes: reference strings, resources as JSON. Gives: ImageInfo, and the
value of the ``images`` variable. Next: program/context/rule_context,
program/pod_security.
Source: docs/behaviour/engine 3.8; the grammar is github.com/distribution/reference's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import re2

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json

DEFAULT_REGISTRY: Final = "docker.io"
REPOSITORY_NAME_LENGTH_MAX: Final = 255
"""RepositoryNameTotalLengthMax of distribution/reference."""

_COMPONENT: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH: Final = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_TAG: Final = r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
# SAFETY: these use RE2, because the strings come from requests and may be long.
_REFERENCE: Final = re2.compile(
    rf"((?:{_DOMAIN}/)?{_PATH})(?::({_TAG}))?(?:@({_DIGEST}))?"
)
_NAME: Final = re2.compile(rf"(?:({_DOMAIN})/)?({_PATH})")
_HEX_DIGITS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LOWER_HEX: Final = frozenset("0123456789abcdef")
_REGISTRIES_MAX: Final = 16
_CONTAINERS_MAX: Final = 32
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_POD_SPECS: Final = (
    ("spec",),
    ("spec", "template", "spec"),
    ("spec", "jobTemplate", "spec", "template", "spec"),
)


class ImageExtractor(msgspec.Struct, frozen=True, array_like=True):
    """One ``imageExtractors`` entry of a rule; "" means absent.

    ``path``: as in the policy, e.g. ``/spec/steps/*/image``.
    """

    path: str
    value: str = ""
    key: str = ""
    name: str = ""
    jmes_path: str = ""


class ImageInfo(NamedTuple):
    """The parts of one reference; "" means absent. ``path`` includes ``name``."""

    registry: str
    name: str
    path: str
    tag: str
    digest: str
    reference: str
    reference_with_tag: str

    def text(self) -> str:
        """Build the reference from its parts; with a digest, the tag is omitted."""
        image = f"{self.registry}/{self.path}" if self.registry else self.path
        return f"{image}@{self.digest}" if self.digest else f"{image}:{self.tag}"


class _Place(NamedTuple):
    """Where an extractor searches: ``fields`` below the resource, then ``value``."""

    fields: tuple[str, ...]
    value: str
    key: str
    name: str
    jmes_path: str


def _standard(*parents: str) -> tuple[_Place, ...]:
    return tuple(
        _Place((*parents, listed, "*"), "image", "name", listed, "")
        for listed in ("initContainers", "containers", "ephemeralContainers")
    )


_TEMPLATE: Final = _standard("spec", "template", "spec")
_REGISTERED: Final[Mapping[str, tuple[_Place, ...]]] = {
    "Pod": _standard("spec"),
    "DaemonSet": _TEMPLATE,
    "Deployment": _TEMPLATE,
    "ReplicaSet": _TEMPLATE,
    "ReplicationController": _TEMPLATE,
    "StatefulSet": _TEMPLATE,
    "Job": _TEMPLATE,
    "CronJob": _standard("spec", "jobTemplate", "spec", "template", "spec"),
}


def parse_image(
    image: str,
    *,
    default_registry: str = DEFAULT_REGISTRY,
    default_registry_mutation: bool = True,
) -> ImageInfo:
    """Parse a reference; without a registry, it gets the default registry.

    Raises: ExpressionFailed (``image.bad``) with upstream's message.
    """
    full = _with_registry(image, default_registry)
    try:
        registry, path, tag, digest = _parts(full)
    except ValueError as error:
        flag = "true" if default_registry_mutation else "false"
        raise ExpressionFailed(
            "image.bad",
            f"bad image: {full}, defaultRegistry: {default_registry}, "
            f"enableDefaultRegistryMutation: {flag}: {error}",
        ) from error
    if not digest and not tag:
        tag = "latest"
    if full != image and not default_registry_mutation:
        registry = ""
    prefix = f"{registry}/{path}" if registry else path
    reference = f"{prefix}@{digest}" if digest else f"{prefix}:{tag}"
    # KYVERNO: with a digest and no tag, referenceWithTag ends in a colon (3.8).
    with_tag = f"{prefix}:{tag}"
    name = path.rpartition("/")[2]
    head, slash, rest = path.partition("/")
    if slash and not registry and "_" in head:
        # KYVERNO: a first component that is not a valid domain becomes the registry
        # only after the references are built.
        registry, path = head, rest
    return ImageInfo(registry, name, path, tag, digest, reference, with_tag)


def has_registry(image: str) -> bool:
    """Return whether a reference names its registry."""
    head, slash, _ = image.partition("/")
    return bool(slash) and (
        "." in head or ":" in head or head == "localhost" or head.lower() != head
    )


def _with_registry(image: str, default_registry: str) -> str:
    return image if has_registry(image) else f"{default_registry}/{image}"


def _parts(full: str) -> tuple[str, str, str, str]:
    """Return domain, path, tag and digest. Raises: ValueError with Go's text."""
    match = _REFERENCE.fullmatch(full)
    if match is None:
        lower = _REFERENCE.fullmatch(full.lower())
        raise ValueError(
            "invalid reference format"
            if lower is None
            else "repository name must be lowercase"
        )
    name, tag, digest = match.groups()
    anchored = _NAME.fullmatch(name)
    domain, path = anchored.groups() if anchored else ("", name)
    if len(path) > REPOSITORY_NAME_LENGTH_MAX:
        raise ValueError(
            "repository name must not be more than "
            f"{REPOSITORY_NAME_LENGTH_MAX} characters"
        )
    if digest:
        _check_digest(digest)
    return domain or "", path, tag or "", digest or ""


def _check_digest(digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    length = _HEX_DIGITS.get(algorithm)
    if length is None:
        raise ValueError("unsupported digest algorithm")
    if len(encoded) != length:
        raise ValueError("invalid checksum digest length")
    if not _LOWER_HEX.issuperset(encoded):
        raise ValueError("invalid checksum digest format")


class ImageSettings(NamedTuple):
    """The inputs of the extraction in addition to the resource.

    ``search``: evaluates an extractor's jmesPath on the text found.
    """

    default_registry: str = DEFAULT_REGISTRY
    default_registry_mutation: bool = True
    search: Callable[[str, Json], Json] | None = None


_DEFAULTS: Final = ImageSettings()


def extract_images(
    resource: Json,
    kind: str,
    extractors: Mapping[str, Sequence[ImageExtractor]] | None = None,
    settings: ImageSettings = _DEFAULTS,
) -> dict[str, dict[str, dict[str, Json]]]:
    """Return the value of the ``images`` variable for one resource.

    ``extractors``: the rule's imageExtractors by kind; for a kind named there, only its
    extractors are used. Lists without images are omitted.

    Shape: ``{"containers": {"nginx": {"registry": "docker.io", "name": "nginx",
    "path": "nginx", "tag": "latest", "reference": .., "referenceWithTag": ..,
    "jsonPointer": "/spec/containers/0/image"}}}``.

    If two images have the same name, the value contains only one of them, so it is not
    a list of all images.

    Raises: ExpressionFailed (``image.extract``).
    """
    images: dict[str, dict[str, dict[str, Json]]] = {}
    for name, descriptions in _listed(resource, kind, extractors, settings):
        by_key = dict(descriptions)
        if by_key:
            images[name] = by_key
    return images


def list_images(
    resource: Json,
    kind: str,
    extractors: Mapping[str, Sequence[ImageExtractor]] | None = None,
    settings: ImageSettings = _DEFAULTS,
) -> list[dict[str, Json]]:
    """Return the descriptions of all images, including images with equal names.

    Raises: as ``extract_images``.
    """
    return [
        described
        for _, descriptions in _listed(resource, kind, extractors, settings)
        for _, described in descriptions
    ]


def registries_of(resource: Json) -> list[str]:
    """Return the registries of a Pod's or a Pod template's images, at most 16.

    PERF: the event loop calls this for each review of images, so only the first
    containers are read, and references are not parsed completely.
    """
    hosts: set[str] = set()
    for fields in _POD_SPECS:
        spec = resource
        for field in fields:
            spec = spec.get(field) if type(spec) is dict else None
        if type(spec) is not dict:
            continue
        for name in _CONTAINERS:
            listed = spec.get(name)
            for container in listed[:_CONTAINERS_MAX] if type(listed) is list else ():
                image = container.get("image") if type(container) is dict else None
                if type(image) is str and image:
                    full = _with_registry(image.strip(), DEFAULT_REGISTRY)
                    hosts.add(full.partition("/")[0])
    return sorted(hosts)[:_REGISTRIES_MAX]


def _listed(
    resource: Json,
    kind: str,
    extractors: Mapping[str, Sequence[ImageExtractor]] | None,
    settings: ImageSettings,
) -> Iterator[tuple[str, Iterator[tuple[str, dict[str, Json]]]]]:
    if extractors is not None and kind in extractors:
        places = tuple(_place(extractor) for extractor in extractors[kind])
        if not places:
            raise _failed(f"no extractors found for {kind}")
    else:
        places = _REGISTERED.get(kind, ())
    for source in places:
        yield source.name, _found(resource, source, settings)


def _place(extractor: ImageExtractor) -> _Place:
    fields = [part.strip(" ") for part in extractor.path.split("/")]
    fields = [part for part in fields if part]
    value = extractor.value
    if not value:
        if not fields:
            raise _failed("invalid image extractor path")
        value = fields.pop()
    return _Place(
        tuple(fields),
        value,
        extractor.key,
        extractor.name or "custom",
        extractor.jmes_path,
    )


def _found(
    resource: Json, source: _Place, settings: ImageSettings
) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield the key and the description of each image found at ``source``."""
    for path, holder in _holders(resource, source.fields):
        pointer = f"/{'/'.join(map(_escaped, path))}/{_escaped(source.value)}"
        key: Json = pointer
        if source.key:
            key = holder.get(source.key)
            if type(key) is not str:
                raise _failed("invalid key")
        image = holder.get(source.value)
        if type(image) is not str or not image.strip():
            continue
        if source.jmes_path:
            image = _searched(image, source.jmes_path, settings)
        yield key, _described(image, pointer, settings)


def _escaped(token: str) -> str:
    """Escape a key as a token of a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def _holders(
    resource: Json, fields: tuple[str, ...]
) -> Iterator[tuple[list[str], dict[str, Json]]]:
    """Yield the mappings found by ``fields``, each with its path."""
    level: list[tuple[list[str], Json]] = [([], resource)]
    for field in fields:
        below: list[tuple[list[str], Json]] = []
        for path, value in level:
            if value is None:
                continue
            if field != "*":
                if type(value) is not dict:
                    raise _failed("invalid image config")
                below.append(([*path, field], value.get(field)))
            elif type(value) is list:
                below.extend(([*path, str(i)], v) for i, v in enumerate(value))
            elif type(value) is dict:
                below.extend(([*path, k], v) for k, v in value.items())
            else:
                raise _failed("invalid type")
        level = below
    for path, value in level:
        if value is None:
            continue
        if type(value) is not dict:
            raise _failed("invalid image config")
        yield path, value


def _searched(image: str, jmes_path: str, settings: ImageSettings) -> str:
    assert settings.search is not None, "a jmesPath requires settings.search"
    try:
        value = settings.search(jmes_path, image)
    except ExpressionFailed as error:
        raise _failed(
            f"failed to apply jmespath {jmes_path}: {error.message}"
        ) from error
    if type(value) is not str:
        raise _failed(
            f"jmespath {jmes_path} must produce a string, but produced {value}"
        )
    return value


def _described(image: str, pointer: str, settings: ImageSettings) -> dict[str, Json]:
    try:
        info = parse_image(
            image,
            default_registry=settings.default_registry,
            default_registry_mutation=settings.default_registry_mutation,
        )
    except ExpressionFailed as error:
        raise _failed(f"invalid image '{image}' ({error.message})") from error
    described: dict[str, Json] = {"name": info.name, "path": info.path}
    optional = (
        ("registry", info.registry),
        ("tag", info.tag),
        ("digest", info.digest),
        ("reference", info.reference),
        ("referenceWithTag", info.reference_with_tag),
    )
    described.update({key: value for key, value in optional if value})
    described["jsonPointer"] = pointer
    return described


def _failed(message: str) -> ExpressionFailed:
    return ExpressionFailed("image.extract", message)
