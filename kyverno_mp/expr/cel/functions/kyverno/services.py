"""Implement ``globalContext``, ``image.getMetadata`` and ``http``.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
May touch: shared data, registries and services, through the ports of the variables.
Source: kyverno/sdk cel/libs/{globalcontext,imagedata,http}; docs/behaviour/cel 12.
"""

from typing import Final

from kyverno_mp.expr.cel.functions.kyverno.documents import json_data, printed
from kyverno_mp.expr.cel.library import Declaration, Implementation
from kyverno_mp.expr.cel.outside import (
    GlobalContext,
    HttpContext,
    HttpRequest,
    ImageContext,
    asked,
    twins,
)
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.expr.effects import (
    EFFECT_CLUSTER,
    EFFECT_REGISTRY,
    EFFECT_SHARED,
    NO_GLOBAL_CONTEXT,
)
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json

_NO_NAMESPACED: Final = (
    "http calls are not allowed in namespaced policies: set"
    " --allowHTTPInNamespacedPolicies to enable"
)
_LABELS: Final = "map(string, string)"


def _reference(
    _meter: Meter, context: GlobalContext, name: str, projection: str = ""
) -> Value:
    prefix = "failed to get global reference"
    port, namespace = context.port, context.namespace
    if namespace and (port is None or not port.opens(name, namespace)):
        raise CelFailed(f"{prefix}: {NO_GLOBAL_CONTEXT}")
    if port is None:
        # KYVERNO: upstream's CLI panics here.
        raise CelFailed(f"{prefix}: no global context entries are available")
    return asked(prefix, lambda: port.reference(name, projection))


def _metadata(_meter: Meter, context: ImageContext, image: str) -> Value:
    prefix = "failed to get image data"
    port = context.port
    if port is None:
        raise CelFailed(f"{prefix}: no registry is available")
    return asked(prefix, lambda: port.metadata(image, context.deadline_ns))


def _http_get(
    meter: Meter, context: HttpContext, url: str, headers: dict[str, str] | None = None
) -> Value:
    return _exchanged(meter, context, HttpRequest("GET", url, headers or {}, None, ""))


def _http_post(
    meter: Meter,
    context: HttpContext,
    url: str,
    body: Value,
    headers: dict[str, str] | None = None,
) -> Value:
    encoded = printed(meter, json_data(meter, body))
    request = HttpRequest("POST", url, headers or {}, f"{encoded}\n".encode(), "")
    return _exchanged(meter, context, request)


def _exchanged(meter: Meter, context: HttpContext, request: HttpRequest) -> Value:
    """Return the response, whatever its status."""
    prefix = "request failed"
    if context.is_namespaced:
        raise CelFailed(f"{prefix}: {_NO_NAMESPACED}")
    port = context.port
    if port is None:
        raise CelFailed(f"{prefix}: services cannot be called here")
    sent = request._replace(ca_bundle=context.ca_bundle)
    status, data = asked(prefix, lambda: port.exchange(sent, context.deadline_ns))
    meter.charge_bytes(8 * len(data))
    try:
        body = decode_json(data.decode(errors="replace"))
    except JsonInvalid:
        body = None
    if body.__class__ is dict:
        return {**body, "statusCode": status}
    return {"body": body, "statusCode": status}


def _client(_meter: Meter, context: HttpContext, ca_bundle: str) -> HttpContext:
    if ca_bundle and "-----BEGIN CERTIFICATE-----" not in ca_bundle:
        raise CelFailed("request failed: failed to parse PEM CA bundle for APICall")
    return context._replace(ca_bundle=ca_bundle or context.ca_bundle)


_OTHERS: Final[tuple[tuple[str, str, str, Implementation, int], ...]] = (
    ("get", "GlobalContext, string", "dyn", _reference, EFFECT_SHARED),
    ("get", "GlobalContext, string, string", "dyn", _reference, EFFECT_SHARED),
    ("getMetadata", "ImageContext, string", "dyn", _metadata, EFFECT_REGISTRY),
    ("get", "HttpContext, string", "any", _http_get, EFFECT_CLUSTER),
    ("get", f"HttpContext, string, {_LABELS}", "any", _http_get, EFFECT_CLUSTER),
    ("post", "HttpContext, string, any", "any", _http_post, EFFECT_CLUSTER),
    ("post", f"HttpContext, string, any, {_LABELS}", "any", _http_post, EFFECT_CLUSTER),
    ("client", "HttpContext, string", "HttpContext", _client, 0),
)


OVERLOADS: Final[tuple[Declaration, ...]] = tuple(
    declared for row in _OTHERS for declared in twins(*row)
)
