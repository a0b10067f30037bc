"""Implement the functions of ImageValidatingPolicies that verify images.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, ``with_context``, the values of
``attestors`` and of ``getImageData``. Next: expr/cel/catalogue.py;
program/image_policies/verification.py implements the verification.
May touch: registries, through the context.
Source: Kyverno pkg/cel/libs/imageverify/{lib,impl}.go; docs/behaviour/cel 10.4.

Upstream compiles its functions for each request, so they have access to the request.
Here a program is linked once, and ``with_context`` passes the request to each call in a
hidden variable.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from kyverno_mp.expr.cel.library import Declaration, function, member
from kyverno_mp.expr.cel.nodes import Call, Expression, Ident
from kyverno_mp.expr.cel.values import CelFailed, Meter, Record, Value
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.values.jsonvalue import Json

CONTEXT: Final = "@images"
"""The name of the hidden variable, which no expression can contain."""
_CALL_COST: Final = 5_000


class Attestor:
    """An entry of ``attestors``; only the verifier interprets ``terms``."""

    __slots__ = ("name", "terms")
    type_name = "v1beta1.Attestor"

    def __init__(self, name: str, terms: Any) -> None:
        self.name = name
        self.terms = terms


class ImageVerifier(Protocol):
    """Verifies images for one policy and one object."""

    def signatures(self, image: str, attestors: Sequence[Attestor]) -> int:
        """Return how many attestors have signed the image. Raises: CelFailed."""

    def attestations(
        self, image: str, attestation: str, attestors: Sequence[Attestor]
    ) -> int:
        """Return how many attestors have signed the attestation. Raises: CelFailed."""

    def payload(self, image: str, attestation: str) -> Json:
        """Return the payload of a verified attestation. Raises: CelFailed."""

    def data(self, image: str) -> Json:
        """Return the manifest and the configuration of the image. Raises: CelFailed."""


class VerifierContext(NamedTuple):
    """The value of the hidden variable."""

    verifier: ImageVerifier

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "imageverify.Context"


class GoRecord(Record):
    """A record whose fields have the names of the Go struct's fields."""

    __slots__ = ("_fields",)
    type_name = "imagedataloader.ImageData"

    def __init__(self, fields: Mapping[str, Value]) -> None:
        self._fields = fields

    def field(self, name: str) -> Value:
        """Return a field's value. Raises: CelFailed."""
        if name not in self._fields:
            raise CelFailed(f"no such field: {name}")
        return self._fields[name]

    def has(self, name: str) -> bool:
        """Return whether a field is set."""
        return bool(self._fields.get(name))


def _attestors(attestors: list[Value]) -> list[Attestor]:
    for index, attestor in enumerate(attestors):
        if attestor.__class__ is not Attestor:
            raise CelFailed(f"element {index} of the list is not an attestor")
    return attestors


def _signatures(
    _meter: Meter, context: VerifierContext, image: str, attestors: list[Value]
) -> int:
    return context.verifier.signatures(image, _attestors(attestors))


def _attestations(
    _meter: Meter,
    context: VerifierContext,
    image: str,
    attestation: str,
    attestors: list[Value],
) -> int:
    checked = _attestors(attestors)
    return context.verifier.attestations(image, attestation, checked)


def _payload(
    _meter: Meter, context: VerifierContext, image: str, attestation: str
) -> Value:
    return context.verifier.payload(image, attestation)


def _data(_meter: Meter, context: VerifierContext, image: str) -> Value:
    return image_record(context.verifier.data(image))


_FUNCTIONS: Final = (
    ("verifyImageSignatures", "string, list(dyn)", "int", _signatures),
    ("verifyAttestationSignatures", "string, string, list(dyn)", "int", _attestations),
    ("getImageData", "string", "dyn", _data),
    ("extractPayload", "string, string", "dyn", _payload),
)
_NAMES: Final = frozenset(row[0] for row in _FUNCTIONS)
OVERLOADS: Final[tuple[Declaration, ...]] = (
    *(function(f"{name}({args}) -> {result}") for name, args, result, _ in _FUNCTIONS),
    *(
        member(
            f"{name}(VerifierContext, {args}) -> {result}",
            call,
            cost=_CALL_COST,
            effects=EFFECT_REGISTRY,
        )
        for name, args, result, call in _FUNCTIONS
    ),
)
"""The functions as expressions call them, and with the hidden variable."""


def with_context(expression: Expression) -> Expression:
    """Return a checked expression with the hidden variable added to its calls."""
    node = expression.node
    return expression if node is None else Expression(expression.text, _rewritten(node))


def _rewritten(node: Any) -> Any:
    if isinstance(node, tuple):
        return tuple(map(_rewritten, node))
    if not isinstance(node, msgspec.Struct):
        return node
    rewritten: Any = type(node)(
        *(_rewritten(getattr(node, name)) for name in node.__struct_fields__)
    )
    if (
        type(rewritten) is Call
        and rewritten.target is None
        and rewritten.function in _NAMES
    ):
        return Call(
            rewritten.function,
            Ident(CONTEXT, rewritten.at),
            rewritten.args,
            rewritten.at,
        )
    return rewritten


_MANIFEST: Final = {
    "schemaVersion": "SchemaVersion",
    "mediaType": "MediaType",
    "config": "Config",
    "layers": "Layers",
    "annotations": "Annotations",
    "subject": "Subject",
}
_DESCRIPTOR: Final = {
    "mediaType": "MediaType",
    "size": "Size",
    "digest": "Digest",
    "data": "Data",
    "urls": "URLs",
    "annotations": "Annotations",
    "artifactType": "ArtifactType",
}
_CONFIG: Final = {
    "architecture": "Architecture",
    "author": "Author",
    "container": "Container",
    "created": "Created",
    "docker_version": "DockerVersion",
    "history": "History",
    "os": "OS",
    "rootfs": "RootFS",
    "config": "Config",
    "os.version": "OSVersion",
    "variant": "Variant",
    "os.features": "OSFeatures",
}
_SETTINGS: Final = (
    "Cmd",
    "Domainname",
    "Entrypoint",
    "Env",
    "Healthcheck",
    "Hostname",
    "Image",
    "Labels",
    "OnBuild",
    "OpenStdin",
    "StdinOnce",
    "Tty",
    "User",
    "Volumes",
    "WorkingDir",
    "ExposedPorts",
    "ArgsEscaped",
    "NetworkDisabled",
    "MacAddress",
    "StopSignal",
    "Shell",
)


def image_record(data: Mapping[str, Json]) -> GoRecord:
    """Return image data as the native object that upstream's function returns."""
    manifest = _named(data["manifest"], _MANIFEST)
    manifest["Config"] = GoRecord(_named(manifest.get("Config"), _DESCRIPTOR))
    layers = manifest.get("Layers")
    manifest["Layers"] = [
        GoRecord(_named(layer, _DESCRIPTOR))
        for layer in (layers if type(layers) is list else ())
    ]
    config = _named(data["config"], _CONFIG)
    raw_settings = config.get("Config")
    settings = raw_settings if type(raw_settings) is dict else {}
    config["Config"] = GoRecord({name: settings.get(name) for name in _SETTINGS})
    names = ("image", "resolvedImage", "registry", "repository", "tag", "digest")
    fields: dict[str, Value] = {
        f"{name[0].upper()}{name[1:]}": data[name] for name in names
    }
    return GoRecord(
        {
            **fields,
            "Identifier": data["identifier"],
            "ImageIndex": data["imageIndex"],
            "Manifest": GoRecord(manifest),
            "ConfigData": GoRecord(config),
        }
    )


def _named(value: Json, names: Mapping[str, str]) -> dict[str, Value]:
    raw = value if type(value) is dict else {}
    return {name: raw.get(key) for key, name in names.items()}
