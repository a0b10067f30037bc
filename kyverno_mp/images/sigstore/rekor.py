"""Verify that a transparency log contains a signature, by its promise or a proof.

Room: images. Takes: bundles of signatures, answers of a log, keys of logs. Gives: the
time of the log. Next: images/cosign.py, images/sigstore/rekor_entry.py.
Source: docs/behaviour/images 3.5; RFC 6962 2.1.1 (proofs of inclusion).
"""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kyverno_mp.images.documents import base64_bytes, json_value
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.logkeys import LogKeys, Period
from kyverno_mp.images.sigstore.rekor_entry import Signed, check_entry
from kyverno_mp.limits import (
    IMAGE_LOG_BYTES_MAX,
    IMAGE_LOG_ENTRIES_MAX,
    IMAGE_LOG_PROOF_MAX,
)
from kyverno_mp.values.jsonvalue import Json

_HASH_BYTES: Final = 32
_HEX_UUID: Final = 64
_TREE_ID: Final = 16
_NO_KEY: Final = "rekor log public key not found for payload"
_OUTSIDE: Final = "rekor log public key not valid at payload integrated time"
_HINT: Final = (
    ". Check your TUF root (see cosign initialize) or set a custom key with env var"
    " SIGSTORE_REKOR_PUBLIC_KEY"
)
_NONE: Final = "no valid tlog entries found"


class Promise(NamedTuple):
    """A log's signed promise to include an entry."""

    body: str
    integrated_time: int
    log_index: int
    log_id: str
    signature: bytes


def parse_bundle(annotation: Json) -> Promise | None:
    """Return the promise in a bundle annotation, None without one. Raises: Unproved."""
    if annotation is None or annotation == "":
        return None
    bundle = _parsed(annotation, "unmarshaling bundle")
    payload = bundle.get("Payload") or {}
    if type(payload) is not dict:
        raise Unproved("unmarshaling bundle: its payload is not a JSON object")
    encoded = bundle.get("SignedEntryTimestamp")
    return _promise(payload, "" if encoded is None else encoded, "unmarshaling bundle")


def _promise(entry: Mapping[str, Json], signature: Json, source: str) -> Promise:
    body = entry.get("body", "")
    time, index = entry.get("integratedTime", 0), entry.get("logIndex", 0)
    log_id = entry.get("logID", "")
    if type(time) is not int or type(index) is not int or type(log_id) is not str:
        raise Unproved(f"{source}: its fields have other types")
    decoded = base64_bytes(signature)
    if decoded is None:
        raise Unproved(f"{source}: the promise is not base64")
    return Promise(body if type(body) is str else "", time, index, log_id, decoded)


def verified_bundle(promise: Promise, signed: Signed, keys: LogKeys) -> datetime:
    """Return the time at which the log promised to add the signature.

    Raises: Unproved.
    """
    if not promise.body:
        raise Unproved("bundle payload body is not a string")
    check_entry(promise.body, signed, "bundle")
    key = _log_key(promise.log_id, keys)
    if key is None:
        raise Unproved(f"verifying bundle: {_NO_KEY}")
    _check_promise(promise, key.key)
    return _moment(promise, key.period, "verifying bundle: ")


def promised_at(promise: Promise, keys: LogKeys) -> datetime:
    """Return the time of a promise that a known log has signed.

    The caller must check which signature the entry is about. Raises: Unproved.
    """
    key = _log_key(promise.log_id, keys)
    if key is None:
        raise Unproved(_NO_KEY)
    _check_promise(promise, key.key)
    return _moment(promise, key.period)


class _Known(NamedTuple):
    key: ec.EllipticCurvePublicKey
    period: Period


def _log_key(log_id: str, keys: LogKeys) -> _Known | None:
    """Return the key. KYVERNO: all known keys must be ECDSA."""
    log_key = None
    for key_id, (key, period) in keys.items():
        if not isinstance(key, ec.EllipticCurvePublicKey):
            message = f"rekor Public key for LogID {key_id.hex()} is not type"
            raise Unproved(f"{message} ecdsa.PublicKey")
        if key_id.hex() == log_id:
            log_key = _Known(key, period)
    return log_key


def _check_promise(promise: Promise, key: ec.EllipticCurvePublicKey) -> None:
    try:
        signed = rfc8785.dumps(
            {
                "body": promise.body,
                "integratedTime": promise.integrated_time,
                "logIndex": promise.log_index,
                "logID": promise.log_id,
            }
        )
        key.verify(promise.signature, signed, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        # A ValueError means a number that canonical JSON cannot represent.
        raise Unproved("unable to verify SET") from None


def _moment(promise: Promise, period: Period, prefix: str = "") -> datetime:
    """Return the time of a promise, at which the log's key must have been valid."""
    try:
        moment = datetime.fromtimestamp(promise.integrated_time, UTC)
    except (OverflowError, ValueError, OSError):
        raise Unproved("the log's time is out of range") from None
    if not period.has(moment):
        raise Unproved(prefix + _OUTSIDE)
    return moment


def verified_search(answer: bytes, signed: Signed, keys: LogKeys) -> datetime:
    """Return the earliest time of the entries in a log's response.

    SAFETY: each entry must be about this signature; upstream trusts the log.
    Raises: Unproved.
    """
    entries = list(_answered(answer))
    if not entries:
        raise Unproved("signature not found in transparency log")
    if len(entries) > IMAGE_LOG_ENTRIES_MAX:
        raise Unproved(f"{_NONE}: more than {IMAGE_LOG_ENTRIES_MAX} entries")
    named = [entry for uuid, entry in entries if _is_leaf(uuid, entry)]
    if not named:
        raise Unproved(f"{_NONE} with proposed entry")
    times, reasons = [], []
    for entry in named:
        try:
            times.append(_verified_entry(entry, signed, keys))
        except Unproved as error:
            reasons.append(str(error))
    if not times:
        raise Unproved(f"{_NONE} {', '.join(reasons)}")
    return min(times)


def _answered(answer: bytes) -> Iterator[tuple[str, Mapping[str, Json]]]:
    prefix = "searching log query"
    try:
        answers = json_value(answer)
    except ValueError:
        raise Unproved(f"{prefix}: the answer is not JSON") from None
    if answers is None:
        return
    if type(answers) is not list:
        raise Unproved(f"{prefix}: the answer is not a list")
    for by_uuid in answers:
        if type(by_uuid) is not dict:
            raise Unproved(f"{prefix}: the answer is not a list of objects")
        for uuid, entry in by_uuid.items():
            if type(entry) is not dict:
                raise Unproved(f"{prefix}: an entry is not an object")
            yield uuid, entry


def _is_leaf(uuid: str, entry: Mapping[str, Json]) -> bool:
    """Return whether the identifier ends in the hash of the entry's body."""
    body = base64_bytes(entry.get("body"))
    if body is None or len(uuid) not in (_HEX_UUID, _HEX_UUID + _TREE_ID):
        return False
    return leaf_hash(body).hex() == uuid[-_HEX_UUID:].lower()


def _verified_entry(
    entry: Mapping[str, Json], signed: Signed, keys: LogKeys
) -> datetime:
    verification = entry.get("verification")
    proof = verification.get("inclusionProof") if type(verification) is dict else None
    if type(verification) is not dict or type(proof) is not dict:
        raise Unproved("inclusion proof not provided")
    promise = _promise(entry, verification.get("signedEntryTimestamp"), "log entry")
    if not promise.body:
        raise Unproved("invalid body type: expected string")
    check_inclusion(base64_bytes(promise.body) or b"", proof)
    key = _log_key(promise.log_id, keys)
    if key is None:
        raise Unproved(_NO_KEY + _HINT)
    try:
        _check_promise(promise, key.key)
    except Unproved as error:
        raise Unproved(f"verifying signedEntryTimestamp: {error}") from None
    check_entry(promise.body, signed, "log entry")
    return _moment(promise, key.period)


def check_inclusion(body: bytes, proof: Mapping[str, Json]) -> bytes:
    """Return the root hash of the tree that has ``body`` as a leaf.

    The caller must check that the log signed the root. Raises: Unproved.
    """
    index, size = proof.get("logIndex"), proof.get("treeSize")
    root, listed = proof.get("rootHash"), proof.get("hashes")
    # Protobuf's JSON encodes 64-bit integers as strings; the caller converts them.
    if type(index) is not int or type(size) is not int or type(root) is not str:
        raise Unproved("inclusion proof fields not provided")
    hashes = listed if type(listed) is list else []
    if len(hashes) > IMAGE_LOG_PROOF_MAX:
        raise Unproved(f"verifying inclusion proof: more than {IMAGE_LOG_PROOF_MAX}")
    try:
        path = [
            bytes.fromhex(encoded) if type(encoded) is str else b""
            for encoded in hashes
        ]
        expected = bytes.fromhex(root)
    except ValueError:
        raise Unproved("verifying inclusion proof: a hash is not hexadecimal") from None
    computed = root_hash(leaf_hash(body), index, size, path)
    if computed != expected:
        message = f"calculated root {computed.hex()} does not match expected root"
        raise Unproved(f"verifying inclusion proof: {message} {expected.hex()}")
    return computed


def leaf_hash(body: bytes) -> bytes:
    """Return the hash of a leaf (RFC 6962 2.1)."""
    return hashlib.sha256(b"\0" + body).digest()


def root_hash(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """Compute the root from an inclusion proof (RFC 9162 2.1.3.2).

    Raises: Unproved if the path has another length.
    """
    prefix = "verifying inclusion proof"
    if not 0 <= index < size or any(len(node) != _HASH_BYTES for node in path):
        raise Unproved(f"{prefix}: index {index} is beyond size {size}")
    root, at, last = leaf, index, size - 1
    for node in path:
        if last == 0:
            raise Unproved(f"{prefix}: wrong proof size {len(path)}")
        if at & 1 or at == last:
            root = _node(node, root)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            root = _node(root, node)
        at, last = at >> 1, last >> 1
    if last:
        raise Unproved(f"{prefix}: wrong proof size {len(path)}")
    return root


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _parsed(content: Json, source: str) -> dict[str, Json]:
    json_text = content if type(content) is str else ""
    if len(json_text) > IMAGE_LOG_BYTES_MAX:
        raise Unproved(f"{source}: more than {IMAGE_LOG_BYTES_MAX} bytes")
    try:
        value = json_value(json_text)
    except ValueError:
        value = None
    if type(value) is not dict:
        raise Unproved(f"{source}: it is not a JSON object")
    return value
