"""The only port for calls that policies make to the API server or to a service.

Room: egress. Takes: ApiRequest. Gives: JSON; satisfies program/ports.ApiCalls.
Next: webhook/wire.py. May touch: the API server through kube/rest.py, services through
egress/services.py. Source: docs/behaviour/engine 3.7; docs/behaviour/lessons 4.2 (rows
13, 17-25).

Every check happens here, after substitution, for every caller: this module does not
rely on the checks of the policy compiler.
"""

from typing import Final

import msgspec

from kyverno_mp.egress.paths import namespaced_path, normal_path
from kyverno_mp.egress.services import Services
from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.jsonvalue import Json

_METHODS: Final = ("GET", "POST")
_WORDS: Final = {
    "kube.forbidden": "permission denied: unknown",
    "kube.unauthorized": (
        "permission denied: the server has asked for the client to provide credentials"
    ),
    "kube.not_found": "the server could not find the requested resource",
    "kube.conflict": "the server reported a conflict",
    "kube.exists": "the server reported a conflict",
    "kube.invalid": "the server rejected our request due to an error in our request",
    "kube.throttled": (
        "the server has received too many requests and has asked us to try again later"
    ),
}
"""KYVERNO: client-go's message for a failed raw request. Client-go does not read the
response body and writes "unknown" in place of the server's message
(docs/behaviour/controllers 11.6); our error keeps that message in its cause."""


class LiveCalls:
    """Live calls without a cache; thread-safe."""

    def __init__(self, client: Client, services: Services) -> None:
        self._client = client
        self._services = services

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the decoded response.

        Raises: ExpressionFailed (``context.apicall``, ``egress.*``), DeadlinePassed.
        """
        body = self.fetch(request, deadline_ns)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ExpressionFailed(
                "context.apicall", "the answer is not JSON"
            ) from error

    def fetch(self, request: ApiRequest, deadline_ns: int) -> bytes:
        """Return the response body; raises the same errors as ``call``."""
        if request.method not in _METHODS:
            raise ExpressionFailed(
                "context.apicall", f"invalid request type {request.method}"
            )
        if request.path:
            return self._ask_api_server(request, deadline_ns)
        return self._services.call(request, deadline_ns)

    def _ask_api_server(self, request: ApiRequest, deadline_ns: int) -> bytes:
        namespace, method = request.policy_namespace, request.method
        if namespace:
            path = namespaced_path(request.path, namespace, method)
        else:
            path = normal_path(request.path)
        body = None if request.body is None else msgspec.json.encode(request.body)
        call = Call(method=method, path=path, body=body)
        try:
            return self._client.call(call, deadline_ns)
        except DependencyError as error:
            if error.code == "kube.deadline":
                raise
            reason = _WORDS.get(error.code, error.message)
            raise _failed(request, reason) from error


def _failed(request: ApiRequest, reason: str) -> ExpressionFailed:
    return ExpressionFailed(
        "context.apicall",
        f"failed to {request.method} resource with raw url: {request.path}: {reason}",
    )
