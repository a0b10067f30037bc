"""Read an image's digest, and the manifests that hold its signatures.

Room: images. Takes: a registry Client, references. Gives: digests, Layers.
Next: images/cosign.py. May touch: the network through registry/client.py.
Source: docs/behaviour/images 3.2, 6 (referrers, HTTP errors, digests).

Errors have go-containerregistry's messages, because reports contain them.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from itertools import islice
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed, InputError, RequestInvalid
from kyverno_mp.images.keys import failed
from kyverno_mp.images.sigstore.proof import Layer
from kyverno_mp.limits import (
    IMAGE_REFERENCES_CACHED_MAX,
    IMAGE_REFERRERS_MAX,
    IMAGE_SIGNATURE_BYTES_MAX,
    IMAGE_SIGNATURES_MAX,
    REGISTRY_BLOB_BYTES_MAX,
    REGISTRY_JSON_PARTS_MAX,
    REGISTRY_MANIFEST_BYTES_MAX,
)
from kyverno_mp.registry.client import Client, checked_digest
from kyverno_mp.registry.exchange import RegistryResponse
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.values.go.gojson import JsonInvalid, decode_parts
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json

NOT_FOUND: Final = "image.not_found"
_OK, _MISSING = 200, 404
_NO_REFERRERS: Final = frozenset({400, 404, 406})
_NAME_LENGTH: Final = range(2, 256)
_TAG: Final = re.compile(r"\w[\w.-]*", re.ASCII)
_BODY_CHARACTERS: Final = 1024
_ERRORS_MAX: Final = 10
"""Number of errors of one response to show; a registry usually sends one."""
_PHRASES: Final = {
    **{status.value: status.phrase for status in HTTPStatus},
    # Status texts that differ in Go.
    414: "Request URI Too Long",
    418: "I'm a teapot",
}
_SIGNATURE_TYPE: Final = "application/vnd.dev.cosign.artifact.sig.v1+json"


class _Blob(NamedTuple):
    """One blob. ``received``: the number of bytes read, also after a ``problem``."""

    received: int
    payload: bytes
    problem: str = ""


class Descriptor(NamedTuple):
    """A manifest or index, and the bytes from which its digest was computed."""

    media_type: str
    digest: str
    body: bytes


class Artifacts:
    """Reads manifests, blobs and referrers with one registry client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def digest(self, image: str, deadline_ns: int) -> str:
        """Return the digest of an image or index.

        A digest in the reference is returned without a call.

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

    def described(self, named: Reference, deadline_ns: int) -> Descriptor:
        """Return the manifest of a reference; the digest is computed from the bytes.

        Raises: ExpressionFailed with the message of a failed HEAD, DependencyError.
        """
        url, answer = self._manifest(named, deadline_ns)
        if answer.status != _OK:
            code = NOT_FOUND if answer.status == _MISSING else "image.registry"
            raise ExpressionFailed(code, _head_error(url, answer.status))
        digest = _digest(answer.body, named.digest, named.name)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        return Descriptor(kind, digest, answer.body)

    def document(
        self, reference: Reference, digest: str, deadline_ns: int
    ) -> Descriptor:
        """Return a manifest by its digest.

        Raises: ExpressionFailed with the message of a failed GET, DependencyError.
        """
        return self.manifest(parsed(f"{reference.place}@{digest}"), deadline_ns)

    def manifest(self, named: Reference, deadline_ns: int) -> Descriptor:
        """Return the manifest of a reference. Raises: as ``document``."""
        url, answer = self._manifest(named, deadline_ns)
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        kind = answer.headers.get("content-type", "").partition(";")[0].strip()
        digest = _digest(answer.body, named.digest, named.name)
        return Descriptor(kind, digest, answer.body)

    def blob(self, reference: Reference, digest: str, deadline_ns: int) -> bytes:
        """Return a blob after checking its digest.

        Raises: ExpressionFailed, DependencyError.
        """
        blob = self._blob(reference, digest, deadline_ns)
        if blob.problem:
            raise failed(blob.problem)
        return blob.payload

    def referring(
        self, reference: Reference, digest: str, deadline_ns: int
    ) -> list[dict[str, Json]]:
        """Return the descriptors of the OCI 1.1 referrers of a digest.

        Raises: ExpressionFailed (also if there are too many), DependencyError.
        """
        listed = self._referring(reference, digest, deadline_ns)
        if len(listed) > IMAGE_REFERRERS_MAX:
            raise failed(
                "failed to fetch referrers: too many referrers found, max limit is"
                f" {IMAGE_REFERRERS_MAX}"
            )
        return listed

    def signatures(
        self,
        reference: Reference,
        digest: str,
        suffix: str,
        deadline_ns: int,
        prefix: str = "",
    ) -> list[Layer]:
        """Return the layers of the manifest whose tag is derived from the digest.

        SAFETY: the author of a policy chooses the prefix, but not another path of the
        server. Raises: ExpressionFailed, DependencyError.
        """
        tag = f"{prefix}{digest.replace(':', '-', 1)}.{suffix}"
        if _TAG.fullmatch(tag) is None:
            raise failed(
                f"{reference.place}: the tag of the signatures is invalid: {tag}"
            )
        named = Reference(reference.registry, reference.repository, tag, "")
        url, answer = self._manifest(named, deadline_ns)
        if answer.status == _MISSING:
            return []
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        return self._layers(reference, answer.body, named.name, deadline_ns)

    def referrers(
        self, reference: Reference, digest: str, deadline_ns: int
    ) -> list[Layer]:
        """Return the layers of the last OCI 1.1 referrer with signatures.

        KYVERNO: only the last referrer is read (docs/behaviour/images 3.2).
        Raises: ExpressionFailed, DependencyError.
        """
        chosen = ""
        for entry in self._referring(reference, digest, deadline_ns):
            entry_digest = entry.get("digest")
            if (
                entry.get("artifactType") == _SIGNATURE_TYPE
                and type(entry_digest) is str
            ):
                chosen = entry_digest
        if not chosen:
            return []
        named = parsed(f"{reference.place}@{chosen}")
        url, answer = self._manifest(named, deadline_ns)
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        _digest(answer.body, chosen, named.name)
        return self._layers(reference, answer.body, named.name, deadline_ns)

    def _referring(
        self, reference: Reference, digest: str, deadline_ns: int
    ) -> list[dict[str, Json]]:
        url, answer = self._read(
            reference, f"referrers/{digest}", deadline_ns, REGISTRY_MANIFEST_BYTES_MAX
        )
        kind = answer.headers.get("content-type", "")
        if answer.status in _NO_REFERRERS or (
            answer.status == _OK and "image.index" not in kind
        ):
            tag = digest.replace(":", "-", 1)
            named = Reference(reference.registry, reference.repository, tag, "")
            url, answer = self._manifest(named, deadline_ns)
            if answer.status == _MISSING:
                return []
        if answer.status != _OK:
            raise failed(http_error(url, answer))
        listed = json_object(answer.body, url).get("manifests")
        entries = listed if type(listed) is list else []
        return [entry for entry in entries if type(entry) is dict]

    def _layers(
        self, reference: Reference, manifest: bytes, name: str, deadline_ns: int
    ) -> list[Layer]:
        listed = json_object(manifest, name).get("layers")
        layers = listed if type(listed) is list else []
        if len(layers) > IMAGE_SIGNATURES_MAX:
            message = f"{name}: more than {IMAGE_SIGNATURES_MAX} signatures"
            raise failed(message)
        bytes_left = IMAGE_SIGNATURE_BYTES_MAX
        blobs: dict[str, _Blob] = {}
        read_layers = []
        for layer in layers:
            fields: Mapping[str, Json] = layer if type(layer) is dict else {}
            raw_annotations, digest = (
                fields.get("annotations"),
                str(fields.get("digest")),
            )
            blob = blobs.get(digest)
            if blob is None:
                blob = blobs[digest] = self._blob(reference, digest, deadline_ns)
            # A blob is read once, but each layer's signature is checked over the whole
            # payload.
            bytes_left -= blob.received
            if bytes_left < 0:
                message = (
                    f"{name}: payloads of more than {IMAGE_SIGNATURE_BYTES_MAX} bytes"
                )
                raise failed(message)
            annotations = raw_annotations if type(raw_annotations) is dict else {}
            read_layers.append(Layer(digest, blob.payload, annotations, blob.problem))
        return read_layers

    def _blob(self, reference: Reference, digest: str, deadline_ns: int) -> _Blob:
        received = 0
        try:
            named = parsed(f"{reference.place}@{digest}")
            # A read that fails half-way may have transferred the maximum.
            received = REGISTRY_BLOB_BYTES_MAX
            url, answer = self._read(
                named, f"blobs/{named.digest}", deadline_ns, REGISTRY_BLOB_BYTES_MAX
            )
            received = len(answer.body)
            if answer.status != _OK:
                return _Blob(received, b"", http_error(url, answer))
            _digest(answer.body, named.digest, named.name)
        except ExpressionFailed as error:
            return _Blob(received, b"", error.message)
        return _Blob(received, answer.body)

    def _manifest(
        self, reference: Reference, deadline_ns: int
    ) -> tuple[str, RegistryResponse]:
        path = f"manifests/{reference.identifier}"
        return self._read(reference, path, deadline_ns, REGISTRY_MANIFEST_BYTES_MAX)

    def _read(
        self, reference: Reference, path: str, deadline_ns: int, bytes_max: int
    ) -> tuple[str, RegistryResponse]:
        """Read below a repository; an invalid response fails only this read.

        Raises: ExpressionFailed, DependencyError.
        """
        try:
            return self._client.read(reference, path, deadline_ns, bytes_max=bytes_max)
        except InputError as error:
            # SAFETY: otherwise one registry's response would hide the failures of other
            # images.
            raise failed(error.message) from error


# PERF: saves 0.2 ms per three images of a warm review.
@lru_cache(maxsize=IMAGE_REFERENCES_CACHED_MAX)
def parsed(image: str) -> Reference:
    """Parse a reference by the rules of registry clients. Raises: ExpressionFailed."""
    try:
        reference = parse_reference(image)
    except RequestInvalid as error:
        raise failed(f"failed to parse image {image}") from error
    if len(reference.repository) not in _NAME_LENGTH:
        raise failed(f"failed to parse image {image}")
    return reference


def http_error(url: str, answer: RegistryResponse) -> str:
    """Return the error message for a failed GET."""
    errors = list(islice(_errors(answer.body), _ERRORS_MAX))
    if len(errors) > 1:
        return f"GET {url}: multiple errors returned: {'; '.join(errors)}"
    if errors:
        return f"GET {url}: {errors[0]}"
    phrase = _PHRASES.get(answer.status, "")
    message = f"GET {url}: unexpected status code {answer.status} {phrase}".rstrip()
    body = _plain(answer.body.decode(errors="replace").strip())
    return f"{message}: {body}" if body else message


def _head_error(url: str, status: int) -> str:
    """Return the error message for a failed HEAD, whose response has no body."""
    phrase = f"{status} {_PHRASES.get(status, '')}".rstrip()
    hint = "(HEAD responses have no body, use GET for details)"
    return f"HEAD {url}: unexpected status code {phrase} {hint}"


def _errors(body: bytes) -> Iterator[str]:
    try:
        listed = json_object(body, "").get("errors")
    except ExpressionFailed:
        return
    for error in listed if type(listed) is list else []:
        if type(error) is not dict:
            continue
        parts = f"{error.get('code', '')}: {error.get('message', '')}"
        detail = error.get("detail")
        yield _plain(parts if detail is None else f"{parts}; {sprint(detail)}")


def _plain(answer: str) -> str:
    """Return a registry's text, truncated and without control characters.

    SAFETY: the text is written to terminals, logs and reports.
    """
    cut = answer[:_BODY_CHARACTERS]
    return "".join(
        character for character in cut if character.isprintable() or character in "\n\t"
    )


def json_object(data: bytes, subject: str) -> dict[str, Json]:
    """Decode a registry's JSON object. Raises: ExpressionFailed."""
    try:
        value = decode_parts(data, REGISTRY_JSON_PARTS_MAX)
    except JsonInvalid as error:
        raise failed(f"{subject}: not JSON") from error
    if type(value) is not dict:
        raise failed(f"{subject}: not a JSON object")
    return value


def _digest(data: bytes, named: str, subject: str) -> str:
    try:
        return checked_digest(data, named, subject)
    except RequestInvalid as error:
        raise failed(error.message) from error
