"""Implement the check requests and answers of the mode HTTP, and their functions.

Room: expr. Takes: Meter and values. Gives: SCHEMA, OVERLOADS, REQUEST, RESPONSE,
SENT, ``verdict_of``, ``http_request``, ``request_of``. Next: library.py.
Source: docs/behaviour/cel 15.2; Go's net/textproto (canonical names of headers).
"""

import re
from typing import Final

from kyverno_mp.expr.cel.authz import mcp
from kyverno_mp.expr.cel.authz.message_json import from_go
from kyverno_mp.expr.cel.authz.messages import Message, Schema, Verdict
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value, text_bytes
from kyverno_mp.values.jsonvalue import Json

REQUEST: Final = "http.CheckRequest"
RESPONSE: Final = "http.CheckResponse"
SENT: Final = "httpserver.HttpResponse"
"""What the HTTP authorizer sends to its client."""
_ATTRIBUTES: Final = "http.CheckRequestAttributes"
_OK: Final = "http.CheckResponseOk"
_DENIED: Final = "http.CheckResponseDenied"
_PARSED: Final = "http.CheckRequestMcp"
_COST: Final = 60
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

_TABLES: Final = {
    **mcp.TABLES,
    REQUEST: {"attributes": _ATTRIBUTES, "mcp": _PARSED},
    _ATTRIBUTES: {
        "method": "string",
        "header": "map(strings)",
        "host": "string",
        "protocol": "string",
        "contentLength": "int",
        "body": "bytes",
        "scheme": "string",
        "path": "string",
        "query": "map(strings)",
        "fragment": "string",
    },
    _PARSED: {"request": mcp.REQUEST},
    RESPONSE: {"ok": _OK, "denied": _DENIED},
    _OK: {},
    _DENIED: {"reason": "string"},
    SENT: {"status": "int", "header": "map(strings)", "body": "bytes"},
}
SCHEMA: Final = Schema(_TABLES)


def _parsed(request: Message) -> Message:
    body = request.field("attributes").field("body")
    return SCHEMA[_PARSED].construct({"request": mcp.tolerant(SCHEMA, body)})


SCHEMA[REQUEST].derived["mcp"] = _parsed


def http_request(data: Json) -> Message:
    """Return the request in JSON data. Raises: MessageInvalid."""
    if type(data) is dict:
        # The field is computed, and upstream's data does not have it.
        data = {key: data[key] for key in data if key.lower() != "mcp"}
    return from_go(SCHEMA[REQUEST], data)


def request_of(attributes: dict[str, Value]) -> Message:
    """Return the request with these attributes; those of zero value are left out."""
    values = {name: value for name, value in attributes.items() if value}
    return Message(
        SCHEMA[REQUEST], {"attributes": Message(SCHEMA[_ATTRIBUTES], values)}
    )


def allowed() -> Message:
    """Return the answer that lets a request through."""
    return SCHEMA[RESPONSE].construct({"ok": SCHEMA[_OK].construct({})})


def denied(reason: str) -> Message:
    """Return the answer that rejects a request."""
    part = SCHEMA[_DENIED].construct({"reason": reason})
    return SCHEMA[RESPONSE].construct({"denied": part})


def verdict_of(response: Message) -> Verdict:
    """Return how the server reads an answer, which is a denial unless it is ok."""
    if response.has("ok") and not response.has("denied"):
        return Verdict(is_allowed=True, message="request allowed")
    reason = response.field("denied").field("reason")
    return Verdict(is_allowed=False, message=f"request denied, reason: {reason}")


def canonical(name: str) -> str:
    """Return the canonical name of a header; GO: CanonicalMIMEHeaderKey."""
    if not _TOKEN.fullmatch(name):
        return name
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def _attributes(value: Value) -> Message:
    if value.__class__ is not Message or value.kind.name != _ATTRIBUTES:
        raise CelFailed("no such overload")
    message: Message = value
    return message


def _header(meter: Meter, attributes: Value, name: str) -> list[str]:
    meter.charge_text(2 * len(name))
    meter.charge_bytes(text_bytes(len(name), name))
    values: list[str] = _attributes(attributes).field("header").get(canonical(name), [])
    return values


def _parameter(_meter: Meter, attributes: Value, name: str) -> list[str]:
    values: list[str] = _attributes(attributes).field("query").get(name, [])
    return values


def _denied(meter: Meter, reason: str) -> Message:
    meter.charge_bytes(text_bytes(0, reason))
    return SCHEMA[_DENIED].construct({"reason": reason})


def _response(_meter: Meter, part: Value) -> Message:
    if part.__class__ is not Message or part.kind.name not in (_OK, _DENIED):
        raise CelFailed("no such overload")
    name = "ok" if part.kind.name == _OK else "denied"
    return SCHEMA[RESPONSE].construct({name: part})


OVERLOADS: Final = (
    function(
        f"http.Allowed() -> {_OK}", lambda _m: SCHEMA[_OK].construct({}), cost=_COST
    ),
    function(f"http.Denied(string) -> {_DENIED}", _denied, cost=_COST),
    member(f"Header({_ATTRIBUTES}, string) -> list(string)", _header, cost=_COST),
    member(
        f"QueryParam({_ATTRIBUTES}, string) -> list(string)", _parameter, cost=_COST
    ),
    member(f"Response({_OK}) -> {RESPONSE}", _response, cost=_COST),
    member(f"Response({_DENIED}) -> {RESPONSE}", _response, cost=_COST),
)
