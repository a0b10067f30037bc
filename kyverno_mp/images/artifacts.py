"""Read an image's digest, and the manifests that hold its signatures.

Room: images. Takes: a registry Client, references. Gives: digests, Layers.
Next: images/cosign.py. May touch: the network through registry/client.py.
Source: docs/behaviour/images 3.2, 6 (referrers, HTTP errors, digests).

Failures have the texts of go-containerregistry, which reports contain.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from kyverno_mp.errors import ExpressionFailed, InputError, RequestInvalid
from kyverno_mp.images.cosign import Layer
from kyverno_mp.images.keys import failed
from kyverno_mp.limits import (
    IMAGE_SIGNATURE_BYTES_MAX,
    IMAGE_SIGNATURES_MAX,
    REGISTRY_BLOB_BYTES_MAX,
    REGISTRY_MANIFEST_BYTES_MAX,
)
from kyverno_mp.registry.client import Client, checked_digest
from kyverno_mp.registry.exchange import RegistryResponse
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.values.gojson import JsonInvalid, decode_json
from kyverno_mp.values.gotext import sprint
from kyverno_mp.values.jsonvalue import Json

NOT_FOUND: Final = "image.not_found"
_OK, _MISSING = 200, 404
_NO_REFERRERS: Final = frozenset({400, 404, 406})
_NAME_LENGTH: Final = range(2, 256)
_BODY_CHARACTERS: Final = 1024
_PHRASES: Final = {
    **{status.value: status.phrase for status in HTTPStatus},
    # Go's words where they differ.
    414: "Request URI Too Long",
    418: "I'm a teapot",
}
_SIGNATURE_TYPE: Final = "application/vnd.dev.cosign.artifact.sig.v1+json"


class Artifacts:
    """Reads of one registry client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def digest(self, image: str, deadline_ns: int) -> str:
        """Return the digest of an image or index; one in the reference is not read.

        Raises: ExpressionFailed (``image.not_found`` for a 404), DependencyError.
        """
        reference = parsed(image)
        if reference.digest:
            return reference.digest
        url, answer = self._manifest(reference, deadline_ns)
        if answer.status != _OK:
            code = NOT_FOUND if answer.status == _MISSING else "image.registry"
            raise ExpressionFailed(code, http_error(url, answer))
        return _digest(answer.body, "", reference.name)

    def signatures(
        self, place: Reference, digest: str, suffix: str, deadline_ns: int
    ) -> list[Layer]:
        """Return the layers of the manifest that a tag made of the digest names.

        Raises: ExpressionFailed, DependencyError.
        """
        tag = f"{digest.replace(':', '-', 1)}.{suffix}"
        named = Reference(place.registry, place.repository, tag, "")
        url, answer = self._manifest(named, deadline_ns)
        if answer.status == _MISSING:
            return []
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        return self._layers(place, answer.body, named.name, deadline_ns)

    def referrers(self, place: Reference, digest: str, deadline_ns: int) -> list[Layer]:
        """Return the layers of the last OCI 1.1 referrer with signatures.

        KYVERNO: only the last one counts (docs/behaviour/images 3.2).
        Raises: ExpressionFailed, DependencyError.
        """
        chosen = ""
        for entry in self._referring(place, digest, deadline_ns):
            found = entry.get("digest")
            if entry.get("artifactType") == _SIGNATURE_TYPE and type(found) is str:
                chosen = found
        if not chosen:
            return []
        named = parsed(f"{place.place}@{chosen}")
        url, answer = self._manifest(named, deadline_ns)
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        _digest(answer.body, chosen, named.name)
        return self._layers(place, answer.body, named.name, deadline_ns)

    def _referring(
        self, place: Reference, digest: str, deadline_ns: int
    ) -> list[dict[str, Json]]:
        url, answer = self._read(
            place, f"referrers/{digest}", deadline_ns, REGISTRY_MANIFEST_BYTES_MAX
        )
        kind = answer.headers.get("content-type", "")
        if answer.status in _NO_REFERRERS or (
            answer.status == _OK and "image.index" not in kind
        ):
            tag = digest.replace(":", "-", 1)
            named = Reference(place.registry, place.repository, tag, "")
            url, answer = self._manifest(named, deadline_ns)
            if answer.status == _MISSING:
                return []
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        listed = _object(answer.body, url).get("manifests")
        entries = listed if type(listed) is list else []
        return [entry for entry in entries if type(entry) is dict]

    def _layers(
        self, place: Reference, manifest: bytes, name: str, deadline_ns: int
    ) -> list[Layer]:
        listed = _object(manifest, name).get("layers")
        layers = listed if type(listed) is list else []
        if len(layers) > IMAGE_SIGNATURES_MAX:
            text = f"{name}: more than {IMAGE_SIGNATURES_MAX} signatures"
            raise failed(text)
        left = IMAGE_SIGNATURE_BYTES_MAX
        found = []
        for layer in layers:
            read = self._layer(place, layer, deadline_ns)
            left -= len(read.payload)
            if left < 0:
                text = (
                    f"{name}: payloads of more than {IMAGE_SIGNATURE_BYTES_MAX} bytes"
                )
                raise failed(text)
            found.append(read)
        return found

    def _layer(self, place: Reference, raw: Json, deadline_ns: int) -> Layer:
        fields: Mapping[str, Json] = raw if type(raw) is dict else {}
        given, digest = fields.get("annotations"), fields.get("digest")
        annotations = given if type(given) is dict else {}
        try:
            named = parsed(f"{place.place}@{digest}")
            url, answer = self._read(
                named, f"blobs/{named.digest}", deadline_ns, REGISTRY_BLOB_BYTES_MAX
            )
            if answer.status != _OK:
                return Layer(named.digest, b"", annotations, http_error(url, answer))
            _digest(answer.body, named.digest, named.name)
        except ExpressionFailed as error:
            return Layer(str(digest), b"", annotations, error.message)
        return Layer(named.digest, answer.body, annotations)

    def _manifest(
        self, reference: Reference, deadline_ns: int
    ) -> tuple[str, RegistryResponse]:
        path = f"manifests/{reference.identifier}"
        return self._read(reference, path, deadline_ns, REGISTRY_MANIFEST_BYTES_MAX)

    def _read(
        self, place: Reference, path: str, deadline_ns: int, bytes_max: int
    ) -> tuple[str, RegistryResponse]:
        """Read below a repository; an answer that is no answer fails this read only.

        Raises: ExpressionFailed, DependencyError.
        """
        try:
            return self._client.read(place, path, deadline_ns, bytes_max=bytes_max)
        except InputError as error:
            # SAFETY: else one registry's answer discards the failures of other images.
            raise failed(error.message) from error


def parsed(image: str) -> Reference:
    """Parse a reference as registry clients do. Raises: ExpressionFailed."""
    try:
        reference = parse_reference(image)
    except RequestInvalid as error:
        raise failed(f"failed to parse image {image}") from error
    if len(reference.repository) not in _NAME_LENGTH:
        raise failed(f"failed to parse image {image}")
    return reference


def http_error(url: str, answer: RegistryResponse) -> str:
    """Return the text for a refused GET."""
    errors = list(_errors(answer.body))
    if len(errors) > 1:
        return f"GET {url}: multiple errors returned: {'; '.join(errors)}"
    if errors:
        return f"GET {url}: {errors[0]}"
    phrase = _PHRASES.get(answer.status, "")
    text = f"GET {url}: unexpected status code {answer.status} {phrase}".rstrip()
    body = answer.body.decode(errors="replace").strip()[:_BODY_CHARACTERS]
    return f"{text}: {body}" if body else text


def _errors(body: bytes) -> Iterator[str]:
    try:
        listed = _object(body, "").get("errors")
    except ExpressionFailed:
        return
    for one in listed if type(listed) is list else []:
        if type(one) is not dict:
            continue
        parts = f"{one.get('code', '')}: {one.get('message', '')}"
        detail = one.get("detail")
        yield parts if detail is None else f"{parts}; {sprint(detail)}"


def _object(data: bytes, what: str) -> dict[str, Json]:
    try:
        value = decode_json(data.decode())
    except (JsonInvalid, UnicodeDecodeError) as error:
        raise failed(f"{what}: not JSON") from error
    if type(value) is not dict:
        raise failed(f"{what}: not a JSON object")
    return value


def _digest(data: bytes, named: str, what: str) -> str:
    try:
        return checked_digest(data, named, what)
    except RequestInvalid as error:
        raise failed(error.message) from error
