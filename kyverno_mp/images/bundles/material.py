"""Read Sigstore's trusted root: authorities and logs with their validity periods.

Room: images. Takes: the JSON of ``trusted_root.json``. Gives: a Material. Next:
images/bundles/verify.py.
Source: docs/behaviour/images 5 (trusted root); sigstore/protobuf-specs
(sigstore_trustroot.proto).
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from cryptography import x509

from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved, load_certificate
from kyverno_mp.images.sigstore.logkeys import (
    EVER,
    DatedKey,
    LogKeys,
    Period,
    load_log_key,
)
from kyverno_mp.images.sigstore.timestamps import Authority
from kyverno_mp.limits import IMAGE_TRUST_FILES_MAX
from kyverno_mp.values.jsonvalue import Json


class CertificateAuthority(NamedTuple):
    """Root certificates and their intermediates."""

    roots: tuple[x509.Certificate, ...]
    intermediates: tuple[x509.Certificate, ...]
    period: Period


class Material(NamedTuple):
    """The keys and certificates in the trusted root."""

    logs: LogKeys
    authorities: tuple[CertificateAuthority, ...]
    stamping: tuple[tuple[Authority, Period], ...]
    ctlogs: LogKeys
    """Certificate transparency logs; a retired key verifies what it signed before."""


def parse_material(data: bytes) -> Material:
    """Return the material. Raises: Unproved."""
    try:
        raw = json_value(data)
        if type(raw) is not dict:
            raise Unproved("it is not a JSON object")
        return Material(
            dict(_logs(raw, "tlogs")),
            tuple(
                _authority(authority)
                for authority in _objects(raw, "certificateAuthorities")
            ),
            tuple(
                _stamping(authority)
                for authority in _objects(raw, "timestampAuthorities")
            ),
            dict(_logs(raw, "ctlogs")),
        )
    except (ValueError, TypeError) as error:
        raise Unproved(f"error creating trusted root: {error}") from None


def _logs(raw: Mapping[str, Json], field: str) -> Iterator[tuple[bytes, DatedKey]]:
    for log in _objects(raw, field):
        key = _object(log, "publicKey")
        name = base64_bytes(_object(log, "logId").get("keyId"))
        der = base64_bytes(key.get("rawBytes"))
        if name and der:
            yield name, DatedKey(load_log_key(der), _period(key))


def _authority(authority: Mapping[str, Json]) -> CertificateAuthority:
    chain = _chain(authority)
    return CertificateAuthority(
        tuple(chain[-1:]), tuple(chain[:-1]), _period(authority)
    )


def _stamping(authority: Mapping[str, Json]) -> tuple[Authority, Period]:
    chain = _chain(authority)
    leaf = chain[0] if len(chain) > 1 else None
    intermediates = tuple(chain[1:-1])
    return Authority(leaf, intermediates, tuple(chain[-1:])), _period(authority)


def _chain(authority: Mapping[str, Json]) -> list[x509.Certificate]:
    return [
        load_certificate(base64_bytes(each.get("rawBytes")) or b"")
        for each in _objects(_object(authority, "certChain"), "certificates")
    ]


def _period(holder: Mapping[str, Json]) -> Period:
    valid_for = holder.get("validFor")
    valid: Mapping[str, Json] = {} if valid_for is None else _object(holder, "validFor")
    return Period(
        _moment(valid.get("start"), EVER.start), _moment(valid.get("end"), EVER.end)
    )


def _moment(value: Json, default: datetime) -> datetime:
    """Return a time. SAFETY: one without a zone cannot be compared with others."""
    if value is None:
        return default
    if type(value) is not str:
        raise ValueError("validFor has a time that is not a string")
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"the time {value} has no zone")
    return moment


def _object(holder: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    member = holder.get(name)
    if type(member) is not dict:
        raise ValueError(f"{name} is missing")
    return member


def _objects(holder: Mapping[str, Json], name: str) -> Iterator[Mapping[str, Json]]:
    listed = holder.get(name)
    items = listed if type(listed) is list else []
    if len(items) > IMAGE_TRUST_FILES_MAX:
        raise ValueError(f"more than {IMAGE_TRUST_FILES_MAX} {name}")
    yield from (item for item in items if type(item) is dict)
