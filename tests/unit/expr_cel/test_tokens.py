"""``jwt.Decode`` and ``jwks.Fetch``: which tokens are valid, and which are errors.

Expected: docs/behaviour/cel 15.4, RFC 7515 to 7519; the tokens are signed here by the
cryptography library, or are examples of the RFCs.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jose import parse_key_set, symmetric, verified
from kyverno_mp.limits import (
    JWK_BYTES_MAX,
    JWK_RSA_BITS_MAX,
    JWK_RSA_BITS_MIN,
    JWK_RSA_EXPONENT_BITS_MAX,
    JWKS_KEYS_MAX,
    TOKEN_CHARACTERS_MAX,
)
from tests.unit.program.authorizing import NOW, Issuer, answered, is_true

SECONDS = int(NOW.timestamp())
URL = "https://issuer/keys"


def encoded(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, size: int = 0) -> str:
    """Return a number of a key."""
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8))


def token(header: dict[str, Any], claims: Any, sign: Callable[[bytes], bytes]) -> str:
    """Return a signed token."""
    parts = [encoded(json.dumps(part).encode()) for part in (header, claims)]
    data = ".".join(parts)
    return f"{data}.{encoded(sign(data.encode()))}"


def hs256(secret: bytes) -> Callable[[bytes], bytes]:
    """Return a signer with a symmetric key."""
    return lambda data: hmac.new(secret, data, hashlib.sha256).digest()


def plain(claims: Any, secret: bytes = b"secret", **header: Any) -> str:
    """Return a token that is signed with a symmetric key."""
    return token({"alg": "HS256", **header}, claims, hs256(secret))


RSA = rsa.generate_private_key(65537, 2048)
_HASHES: dict[str, hashes.HashAlgorithm] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}


def _rsa_case(algorithm: str) -> tuple[dict[str, Any], Callable[[bytes], bytes]]:
    public = RSA.public_key().public_numbers()
    digest = _HASHES[algorithm[2:]]
    filling: Any = padding.PKCS1v15()
    if algorithm.startswith("PS"):
        filling = padding.PSS(padding.MGF1(digest), digest.digest_size)
    key = {"kty": "RSA", "n": number(public.n), "e": number(public.e)}
    return key, lambda data: RSA.sign(data, filling, digest)


def _curve_case(algorithm: str) -> tuple[dict[str, Any], Callable[[bytes], bytes]]:
    curve, name, size, digest = {
        "ES256": (ec.SECP256R1(), "P-256", 32, "256"),
        "ES384": (ec.SECP384R1(), "P-384", 48, "384"),
        "ES512": (ec.SECP521R1(), "P-521", 66, "512"),
        "ES256K": (ec.SECP256K1(), "secp256k1", 32, "256"),
    }[algorithm]
    private = ec.generate_private_key(curve)
    public = private.public_key().public_numbers()

    def sign(data: bytes) -> bytes:
        pair = decode_dss_signature(private.sign(data, ec.ECDSA(_HASHES[digest])))
        return b"".join(part.to_bytes(size) for part in pair)

    key = {
        "kty": "EC",
        "crv": name,
        "x": number(public.x, size),
        "y": number(public.y, size),
    }
    return key, sign


def _edwards_case(name: str) -> tuple[dict[str, Any], Callable[[bytes], bytes]]:
    private: Any = (
        ed25519.Ed25519PrivateKey.generate()
        if name == "Ed25519"
        else ed448.Ed448PrivateKey.generate()
    )
    raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"kty": "OKP", "crv": name, "x": encoded(raw)}, private.sign


def key_case(algorithm: str) -> tuple[dict[str, Any], Callable[[bytes], bytes]]:
    """Return a public key and what signs with its private key."""
    if algorithm in ("Ed25519", "Ed448"):
        return _edwards_case(algorithm)
    if algorithm.startswith("ES"):
        return _curve_case(algorithm)
    return _rsa_case(algorithm)


CASES = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "ES256K", "Ed25519", "Ed448"),
)


@pytest.mark.parametrize("case", CASES)
def test_public_keys(case: str) -> None:
    algorithm = "EdDSA" if case.startswith("Ed") else case
    key, sign = key_case(case)
    keys = parse_key_set(json.dumps({"keys": [key]}).encode())
    signed = token({"alg": algorithm}, {"sub": "s"}, sign)
    assert verified(signed, keys) == {"sub": "s"}
    head, claims, signature = signed.split(".")
    other = f"{head}.{encoded(b'{}')}.{signature}"
    turned = f"{head}.{claims}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"
    # A public key is no symmetric key: the oldest attack on tokens.
    confused = plain({"sub": "s"}, json.dumps(key).encode())
    unsigned = token({"alg": "none"}, {"sub": "s"}, lambda _data: b"")
    for wrong in (other, turned, confused, unsigned, f"{head}.{claims}."):
        with pytest.raises(ExpressionFailed, match="failed to parse token"):
            verified(wrong, keys)


def test_example_of_the_rfc() -> None:
    """RFC 7515, appendix A.1."""
    key = (
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr"
        "1Z9CAow"
    )
    example = (
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTk"
        "zODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhb"
        "UJU1p1r_wW1gFWFOEjXk"
    )
    claims = {"iss": "joe", "exp": 1300819380.0, "http://example.com/is_root": True}
    secret = base64.urlsafe_b64decode(f"{key}==")
    assert verified(example, symmetric(secret)) == claims
    keys = parse_key_set(json.dumps({"kty": "oct", "k": key}).encode())
    assert verified(example, keys) == claims


class TestKeySets:
    def _keys(self, *keys: dict[str, Any]) -> Any:
        return parse_key_set(json.dumps({"keys": keys}).encode())

    def _secret(self, name: str, **more: Any) -> dict[str, Any]:
        return {"kty": "oct", "k": encoded(name.encode()), "kid": name, **more}

    def test_the_token_names_the_key(self) -> None:
        keys = self._keys(self._secret("a"), self._secret("b"))
        assert verified(plain({}, b"b", kid="b"), keys) == {}
        for wrong in (
            plain({}, b"b", kid="a"),
            plain({}, b"b", kid="c"),
            plain({}, b"b", kid=1),
            plain({}, b"b"),
        ):
            with pytest.raises(ExpressionFailed):
                verified(wrong, keys)

    def test_the_only_key_needs_no_name(self) -> None:
        assert verified(plain({}, b"a"), self._keys(self._secret("a"))) == {}

    def test_a_key_for_another_use_or_algorithm(self) -> None:
        for more in ({"use": "enc"}, {"alg": "HS512"}, {"alg": "RS256"}):
            with pytest.raises(ExpressionFailed):
                verified(plain({}, b"a"), self._keys(self._secret("a", **more)))
        stated = self._keys(self._secret("a", alg="HS256", use="sig"))
        assert verified(plain({}, b"a"), stated) == {}

    def test_unknown_and_broken_keys_are_left_out(self) -> None:
        broken = (
            {"kty": "new", "kid": "x"},
            {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
            {"kty": "RSA"},
            {"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"},
            {"kty": "OKP", "crv": "Ed25519", "x": "AQ"},
            {"kty": "oct", "k": ""},
            {"kty": ["oct"]},
        )
        keys = self._keys(*broken, self._secret("a"))
        assert verified(plain({}, b"a", kid="a"), keys) == {}

    @pytest.mark.parametrize(
        ("modulus", "exponent", "kept"),
        [
            (JWK_RSA_BITS_MIN, 17, 1),
            (JWK_RSA_BITS_MIN - 1, 17, 0),
            (JWK_RSA_BITS_MAX, 17, 1),
            (JWK_RSA_BITS_MAX + 1, 17, 0),
            (2048, JWK_RSA_EXPONENT_BITS_MAX, 1),
            (2048, JWK_RSA_EXPONENT_BITS_MAX + 1, 0),
            (2048, 1, 0),
        ],
    )
    def test_sizes_of_rsa_keys(self, modulus: int, exponent: int, kept: int) -> None:
        """Large ones would take long to verify a signature."""
        n, e = (1 << (bits - 1) | 1 for bits in (modulus, exponent))
        keys = self._keys({"kty": "RSA", "n": number(n), "e": number(e)})
        assert len(keys.keys) == kept

    def test_a_number_of_a_key_is_bounded(self) -> None:
        for size, kept in ((JWK_BYTES_MAX, 1), (2 * JWK_BYTES_MAX, 0)):
            keys = self._keys({"kty": "oct", "k": encoded(b"x" * size)})
            assert len(keys.keys) == kept

    @pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"keys": {}}', b"\xff"])
    def test_other_documents(self, data: bytes) -> None:
        with pytest.raises(ExpressionFailed, match="jwk"):
            parse_key_set(data)

    def test_too_many_keys(self) -> None:
        keys = [self._secret(str(index)) for index in range(JWKS_KEYS_MAX + 1)]
        assert self._keys(*keys[1:])
        with pytest.raises(ExpressionFailed, match="more than"):
            self._keys(*keys)


class TestDecode:
    def _is_true(self, expression: str, given: str, **more: Any) -> bool:
        http = {"http": {"headers": {"a": given}}}
        return is_true(
            "Envoy",
            expression,
            {"attributes": {"request": http}},
            variables=[{"name": "t", "expression": more.pop("source", self.SOURCE)}],
            **more,
        )

    SOURCE = "jwt.Decode(object.attributes.request.http.headers.a, 'secret')"

    def test_claims(self) -> None:
        given = plain({"sub": "s", "n": 1, "l": [1, {"a": None}], "aud": "one"})
        for expression in (
            "variables.t.Claims.sub == 's' && variables.t.Claims.n == 1.0",
            "variables.t.Claims.l == [dyn(1.0), dyn({'a': null})]",
            # Upstream cannot decode a token with aud by a text.
            "variables.t.Claims.aud == ['one']",
            "variables.t.Claims.?gone.orValue('none') == 'none'",
            "variables.t.Valid",
        ):
            assert self._is_true(expression, given), expression

    @pytest.mark.parametrize(
        ("claims", "valid"),
        [
            ({}, True),
            ({"exp": SECONDS + 1}, True),
            ({"exp": SECONDS}, False),
            ({"exp": SECONDS + 0.9}, False),
            ({"exp": "1"}, False),
            ({"exp": f"{SECONDS + 1}.5"}, True),
            ({"exp": "2030-01-01T00:00:00Z"}, True),
            ({"nbf": SECONDS}, True),
            ({"nbf": SECONDS + 1}, False),
            ({"iat": SECONDS + 1}, False),
            ({"iat": SECONDS, "nbf": SECONDS - 1, "exp": SECONDS + 9}, True),
        ],
    )
    def test_times(self, claims: dict[str, Any], *, valid: bool) -> None:
        expression = "variables.t.Valid" if valid else "!variables.t.Valid"
        assert self._is_true(expression, plain(claims))

    @pytest.mark.parametrize(
        "given",
        [
            "",
            "a.b",
            "a.b.c",
            "....",
            plain({}, b"other"),
            plain([]),
            plain({"exp": "soon"}),
            plain({"exp": -1}),
            plain({"exp": True}),
            plain({"sub": 1}),
            plain({"aud": [1]}),
            plain({}, alg="HS512"),
            plain({}, alg="none"),
            plain({}, crit=["x"]),
            plain({}, b64=False),
            plain({}) + "\n",
            "é.é.é",
            token({"alg": "HS256"}, {}, hs256(b"secret")).replace(".", "=.", 1),
        ],
    )
    def test_errors(self, given: str) -> None:
        found = answered(
            "Envoy",
            f"{self.SOURCE}.Valid ? null : null",
            {"attributes": {"request": {"http": {"headers": {"a": given}}}}},
        )
        assert isinstance(found, str)
        assert found.startswith("jwt.Parse: failed to parse token: ")

    def test_a_token_that_is_too_long(self) -> None:
        found = answered(
            "Envoy",
            f"{self.SOURCE}.Valid ? null : null",
            {
                "attributes": {
                    "request": {
                        "http": {"headers": {"a": "a" * (TOKEN_CHARACTERS_MAX + 1)}}
                    }
                }
            },
        )
        assert found == "the token is too long"

    def test_fetched_keys(self) -> None:
        key, sign = key_case("ES256")
        issuer = Issuer({URL: json.dumps({"keys": [{**key, "kid": "k"}]}).encode()})
        given = token({"alg": "ES256", "kid": "k"}, {"role": "admin"}, sign)
        source = (
            f"jwt.Decode(object.attributes.request.http.headers.a, jwks.Fetch('{URL}'))"
        )
        assert self._is_true(
            "variables.t.Claims.role == 'admin'", given, source=source, issuer=issuer
        )

    def test_keys_that_cannot_be_fetched(self) -> None:
        for issuer, reason in (
            (None, "services cannot be called here"),
            (Issuer({}), f"no host for {URL}"),
        ):
            found = answered(
                "HTTP", f"jwks.Fetch('{URL}') == null ? null : null", issuer=issuer
            )
            assert found == f"jwk.Fetch: request failed: {reason}"


@given(st.text(max_size=40) | st.from_regex(r"[\w-]{0,9}\.[\w-]{0,9}\.[\w-]{0,9}"))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(ExpressionFailed):
        verified(text, symmetric(b"secret"))


@given(st.binary(max_size=40))
def test_no_bytes_break_a_key_set(data: bytes) -> None:
    with suppress(ExpressionFailed):
        assert parse_key_set(data).keys == ()
