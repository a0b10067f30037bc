"""Select statements by their type, as Cosign's policy library does.

Room: images. Takes: in-toto statements. Gives: payloads. Next: review.py.
Source: docs/behaviour/images 8 (extractPayload); cosign
pkg/policy/attestation.go (AttestationToPayloadJSON), pkg/cosign/attestation.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kyverno_mp.images.keys import failed
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType

_CUSTOM: Final = "https://cosign.sigstore.dev/attestation/v1"
_SLSA_02: Final = "https://slsa.dev/provenance/v0.2"
_ALIASES: Final = {
    "custom": _CUSTOM,
    "slsaprovenance": _SLSA_02,
    "slsaprovenance02": _SLSA_02,
    "slsaprovenance1": "https://slsa.dev/provenance/v1",
    "spdx": "https://spdx.dev/Document",
    "spdxjson": "https://spdx.dev/Document",
    "cyclonedx": "https://cyclonedx.org/bom",
    "link": "https://in-toto.io/Link/v1",
    "vuln": "https://cosign.sigstore.dev/attestation/vuln/v1",
    "openvex": "https://openvex.dev/ns",
}


class _Builder(msgspec.Struct):
    id: str | None = None


class _Provenance02(msgspec.Struct, rename="camel"):
    builder: _Builder | None = None
    build_type: str | None = None
    invocation: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    materials: list[dict[str, Any]] | None = None


class _Provenance1(msgspec.Struct, rename="camel"):
    build_definition: dict[str, Any] | None = None
    run_details: dict[str, Any] | None = None


class _Link(msgspec.Struct, rename="camel"):
    name: str | None = None
    command: list[str] | None = None
    materials: dict[str, Any] | None = None
    products: dict[str, Any] | None = None
    byproducts: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None


class _Scan(msgspec.Struct):
    invocation: dict[str, Any] | None = None
    scanner: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


_SHAPES: Final[Mapping[str, RecordType[Any]]] = {
    "slsaprovenance": RecordType(_Provenance02),
    "slsaprovenance02": RecordType(_Provenance02),
    "slsaprovenance1": RecordType(_Provenance1),
    "link": RecordType(_Link),
    "vuln": RecordType(_Scan),
}
"""With a short name, the predicate must fit upstream's record."""


def predicate_type(kind: str) -> str:
    """Return the full predicate type for a name. Raises: ExpressionFailed."""
    full_type = _ALIASES.get(kind)
    if full_type is not None:
        return full_type
    try:
        is_url = bool(urlsplit(kind).scheme) or kind.startswith("/")
    except ValueError:
        is_url = False
    if not is_url:
        raise failed(f"invalid predicate type: {kind}")
    return kind


def payloads_of(
    statements: Iterable[Mapping[str, Json]], kind: str
) -> list[tuple[str, Json]]:
    """Return type and payload of the statements of a kind, at least one.

    Raises: ExpressionFailed.
    """
    expected, payloads, other_types = predicate_type(kind), [], []
    for statement in statements:
        actual = statement.get("predicateType")
        if actual != expected:
            other_types.append(str(actual))
            continue
        predicate = statement.get("predicate")
        try:
            if kind in _SHAPES and predicate is not None:
                _SHAPES[kind].convert(predicate)
        except msgspec.ValidationError as error:
            message = f"converting to consumable policy validation: {error}"
            raise failed(message) from None
        payloads.append((expected, _payload(statement)))
    if not payloads:
        message = (
            f"required predicate type {kind} not found, found [{' '.join(other_types)}]"
        )
        raise failed(message)
    return payloads


def _payload(statement: Mapping[str, Json]) -> Json:
    """Return the fields of in-toto's record; other fields are dropped."""
    subjects = statement.get("subject")
    return {
        "_type": statement.get("_type") or "",
        "predicateType": statement.get("predicateType"),
        "subject": [
            {name: subject.get(name) for name in ("name", "digest")}
            for subject in (subjects if type(subjects) is list else ())
            if type(subject) is dict
        ],
        "predicate": statement.get("predicate"),
    }
