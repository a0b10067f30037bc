"""Verify JSON Web Tokens with one symmetric key or with a set of keys.

Room: expr. Takes: a token, a KeySet. Gives: Key, KeySet, ``parse_key_set``,
``symmetric``, ``verified``. Next: expr/cel/authz/tokens.py.
Source: RFC 7515 (JWS, compact form), 7517 (JWK), 7518 (algorithms), 7519 (JWT), 8037
(EdDSA), 8812 (ES256K); docs/behaviour/cel 15.4.

SAFETY: a key decides which algorithms it verifies; a token only chooses among them, and
``none`` is not one of them. So no token makes a public key a symmetric one.
"""

import binascii
import hmac
from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import (
    JWK_BYTES_MAX,
    JWK_RSA_BITS_MAX,
    JWK_RSA_BITS_MIN,
    JWK_RSA_EXPONENT_BITS_MAX,
    JWKS_KEYS_MAX,
)
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json

_SHOWN_MAX: Final = 64
_NO_KEY: Final = (
    "failed to initialize *jwk.symmetricKey from []uint8: non-empty []byte key required"
)
_PROVIDER: Final = "jws.Verify: key provider 0 failed: "
_UNSIGNED: Final = (
    "jws.Verify: could not verify message using any of the signatures or keys:"
    " jws.Verify: failed to verify signature #1 with key *{}\n"
    "jws.Verify: signature #1 could not be verified with any of the keys"
)
_NO_JWT: Final = "unknown payload type (payload is not JWT?)"
_SIZES: Final = {"256": "sha256", "384": "sha384", "512": "sha512"}
_CURVES: Final = {
    "P-256": ("ES256", "SECP256R1", 32),
    "P-384": ("ES384", "SECP384R1", 48),
    "P-521": ("ES512", "SECP521R1", 66),
    "secp256k1": ("ES256K", "SECP256K1", 32),
}
"""Curve -> algorithm, name in the library, bytes of one coordinate."""
_HASH_OF: Final = {
    "ES256": "256",
    "ES384": "384",
    "ES512": "512",
    "ES256K": "256",
}
_OCTETS: Final = ("HS256", "HS384", "HS512")
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EDWARDS: Final = {"Ed25519": ("EdDSA", "Ed25519"), "Ed448": ("EdDSA", "Ed448")}


class Key(NamedTuple):
    """A key: its algorithms, and what verifies a signature with one of them.

    ``verify(algorithm, data, signature)`` returns whether the signature is valid.
    """

    key_id: str
    algorithms: tuple[str, ...]
    verify: Callable[[str, bytes, bytes], bool]
    failure: str = "jwk.Key: invalid signature"
    """The type of the key and the error of a wrong signature, in errors."""


class KeySet:
    """Keys that may have signed a token; the type ``jwk.Set`` in CEL."""

    __slots__ = ("keys",)
    type_name = "jwk.Set"

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys


def symmetric(secret: bytes) -> KeySet:
    """Return a set of one symmetric key. Raises: ExpressionFailed."""
    if not secret:
        raise _refused(_NO_KEY)
    return KeySet((_symmetric(secret, "", _OCTETS),))


def parse_key_set(data: bytes) -> KeySet:
    """Return the keys of a JWKS, or of one JWK, that can verify signatures.

    Keys of unknown types are left out, as RFC 7517 requires. Raises: ExpressionFailed.
    """
    try:
        document = decode_json(data.decode(errors="replace"))
    except JsonInvalid as error:
        raise _refused(f"jwk.Parse: {error}") from error
    listed = document.get("keys") if type(document) is dict else None
    if listed is None and type(document) is dict and "kty" in document:
        listed = [document]
    if type(listed) is not list:
        raise _refused("jwk.Parse: the document has no keys")
    if len(listed) > JWKS_KEYS_MAX:
        raise _refused(f"jwk.Parse: more than {JWKS_KEYS_MAX} keys")
    keys = (_key(raw) for raw in listed if type(raw) is dict)
    return KeySet(tuple(key for key in keys if key is not None))


def verified(token: str, keys: KeySet) -> dict[str, Json]:
    """Return the claims of a token that one of the keys has signed.

    Raises: ExpressionFailed for any other token.
    """
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():  # noqa: PLR2004 - header, claims, signature
        raise _invalid(_NO_JWT)
    header = _object(parts[0], "header")
    if "crit" in header or header.get("b64", True) is not True:
        raise _invalid("the header has extensions that are not supported")
    algorithm = header.get("alg")
    key = _chosen(keys, header.get("kid"))
    if type(algorithm) is not str or algorithm not in key.algorithms:
        reason = (
            "algorithm in the message does not match any of the inferred algorithms"
        )
        raise _invalid(f"{_PROVIDER}{reason}")
    data = f"{parts[0]}.{parts[1]}".encode()
    if not key.verify(algorithm, data, _decoded(parts[2], "signature")):
        raise _invalid(_UNSIGNED.format(key.failure))
    return _object(parts[1], "claims")


def _chosen(keys: KeySet, key_id: Json) -> Key:
    """Return the key that a token names; without a name, the set's only key."""
    if key_id is None:
        if len(keys.keys) == 1:
            return keys.keys[0]
        reason = "failed to get key at index 0 (empty JWKS?)"
        if keys.keys:
            reason = (
                'failed to find matching key: no key ID ("kid") specified in token but'
                " multiple keys available in key set"
            )
        raise _invalid(f"{_PROVIDER}{reason}")
    for key in keys.keys:
        if key.key_id and key.key_id == key_id:
            return key
    printed = _shown(key_id) if type(key_id) is str else "of another type"
    raise _invalid(f"{_PROVIDER}failed to find key with key ID {printed} in key set")


def _key(raw: dict[str, Json]) -> Key | None:
    """Return a key; None if it does not verify signatures here."""
    key_type, key_id = raw.get("kty"), raw.get("kid")
    if raw.get("use", "sig") not in ("sig", ""):
        return None
    if type(key_id) is not str:
        key_id = ""
    make = _MAKERS.get(key_type) if type(key_type) is str else None
    if make is None:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = make(raw, key_id)
    except (ValueError, ExpressionFailed, UnsupportedAlgorithm):
        return None
    stated = raw.get("alg")
    if key is None or stated is None:
        return key
    if stated not in key.algorithms:
        return None
    return key._replace(algorithms=(str(stated),))


def _symmetric(secret: bytes, key_id: str, algorithms: tuple[str, ...]) -> Key:
    def verify(algorithm: str, data: bytes, signature: bytes) -> bool:
        digest = hmac.new(secret, data, _SIZES[algorithm[2:]]).digest()
        return hmac.compare_digest(digest, signature)

    failure = "jwk.symmetricKey: invalid HMAC signature"
    return Key(key_id, algorithms, verify, failure)


def _octets_key(raw: dict[str, Json], key_id: str) -> Key | None:
    secret = _bytes_of(raw, "k")
    return _symmetric(secret, key_id, _OCTETS) if secret else None


def _rsa_key(raw: dict[str, Json], key_id: str) -> Key | None:
    modulus = int.from_bytes(_bytes_of(raw, "n"))
    exponent = int.from_bytes(_bytes_of(raw, "e"))
    if not JWK_RSA_BITS_MIN <= modulus.bit_length() <= JWK_RSA_BITS_MAX:
        return None
    if exponent.bit_length() > JWK_RSA_EXPONENT_BITS_MAX:
        return None
    # PERF: importing the library takes 50 ms, which would slow the start of the CLI.
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    key = RSAPublicNumbers(exponent, modulus).public_key()

    def verify(algorithm: str, data: bytes, signature: bytes) -> bool:
        digest = _hash(algorithm[2:])
        filling: Any = padding.PKCS1v15()
        if algorithm.startswith("PS"):
            filling = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
        return _is_valid(lambda: key.verify(signature, data, filling, digest))

    return Key(key_id, _RSA, verify)


def _curve_key(raw: dict[str, Json], key_id: str) -> Key | None:
    parameters = _CURVES.get(str(raw.get("crv")))
    if parameters is None:
        return None
    algorithm, curve, size = parameters
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    x, y = (int.from_bytes(_bytes_of(raw, name)) for name in ("x", "y"))
    key = ec.EllipticCurvePublicNumbers(x, y, getattr(ec, curve)()).public_key()

    def verify(name: str, data: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * size:
            return False
        first, second = signature[:size], signature[size:]
        pair = encode_dss_signature(int.from_bytes(first), int.from_bytes(second))
        method = ec.ECDSA(_hash(_HASH_OF[name]))
        return _is_valid(lambda: key.verify(pair, data, method))

    return Key(key_id, (algorithm,), verify)


def _edwards_key(raw: dict[str, Json], key_id: str) -> Key | None:
    parameters = _EDWARDS.get(str(raw.get("crv")))
    if parameters is None:
        return None
    from cryptography.hazmat.primitives.asymmetric import ed448, ed25519

    makers: dict[str, Callable[[bytes], Any]] = {
        "Ed25519": ed25519.Ed25519PublicKey.from_public_bytes,
        "Ed448": ed448.Ed448PublicKey.from_public_bytes,
    }
    key = makers[parameters[1]](_bytes_of(raw, "x"))

    def verify(_algorithm: str, data: bytes, signature: bytes) -> bool:
        return _is_valid(lambda: key.verify(signature, data))

    return Key(key_id, (parameters[0], parameters[1]), verify)


_MAKERS: Final[dict[str, Callable[[dict[str, Json], str], Key | None]]] = {
    "oct": _octets_key,
    "RSA": _rsa_key,
    "EC": _curve_key,
    "OKP": _edwards_key,
}


def _hash(size: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    return getattr(hashes, f"SHA{size}")()


def _is_valid(verify: Callable[[], None]) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        verify()
    except (InvalidSignature, ValueError):
        return False
    return True


def _bytes_of(raw: dict[str, Json], name: str) -> bytes:
    value = raw.get(name)
    if type(value) is not str or not value.isascii() or len(value) > 2 * JWK_BYTES_MAX:
        raise _invalid(f"a key without a valid {name}")
    return _decoded(value, name)


def _object(part: str, word: str) -> dict[str, Json]:
    try:
        value = decode_json(_decoded(part, word).decode())
    except (JsonInvalid, UnicodeDecodeError) as error:
        raise _invalid(f"the {word} are not JSON: {_shown(str(error))}") from error
    if type(value) is not dict:
        raise _invalid(_NO_JWT)
    return value


def _decoded(part: str, word: str) -> bytes:
    standard = part.translate({ord("-"): "+", ord("_"): "/"})
    try:
        return b64decode(standard + "=" * (-len(part) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid(f"the {word} are not base64") from error


def _shown(string: str) -> str:
    return quote(string[:_SHOWN_MAX])


def _invalid(reason: str) -> ExpressionFailed:
    return _refused(f"jwt.Parse: failed to parse token: {reason}")


def _refused(message: str) -> ExpressionFailed:
    return ExpressionFailed("cel.token", message)
