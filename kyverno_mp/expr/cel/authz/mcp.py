"""Implement ``mcp``: requests of the Model Context Protocol in a body.

Room: expr. Takes: Meter and values. Gives: TABLES (types), OVERLOADS, MCP (the value of
the variable), FIELDS (its constants), REQUEST, ``tolerant``. Next: library.py.
Source: docs/behaviour/cel 15.5; the Model Context Protocol's schema.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.cel.authz.message_json import MessageInvalid, from_go_exactly
from kyverno_mp.expr.cel.authz.messages import Message, Schema
from kyverno_mp.expr.cel.functions.kyverno.documents import no_text
from kyverno_mp.expr.cel.library import Declaration, member
from kyverno_mp.expr.cel.types import STRING, Type
from kyverno_mp.expr.cel.values import (
    INT_MAX,
    INT_MIN,
    CelFailed,
    Meter,
    Record,
    Value,
)
from kyverno_mp.limits import DECODED_CHARACTERS_MAX
from kyverno_mp.values.go.gofloat import parse_float
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json, decoded_bytes
from kyverno_mp.values.jsonvalue import Json

REQUEST: Final = "mcp.MCPRequest"
_PARSER: Final = "mcp.MCP"
_COST: Final = 80
_ITEM_COST: Final = 20
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NAMES: Final = {
    "InitializeMethod": "initialize",
    "PingMethod": "ping",
    "ResourcesListMethod": "resources/list",
    "ResourcesTemplatesListMethod": "resources/templates/list",
    "ResourcesReadMethod": "resources/read",
    "PromptsListMethod": "prompts/list",
    "PromptsGetMethod": "prompts/get",
    "ToolsListMethod": "tools/list",
    "ToolsCallMethod": "tools/call",
    "SetLogLevelMethod": "logging/setLevel",
    "ElicitationCreateMethod": "elicitation/create",
}
FIELDS: Final[dict[str, Type]] = dict.fromkeys(_NAMES, STRING)
"""The constants, as fields of the variable."""
TABLES: Final = {
    REQUEST: {
        "Method": "string",
        "ID": "dyn",
        "Paginated": "mcp.PaginatedParams",
        "ToolCall": "mcp.CallToolParams",
        "ResourceRead": "mcp.ReadResourceParams",
        "ResourceSubscribe": "mcp.SubscribeParams",
        "ResourceUnsubscribe": "mcp.UnsubscribeParams",
        "PromptGet": "mcp.GetPromptParams",
        "Initialize": "mcp.InitializeParams",
        "CreateMessage": "mcp.CreateMessageParams",
        "Elicitation": "mcp.ElicitationParams",
        "Complete": "mcp.CompleteParams",
        "SetLogLevel": "mcp.SetLevelParams",
    },
    "mcp.PaginatedParams": {"Cursor": "string"},
    "mcp.CallToolParams": {"Name": "string", "Arguments": "dyn"},
    "mcp.ReadResourceParams": {"URI": "string", "Arguments": "map(dyn)"},
    "mcp.SubscribeParams": {"URI": "string"},
    "mcp.UnsubscribeParams": {"URI": "string"},
    "mcp.GetPromptParams": {"Name": "string", "Arguments": "map(string)"},
    "mcp.InitializeParams": {
        "ProtocolVersion": "string",
        "Capabilities": "dyn",
        "ClientInfo": "mcp.Implementation",
    },
    "mcp.Implementation": {"Name": "string", "Version": "string", "Title": "string"},
    "mcp.CreateMessageParams": {"SystemPrompt": "string"},
    "mcp.ElicitationParams": {"Message": "string", "RequestedSchema": "dyn"},
    "mcp.CompleteParams": {"Ref": "dyn"},
    "mcp.SetLevelParams": {"Level": "string"},
}
"""The types and their fields, as in Schema."""
_PARAMETERS: Final = {
    "initialize": "Initialize",
    "resources/list": "Paginated",
    "resources/templates/list": "Paginated",
    "tools/list": "Paginated",
    "prompts/list": "Paginated",
    "resources/read": "ResourceRead",
    "tools/call": "ToolCall",
    "logging/setLevel": "SetLogLevel",
    "prompts/get": "PromptGet",
    "elicitation/create": "Elicitation",
}
"""The method -> the field that gets its parameters."""
_ENVELOPE: Final = Schema(
    {
        "mcp.JSONRPCRequest": {
            "Jsonrpc": "string",
            "ID": "dyn",
            "Method": "string",
            "Params": "dyn",
        }
    }
)["mcp.JSONRPCRequest"]
_SHOWN_MAX: Final = 64
_PLAIN: Final = Schema(TABLES)
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class McpParser(Record):
    """The value of the variable ``mcp``."""

    __slots__ = ()
    type_name = _PARSER

    def field(self, name: str) -> Value:
        """Return a constant. Raises: CelFailed."""
        return _NAMES[name] if name in _NAMES else super().field(name)

    def has(self, name: str) -> bool:
        """Return whether there is such a constant."""
        return name in _NAMES


MCP: Final = McpParser()


def tolerant(schema: Schema, body: bytes) -> Message:
    """Return the request in the body of an HTTP request.

    A body that is no request gives a request without a method; a request with malformed
    parameters has its method only.
    """
    if len(body) > DECODED_CHARACTERS_MAX:
        raise BudgetExceeded("cel.decoded", "text is too long to be decoded")
    kind = schema[REQUEST]
    try:
        data = decode_json(body.decode(errors="replace"))
        envelope = _envelope(data)
    except (JsonInvalid, MessageInvalid):
        return kind.construct({})
    try:
        return kind.construct({**envelope, **_parameters(schema, envelope, data)})
    except (MessageInvalid, CelFailed):
        return kind.construct(envelope)


def _parse(meter: Meter, _parser: Value, value: Value) -> Message:
    if value.__class__ is not str:
        raise no_text(value)
    json_text: str = value
    if len(json_text) > DECODED_CHARACTERS_MAX:
        raise BudgetExceeded("cel.decoded", "text is too long to be decoded")
    meter.charge(2 * len(json_text))
    meter.hold(2 * decoded_bytes(json_text))
    try:
        data = decode_json(json_text)
        envelope = _envelope(data)
        parameters = _parameters(_PLAIN, envelope, data)
    except (JsonInvalid, MessageInvalid) as error:
        raise CelFailed(str(error)) from error
    return _PLAIN[REQUEST].construct({**envelope, **parameters})


def _envelope(data: Json) -> dict[str, Value]:
    """Return method and ID. Raises: MessageInvalid.

    SAFETY: names in another case are an error. Go takes them for the field, other
    servers ignore them, so a policy could see another method than the server.
    """
    if data is None:
        return {"Method": "", "ID": None}
    envelope = from_go_exactly(_ENVELOPE, data, "")
    call_id = envelope.field("ID")
    if call_id.__class__ not in (str, int, float, type(None)):
        raise MessageInvalid(f"invalid request id: {json.dumps(call_id)[:_SHOWN_MAX]}")
    return {"Method": envelope.field("Method"), "ID": call_id}


def _parameters(
    schema: Schema, envelope: dict[str, Value], data: Json
) -> dict[str, Value]:
    name = _PARAMETERS.get(envelope["Method"])
    if name is None:
        return {}
    assert type(data) is dict
    kind = schema[schema[REQUEST].fields[name].item]
    params = data.get("params")
    return {name: from_go_exactly(kind, {} if params is None else params, ".params")}


def _arguments(request: Value) -> dict[str, Value]:
    """Return the arguments of the tool, resource or prompt. Raises: CelFailed."""
    if request.__class__ is not Message or request.kind.name != REQUEST:
        raise CelFailed("no such overload")
    for name in ("ToolCall", "ResourceRead", "PromptGet"):
        arguments = request.field(name).field("Arguments")
        if arguments.__class__ is dict and request.has(name):
            return dict(arguments)
    return {}


def _text(value: Value) -> Value:
    return value if value.__class__ is str else None


def _int(value: Value) -> Value:
    if value.__class__ is float and math.isfinite(value):
        # Larger numbers keep their sign, so that a comparison stays right.
        return max(INT_MIN, min(int(value), INT_MAX))
    if value.__class__ is str and _DECIMAL.fullmatch(value):
        number = int(value)
        return number if INT_MIN <= number <= INT_MAX else None
    return None


def _float(value: Value) -> Value:
    if value.__class__ is str:
        return parse_float(value)
    return value if value.__class__ is float else None


def _bool(value: Value) -> Value:
    if value.__class__ is str:
        return True if value in _TRUE else False if value in _FALSE else None
    if value.__class__ is float:
        return value != 0
    return value if value.__class__ is bool else None


def _getter(reader: Callable[[Value], Value]) -> Callable[..., Value]:
    def get(meter: Meter, request: Value, key: str, default: Value) -> Value:
        arguments = _arguments(request)
        meter.charge(len(arguments))
        argument = reader(arguments[key]) if key in arguments else None
        return default if argument is None else argument

    return get


def _list_getter(reader: Callable[[Value], Value]) -> Callable[..., Value]:
    def get(meter: Meter, request: Value, key: str, default: Value) -> Value:
        arguments = _arguments(request)
        meter.charge(len(arguments))
        items = arguments.get(key)
        if items.__class__ is not list:
            return default
        meter.charge(_ITEM_COST * len(items))
        meter.charge_bytes(8 * len(items))
        converted = [reader(item) for item in items]
        return [item for item in converted if item is not None]

    return get


def _getters() -> list[Declaration]:
    declared = []
    for name, kind, reader in (
        ("String", "string", _text),
        ("Int", "int", _int),
        ("Float", "double", _float),
        ("Bool", "bool", _bool),
    ):
        declared += [
            member(
                f"Get{name}Argument({REQUEST}, string, {kind}) -> {kind}",
                _getter(reader),
                cost=_COST,
            ),
            member(
                f"Get{name}SliceArgument({REQUEST}, string, list({kind}))"
                f" -> list({kind})",
                _list_getter(reader),
                cost=_COST,
            ),
        ]
    return declared


OVERLOADS: Final = (
    member(f"Parse({_PARSER}, dyn) -> {REQUEST}", _parse, cost=2 * _COST),
    *_getters(),
)
