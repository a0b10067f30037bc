"""Implement Envoy's check requests and answers, and the functions for answers.

Room: expr. Takes: Meter and values. Gives: SCHEMA, NUMBERS, OVERLOADS, REQUEST,
RESPONSE, ``verdict_of``. Next: library.py, message_wire.py.
Source: Envoy's envoy/service/auth/v3/{attribute_context,external_auth}.proto,
envoy/config/core/v3/{address,base}.proto, google/rpc/status.proto;
docs/behaviour/cel 15.3.

KYVERNO: upstream's functions change the message that they return; here each returns a
changed copy, so a variable that holds an answer stays as it is.
"""

from typing import Final

from kyverno_mp.expr.cel.authz.messages import Message, Schema, Verdict
from kyverno_mp.expr.cel.library import Declaration, Implementation, function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value, text_bytes

_AUTH: Final = "envoy.service.auth.v3"
_CORE: Final = "envoy.config.core.v3"
REQUEST: Final = f"{_AUTH}.CheckRequest"
RESPONSE: Final = f"{_AUTH}.CheckResponse"
_CONTEXT: Final = f"{_AUTH}.AttributeContext"
_OK: Final = f"{_AUTH}.OkHttpResponse"
_DENIED: Final = f"{_AUTH}.DeniedHttpResponse"
_HEADER: Final = f"{_CORE}.HeaderValueOption"
_PARAMETER: Final = f"{_CORE}.QueryParameter"
_STATUS: Final = "google.rpc.Status"
_HTTP_STATUS: Final = "envoy.type.v3.HttpStatus"
_APPEND_ACTIONS: Final = (
    "APPEND_IF_EXISTS_OR_ADD",
    "ADD_IF_ABSENT",
    "OVERWRITE_IF_EXISTS_OR_ADD",
    "OVERWRITE_IF_EXISTS",
)
_PERMISSION_DENIED: Final = 7
_FORBIDDEN: Final = 403
_COST: Final = 60

_TABLES: Final = {
    REQUEST: {"attributes": _CONTEXT},
    _CONTEXT: {
        "source": f"{_CONTEXT}.Peer",
        "destination": f"{_CONTEXT}.Peer",
        "request": f"{_CONTEXT}.Request",
        "context_extensions": "map(string)",
        "metadata_context": f"{_CORE}.Metadata",
        "route_metadata_context": f"{_CORE}.Metadata",
        "tls_session": f"{_CONTEXT}.TLSSession",
    },
    f"{_CONTEXT}.Peer": {
        "address": f"{_CORE}.Address",
        "service": "string",
        "labels": "map(string)",
        "principal": "string",
        "certificate": "string",
    },
    f"{_CONTEXT}.Request": {
        "time": "timestamp",
        "http": f"{_CONTEXT}.HttpRequest",
    },
    f"{_CONTEXT}.HttpRequest": {
        "id": "string",
        "method": "string",
        "headers": "map(string)",
        "header_map": f"{_CORE}.HeaderMap",
        "path": "string",
        "host": "string",
        "scheme": "string",
        "query": "string",
        "fragment": "string",
        "size": "int",
        "protocol": "string",
        "body": "string",
        "raw_body": "bytes",
    },
    f"{_CONTEXT}.TLSSession": {"sni": "string"},
    f"{_CORE}.Address": {
        "socket_address": f"{_CORE}.SocketAddress",
        "pipe": f"{_CORE}.Pipe",
        "envoy_internal_address": f"{_CORE}.EnvoyInternalAddress",
    },
    f"{_CORE}.SocketAddress": {
        "protocol": "enum(TCP,UDP)",
        "address": "string",
        "port_value": "uint32",
        "named_port": "string",
        "resolver_name": "string",
        "ipv4_compat": "bool",
        "network_namespace_filepath": "string",
    },
    f"{_CORE}.Pipe": {"path": "string", "mode": "uint32"},
    f"{_CORE}.EnvoyInternalAddress": {
        "server_listener_name": "string",
        "endpoint_id": "string",
    },
    f"{_CORE}.HeaderMap": {"headers": f"list({_CORE}.HeaderValue)"},
    f"{_CORE}.HeaderValue": {
        "key": "string",
        "value": "string",
        "raw_value": "bytes",
    },
    f"{_CORE}.Metadata": {
        "filter_metadata": "map(data)",
        "typed_filter_metadata": "map(data)",
    },
    RESPONSE: {
        "status": _STATUS,
        "denied_response": _DENIED,
        "ok_response": _OK,
        "error_response": _DENIED,
        "dynamic_metadata": "map(data)",
    },
    _STATUS: {"code": "int32", "message": "string", "details": "list(data)"},
    _DENIED: {
        "status": _HTTP_STATUS,
        "headers": f"list({_HEADER})",
        "body": "string",
    },
    _HTTP_STATUS: {"code": "enum()"},
    _OK: {
        "headers": f"list({_HEADER})",
        "headers_to_remove": "list(string)",
        "dynamic_metadata": "map(data)",
        "response_headers_to_add": f"list({_HEADER})",
        "query_parameters_to_set": f"list({_PARAMETER})",
        "query_parameters_to_remove": "list(string)",
    },
    _HEADER: {
        "header": f"{_CORE}.HeaderValue",
        "append": "data",
        "append_action": f"enum({','.join(_APPEND_ACTIONS)})",
        "keep_empty_value": "bool",
    },
    _PARAMETER: {"key": "string", "value": "string"},
}
NUMBERS: Final = {
    REQUEST: "attributes=1",
    _CONTEXT: "source=1 destination=2 request=4 context_extensions=10"
    " metadata_context=11 tls_session=12 route_metadata_context=13",
    f"{_CONTEXT}.Peer": "address=1 service=2 labels=3 principal=4 certificate=5",
    f"{_CONTEXT}.Request": "time=1 http=2",
    f"{_CONTEXT}.HttpRequest": "id=1 method=2 headers=3 path=4 host=5 scheme=6 query=7"
    " fragment=8 size=9 protocol=10 body=11 raw_body=12 header_map=13",
    f"{_CONTEXT}.TLSSession": "sni=1",
    f"{_CORE}.Address": "socket_address=1 pipe=2 envoy_internal_address=3",
    f"{_CORE}.SocketAddress": "protocol=1 address=2 port_value=3 named_port=4"
    " resolver_name=5 ipv4_compat=6 network_namespace_filepath=7",
    f"{_CORE}.Pipe": "path=1 mode=2",
    f"{_CORE}.EnvoyInternalAddress": "server_listener_name=1 endpoint_id=2",
    f"{_CORE}.HeaderMap": "headers=1",
    f"{_CORE}.HeaderValue": "key=1 value=2 raw_value=3",
    f"{_CORE}.Metadata": "filter_metadata=1 typed_filter_metadata=2",
    RESPONSE: "status=1 denied_response=2 ok_response=3 dynamic_metadata=4"
    " error_response=5",
    "google.rpc.Status": "code=1 message=2 details=3",
    f"{_AUTH}.DeniedHttpResponse": "status=1 headers=2 body=3",
    "envoy.type.v3.HttpStatus": "code=1",
    f"{_AUTH}.OkHttpResponse": "headers=2 dynamic_metadata=3 headers_to_remove=5"
    " response_headers_to_add=6 query_parameters_to_set=7"
    " query_parameters_to_remove=8",
    f"{_CORE}.HeaderValueOption": "header=1 append=2 append_action=3"
    " keep_empty_value=4",
    f"{_CORE}.QueryParameter": "key=1 value=2",
}
"""The numbers of the fields on the wire, in ascending order."""
_ONE_OF: Final = {
    RESPONSE: frozenset({"denied_response", "ok_response", "error_response"}),
    f"{_CORE}.Address": frozenset({"socket_address", "pipe", "envoy_internal_address"}),
    f"{_CORE}.SocketAddress": frozenset({"port_value", "named_port"}),
}
"""Message -> the fields of which at most one is set."""
SCHEMA: Final = Schema(_TABLES, _ONE_OF)


def verdict_of(response: Message) -> Verdict:
    """Return how Envoy reads an answer: by its status, 0 allows the request."""
    if not response.field("status").field("code"):
        return Verdict(is_allowed=True, message="request allowed")
    name = "error_response" if response.has("error_response") else "denied_response"
    status = response.field(name).field("status").field("code") or _FORBIDDEN
    return Verdict(
        is_allowed=False, message=f"request denied with status code {status}"
    )


def _as(value: Value, *names: str) -> Message:
    """Return a value of one of these types. Raises: CelFailed for another value."""
    if value.__class__ is not Message or value.kind.name not in names:
        raise CelFailed("no such overload")
    message: Message = value
    return message


def _new(meter: Meter, name: str, **values: Value) -> Message:
    strings = [value for value in values.values() if value.__class__ is str]
    meter.charge_bytes(text_bytes(sum(map(len, strings)), *strings))
    return SCHEMA[name].construct(values)


def _denied(meter: Meter, status: int) -> Message:
    return _new(meter, _DENIED, status=_new(meter, _HTTP_STATUS, code=status))


def _header(meter: Meter, key: str, value: str) -> Message:
    return _new(
        meter, _HEADER, header=_new(meter, f"{_CORE}.HeaderValue", key=key, value=value)
    )


def _parameter(meter: Meter, key: str, value: str) -> Message:
    return _new(meter, _PARAMETER, key=key, value=value)


def _adds(field: str, item: Implementation, *names: str) -> Implementation:
    """Return a function that appends ``item(key, value)``, or a finished item."""

    def add(meter: Meter, response: Value, key: Value, *value: Value) -> Message:
        added = item(meter, key, *value) if value else key
        return _as(response, *names).appended(meter, field, added)

    return add


def _removes(field: str) -> Implementation:
    def remove(meter: Meter, response: Value, name: str) -> Message:
        return _as(response, _OK).appended(meter, field, name)

    return remove


def _keep_empty(meter: Meter, header: Value, keeps: bool = True) -> Message:  # noqa: FBT001, FBT002 - an argument of a CEL function
    return _as(header, _HEADER).changed(meter, keep_empty_value=keeps)


def _with_body(meter: Meter, response: Value, body: str) -> Message:
    return _as(response, _DENIED).changed(meter, body=body)


def _response(meter: Meter, response: Value) -> Message:
    if _as(response, _OK, _DENIED).kind.name == _OK:
        return _new(meter, RESPONSE, status=_new(meter, _STATUS), ok_response=response)
    status = _new(meter, _STATUS, code=_PERMISSION_DENIED)
    return _new(meter, RESPONSE, status=status, denied_response=response)


def _with_message(meter: Meter, response: Value, message: str) -> Message:
    typed = _as(response, RESPONSE)
    status = typed.field("status").changed(meter, message=message)
    return typed.changed(meter, status=status)


def _with_metadata(meter: Meter, response: Value, metadata: Value) -> Message:
    return _as(response, RESPONSE).changed(meter, dynamic_metadata=metadata)


def _members(
    name: str, args: str, result: str, call: Implementation, *receivers: str
) -> tuple[Declaration, ...]:
    return tuple(
        member(f"{name}({receiver}{args}) -> {result or receiver}", call, cost=_COST)
        for receiver in receivers
    )


_ADD_HEADER: Final = _adds("headers", _header, _OK, _DENIED)
_ADD_RESPONSE_HEADER: Final = _adds("response_headers_to_add", _header, _OK)
_ADD_PARAMETER: Final = _adds("query_parameters_to_set", _parameter, _OK)
_PAIR: Final = ", string, string"
OVERLOADS: Final = (
    function(f"envoy.Allowed() -> {_OK}", lambda m: _new(m, _OK), cost=_COST),
    function(f"envoy.Denied(int) -> {_DENIED}", _denied, cost=_COST),
    function(f"envoy.Header(string, string) -> {_HEADER}", _header, cost=_COST),
    function(
        f"envoy.QueryParam(string, string) -> {_PARAMETER}", _parameter, cost=_COST
    ),
    *_members("KeepEmptyValue", "", "", _keep_empty, _HEADER),
    *_members("KeepEmptyValue", ", bool", "", _keep_empty, _HEADER),
    *_members("WithHeader", f", {_HEADER}", "", _ADD_HEADER, _OK, _DENIED),
    *_members("WithHeader", _PAIR, "", _ADD_HEADER, _OK, _DENIED),
    *_members("WithoutHeader", ", string", "", _removes("headers_to_remove"), _OK),
    *_members("WithResponseHeader", f", {_HEADER}", "", _ADD_RESPONSE_HEADER, _OK),
    *_members("WithResponseHeader", _PAIR, "", _ADD_RESPONSE_HEADER, _OK),
    *_members("WithQueryParam", f", {_PARAMETER}", "", _ADD_PARAMETER, _OK),
    *_members("WithQueryParam", _PAIR, "", _ADD_PARAMETER, _OK),
    *_members(
        "WithoutQueryParam", ", string", "", _removes("query_parameters_to_remove"), _OK
    ),
    *_members("WithBody", ", string", "", _with_body, _DENIED),
    *_members("Response", "", RESPONSE, _response, _OK, _DENIED),
    *_members("WithMessage", ", string", "", _with_message, RESPONSE),
    *_members("WithMetadata", ", map(string, dyn)", "", _with_metadata, RESPONSE),
)
