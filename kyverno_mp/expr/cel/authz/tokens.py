"""Implement ``jwt.Decode`` and ``jwks.Fetch``.

Room: expr. Takes: Meter and values. Gives: TABLES (types), OVERLOADS, KeySetPort,
KeySets (the value of the variable ``jwks``). Next: library.py; egress/key_sets.py
implements the port.
May touch: services, through the port; the clock of the policy's Runtime.
Source: docs/behaviour/cel 15.4; RFC 7519 4.1 (registered claims).
"""

import math
import re
from typing import Final, NamedTuple, Protocol

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.authz.message_json import go_kind
from kyverno_mp.expr.cel.authz.messages import Message, Schema
from kyverno_mp.expr.cel.functions.kyverno.moments import runtime_of
from kyverno_mp.expr.cel.functions.times import parse_timestamp
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.outside import asked
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.expr.effects import EFFECT_CLUSTER
from kyverno_mp.expr.jose import KeySet, symmetric, verified
from kyverno_mp.limits import TOKEN_CHARACTERS_MAX
from kyverno_mp.values.go.gojson import decoded_bytes
from kyverno_mp.values.jsonvalue import Json

_TYPE: Final = "jwt.Token"
TABLES: Final = {_TYPE: {"Claims": "map(data)", "Valid": "bool"}}
"""The types and their fields, as in Schema."""
_KIND: Final = Schema(TABLES)[_TYPE]
_DECODE_COST: Final = 10_000
"""Verifying a signature takes half a millisecond."""
_FETCH_COST: Final = 5_000
_TIMES: Final = ("exp", "nbf", "iat")
_TEXTS: Final = ("iss", "sub", "jti")
_DIGITS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
_PREFIX: Final = "jwt.Parse: failed to parse token"


class KeySetPort(Protocol):
    """Access to the key sets of token issuers by URL, cached for some minutes."""

    def fetch(self, url: str, deadline_ns: int) -> KeySet:
        """Return the keys. Raises: ExpressionFailed, DependencyError."""


class KeySets(NamedTuple):
    """The value of ``jwks``."""

    port: KeySetPort | None
    deadline_ns: int = 0

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "jwk.Sets"


def _fetch(_meter: Meter, key_sets: Value, url: str) -> KeySet:
    if key_sets.__class__ is not KeySets:
        raise CelFailed("no such overload")
    port = key_sets.port
    if port is None:
        raise CelFailed("jwk.Fetch: request failed: services cannot be called here")
    keys: KeySet = asked(
        "jwk.Fetch: request failed", lambda: port.fetch(url, key_sets.deadline_ns)
    )
    return keys


def _decode(meter: Meter, token: str, key: Value) -> Message:
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise BudgetExceeded("cel.token", "the token is too long")
    meter.charge(len(token))
    meter.hold(2 * decoded_bytes(token))
    if key.__class__ is str:
        meter.charge_text(len(key))
    elif key.__class__ is not KeySet:
        raise CelFailed("no such overload")
    try:
        keys = (
            symmetric(key.encode(errors="surrogatepass"))
            if key.__class__ is str
            else key
        )
        claims = verified(token, keys)
    except ExpressionFailed as error:
        raise CelFailed(error.message) from error
    _check_claims(claims)
    valid = _is_valid(claims, int(runtime_of(meter).now().timestamp()))
    return _KIND.construct({"Claims": claims, "Valid": valid})


def _check_claims(claims: dict[str, Json]) -> None:
    """Check the types of the registered claims; numbers of seconds lose fractions.

    Raises: CelFailed.
    """
    for name in _TEXTS:
        if name in claims and type(claims[name]) is not str:
            kind = go_kind(claims[name])
            reason = f"json: cannot unmarshal {kind} into Go value of type string"
            raise _no_claim(name, f"error reading next value: {reason}")
    for name in _TIMES:
        if name in claims:
            claims[name] = _seconds(name, claims[name])
    audience = claims.get("aud")
    if type(audience) is str:
        claims["aud"] = [audience]
    elif audience is not None and not (
        type(audience) is list and all(type(entry) is str for entry in audience)
    ):
        raise _no_claim("aud", "neither a string nor a list of strings")


def _seconds(name: str, value: Json) -> float:
    """Return the whole seconds of a NumericDate. Raises: CelFailed."""
    if type(value) is float and 0 <= value < math.inf:
        return float(int(value))
    if type(value) is str and _DIGITS.fullmatch(value):
        return float(int(value.partition(".")[0]))
    if type(value) is str:
        try:
            return float(parse_timestamp(value).ns // 10**9)
        except CelFailed:
            pass
    raise _no_claim(name, "invalid value for NumericDate")


def _no_claim(name: str, reason: str) -> CelFailed:
    claim = f"failed to parse token: failed to decode value for key {name}"
    return CelFailed(f"{_PREFIX}: {claim}: {reason}")


def _is_valid(claims: dict[str, Json], now: int) -> bool:
    """Return whether the token is valid now: not expired, and not of the future."""
    if "exp" in claims and now >= claims["exp"]:
        return False
    return all(now >= claims[name] for name in ("nbf", "iat") if name in claims)


EFFECTS: Final = {"Fetch": EFFECT_CLUSTER}
"""Function -> what its calls reach."""
OVERLOADS: Final = (
    function(f"jwt.Decode(string, string) -> {_TYPE}", _decode, cost=_DECODE_COST),
    function(f"jwt.Decode(string, KeySet) -> {_TYPE}", _decode, cost=_DECODE_COST),
    member(
        "Fetch(KeySets, string) -> KeySet",
        _fetch,
        cost=_FETCH_COST,
        effects=EFFECTS["Fetch"],
    ),
)
