"""Read Sigstore's trusted root: authorities and logs with their validity periods.

Room: images. Takes: the JSON of ``trusted_root.json``. Gives: a Material. Next:
images/bundles/verify.py. May touch: nothing outside its arguments.
Source: docs/behaviour/images 5 (trusted root); sigstore/protobuf-specs
(sigstore_trustroot.proto).
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cryptography import x509

from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved, load_certificate
from kyverno_mp.images.sigstore.logkeys import LogKey, load_log_key
from kyverno_mp.images.sigstore.timestamps import Authority
from kyverno_mp.limits import IMAGE_TRUST_FILES_MAX
from kyverno_mp.values.jsonvalue import Json

_EVER: Final = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Period(NamedTuple):
    """A validity period that includes both ends."""

    start: datetime
    end: datetime

    def has(self, at: datetime) -> bool:
        """Return whether a time is within the period."""
        return self.start <= at <= self.end


class CertificateAuthority(NamedTuple):
    """Root certificates and their intermediates."""

    roots: tuple[x509.Certificate, ...]
    intermediates: tuple[x509.Certificate, ...]
    period: Period


class Material(NamedTuple):
    """The keys and certificates in the trusted root."""

    logs: Mapping[bytes, tuple[LogKey, Period]]
    authorities: tuple[CertificateAuthority, ...]
    stamping: tuple[tuple[Authority, Period], ...]
    ctlogs: Mapping[bytes, LogKey] = {}
    """Certificate transparency logs; a retired key still verifies."""


def parse_material(data: bytes) -> Material:
    """Return the material. Raises: Unproved."""
    try:
        raw = json_value(data)
        if type(raw) is not dict:
            raise Unproved("it is not a JSON object")
        logs = dict(_logs(raw, "tlogs"))
        return Material(
            logs,
            tuple(_authority(one) for one in _objects(raw, "certificateAuthorities")),
            tuple(_stamping(one) for one in _objects(raw, "timestampAuthorities")),
            {name: key for name, (key, _) in _logs(raw, "ctlogs")},
        )
    except (ValueError, TypeError) as error:
        raise Unproved(f"error creating trusted root: {error}") from None


def _logs(
    raw: Mapping[str, Json], field: str
) -> Iterator[tuple[bytes, tuple[LogKey, Period]]]:
    for one in _objects(raw, field):
        key = _object(one, "publicKey")
        name = base64_bytes(_object(one, "logId").get("keyId"))
        der = base64_bytes(key.get("rawBytes"))
        if name and der:
            yield name, (load_log_key(der), _period(key))


def _authority(one: Mapping[str, Json]) -> CertificateAuthority:
    chain = _chain(one)
    return CertificateAuthority(tuple(chain[-1:]), tuple(chain[:-1]), _period(one))


def _stamping(one: Mapping[str, Json]) -> tuple[Authority, Period]:
    chain = _chain(one)
    leaf = chain[0] if len(chain) > 1 else None
    others = tuple(chain[1:-1])
    return Authority(leaf, others, tuple(chain[-1:])), _period(one)


def _chain(one: Mapping[str, Json]) -> list[x509.Certificate]:
    return [
        load_certificate(base64_bytes(each.get("rawBytes")) or b"")
        for each in _objects(_object(one, "certChain"), "certificates")
    ]


def _period(holder: Mapping[str, Json]) -> Period:
    given = holder.get("validFor")
    valid: Mapping[str, Json] = given if type(given) is dict else {}
    start, end = valid.get("start"), valid.get("end")
    return Period(
        datetime.fromisoformat(start) if type(start) is str else _EVER[0],
        datetime.fromisoformat(end) if type(end) is str else _EVER[1],
    )


def _object(holder: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = holder.get(name)
    if type(found) is not dict:
        raise ValueError(f"{name} is missing")
    return found


def _objects(holder: Mapping[str, Json], name: str) -> Iterator[Mapping[str, Json]]:
    listed = holder.get(name)
    given = listed if type(listed) is list else []
    if len(given) > IMAGE_TRUST_FILES_MAX:
        raise ValueError(f"more than {IMAGE_TRUST_FILES_MAX} {name}")
    yield from (one for one in given if type(one) is dict)
