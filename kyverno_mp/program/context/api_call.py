"""Load ``apiCall`` context entries: the API server by path, or a service by URL.

Room: program. Takes: ApiCallEntryIR. Gives: a closure that computes the entry's value.
Next: program/context/entries. A namespaced Policy can read only paths of its own
namespace.
May touch: the cluster data through ``scope.cluster_data.api_calls``.
Source: docs/behaviour/engine 3.7; Kyverno pkg/engine/apicall/apiCall.go.
"""

import posixpath
import re
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import Resolve, link_document
from kyverno_mp.ir.rules import ApiCallEntryIR
from kyverno_mp.program.context.loaders import (
    Load,
    LoadingScope,
    as_read,
    failed,
    from_port,
    search_data,
)
from kyverno_mp.program.own_namespace import is_outside
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.api_path import fixed_path

_NAMESPACED: Final = re.compile(r"/api(s)?/.*?/namespaces/([^/]+)/?.*\Z")
_METHODS: Final = ("GET", "POST")


def link_api_call(entry: ApiCallEntryIR, policy_namespace: str) -> Load:
    """Link one apiCall entry."""
    name = entry.name
    call_of = link_document(entry.call)
    source = entry.call.source if type(entry.call.source) is dict else {}
    url_path = source.get("urlPath") or ""
    fixed = fixed_path(str(url_path)) if policy_namespace else None
    path_of = link_document(parse_document(source.get("jmesPath") or ""))

    def fetch(scope: LoadingScope) -> Json:
        try:
            call = call_of(scope)
        except ExpressionFailed as error:
            raise failed(
                f"failed to substitute variables in context entry {name} {url_path}:"
                f" {error.message}",
                error,
            ) from error
        request = _request(name, call, policy_namespace)
        if fixed is not None and not fixed.has_shape(request.path):
            # SAFETY: the review of the policy's author has read the resource from the
            # path as it is written.
            raise failed(f"path {request.path}: a variable fills only one segment")
        port = scope.cluster_data.api_calls
        assert port is not None, "registered only with a port"
        deadline_ns = scope.runtime.deadline_ns
        try:
            return as_read(scope, from_port(lambda: port.call(request, deadline_ns)))
        except ExpressionFailed:
            if entry.has_default:
                return default
            raise

    default = entry.default

    def load(scope: LoadingScope) -> Json:
        try:
            data = fetch(scope)
        except ExpressionFailed as error:
            raise failed(
                f"failed to fetch data for APICall: {error.message}", error
            ) from error
        # KYVERNO: jmesPath is not applied to the default, nor to a response that
        # equals it (docs/behaviour/engine 3.7).
        if entry.has_default and data == default:
            return as_read(scope, default)
        return _transformed(scope, name, data, path_of)

    return load


def _transformed(scope: LoadingScope, name: str, data: Json, path_of: Resolve) -> Json:
    try:
        path = path_of(scope)
    except ExpressionFailed as error:
        raise failed(
            "failed to store data for APICall: failed to substitute variables in"
            f" context entry {name} JMESPath: {error.message}",
            error,
        ) from error
    if not path:
        return data
    try:
        return search_data(scope, str(path), data)
    except ExpressionFailed as error:
        raise failed(
            f"failed to store data for APICall: failed to apply JMESPath {path} for"
            f" context entry {name}: {error.message}",
            error,
        ) from error


def _request(name: str, call: Json, policy_namespace: str) -> ApiRequest:
    """Build the call, and check that the policy is allowed to make it."""
    path = _text(call.get("urlPath"), name, "urlPath")
    if policy_namespace:
        _check_namespace(path, policy_namespace)
    method = _text(call.get("method"), name, "method") or "GET"
    body = _body(call.get("data"), method)
    if path:
        return ApiRequest(
            method=method, path=path, body=body, policy_namespace=policy_namespace
        )
    service = call.get("service")
    if type(service) is not dict:
        raise failed(f"missing service for APICall {name}")
    if method not in _METHODS:
        raise failed(f"invalid request type {method} for APICall {name}")
    return ApiRequest(
        method=method,
        url=_text(service.get("url"), name, "service.url"),
        headers=_headers(service.get("headers"), name),
        body=body if method == "POST" else None,
        ca_bundle=_text(service.get("caBundle"), name, "service.caBundle"),
        policy_namespace=policy_namespace,
    )


def _check_namespace(path: str, policy_namespace: str) -> None:
    # SAFETY: the text after "?" is not a path, but its dots would remove path segments,
    # and a server may decode "%2e"; neither may change which namespace is read.
    bare = path.partition("?")[0]
    if any(sign in bare for sign in "%#\\"):
        raise failed(f"path {path} has characters that namespaced policies may not use")
    clean = posixpath.normpath(bare) if bare else "."
    if clean.startswith("//"):
        clean = clean[1:]
    match = _NAMESPACED.match(clean)
    if match is None:
        raise failed(
            f"path {clean} does not contain a namespace segment, which is required for"
            " namespaced policies"
        )
    if is_outside(policy_namespace, match[2]):
        raise failed(
            f"path {clean} refers to namespace {match[2]}, which is different from the"
            f" policy namespace {policy_namespace}"
        )


def _body(data: Json, method: str) -> Json:
    if not data and method != "POST":
        return None
    return {
        str(item.get("key", "")): item.get("value")
        for item in data or ()
        if type(item) is dict
    }


def _headers(headers: Json, name: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_text(item.get("key"), name, "key"), _text(item.get("value"), name, "value"))
        for item in headers or ()
        if type(item) is dict
    )


def _text(value: Json, name: str, field: str) -> str:
    if value is None:
        return ""
    if type(value) is not str:
        raise failed(f"{field} of APICall {name} must be a string")
    return value
