"""Call services by URL for policies: one DNS look-up, bounded, without our tokens.

Room: egress. Takes: ApiRequest with a URL. Gives: the response body. Next:
egress/api_calls.py.
May touch: DNS through egress/lookups.py, one socket, the token file.
Source: docs/behaviour/engine 3.7 (service); docs/behaviour/lessons 4.2 rows 13, 19-24.

The name is resolved once and the connection goes to the checked address; the
certificate is still verified against the name. A redirect is returned, not followed.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.egress.addresses import Address, Target, UrlRules, allowed, target_of
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed, KubeUnavailable
from kyverno_mp.expr.cel.outside import HttpRequest
from kyverno_mp.kube.connection import Connection, body_parts
from kyverno_mp.kube.translate import cut
from kyverno_mp.limits import SERVICE_ADDRESSES_MAX, SERVICE_ANSWER_BYTES_MAX
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.telemetry.trace import External

_TIMEOUT_S: Final = 30.0
_OURS: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "upgrade", "te"}
)
"""Headers that frame the request; a policy cannot set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """Limits of service calls. ``token_file``: an opt-in token for services only."""

    urls: UrlRules
    answer_bytes_max: int = SERVICE_ANSWER_BYTES_MAX
    timeout_s: float = _TIMEOUT_S
    token_file: str = ""


class _Answer(NamedTuple):
    status: int
    reason: str
    body: bytes


class Services:
    """Calls to services; thread-safe."""

    def __init__(
        self,
        rules: ServiceRules,
        resolve: Callable[[str], list[str]],
        user_agent: str,
    ) -> None:
        self._rules = rules
        self._resolve = Lookups(resolve)
        self._user_agent = user_agent

    def call(self, request: ApiRequest, deadline_ns: int) -> bytes:
        """Return the body of a 2xx answer.

        Raises: ExpressionFailed (``egress.*``, ``context.apicall``), DeadlinePassed.
        """
        if request.policy_namespace and not self._rules.urls.for_namespaced:
            raise ExpressionFailed(
                "egress.denied", "namespaced policies may not call services"
            )
        body = None if request.body is None else msgspec.json.encode(request.body)
        answer = self._asked(request, body, deadline_ns)
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
            excerpt = cut(answer.body.decode("utf-8", "replace"))
            raise ExpressionFailed(
                "context.apicall", f"HTTP {answer.status} {answer.reason}: {excerpt}"
            )
        return answer.body

    def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
        """Return status and body of any answer: the port of CEL's ``http``.

        ``deadline_ns`` 0: only the timeout of services. Raises: as ``call``.
        """
        api_request = ApiRequest(
            method=request.method,
            url=request.url,
            headers=tuple(request.headers.items()),
            ca_bundle=request.ca_bundle,
        )
        answer = self._asked(api_request, request.body, deadline_ns)
        return answer.status, answer.body

    def _asked(
        self, request: ApiRequest, body: bytes | None, deadline_ns: int
    ) -> "_Answer":
        with External("service", request.method) as call:
            answer = self._sent(request, body, deadline_ns)
            call.status = answer.status
            return answer

    def _sent(
        self, request: ApiRequest, body: bytes | None, deadline_ns: int
    ) -> "_Answer":
        target = target_of(request.url)
        own_ns = time.monotonic_ns() + int(self._rules.timeout_s * 1e9)
        deadline_ns = deadline_ns or own_ns + 1
        try:
            resolved = self._resolve(target.host, min(deadline_ns, own_ns))
        except KubeUnavailable as error:
            raise ExpressionFailed("egress.dns", error.message) from error
        except DeadlinePassed as error:
            raise _late(error.message, own_ns, deadline_ns) from error
        addresses = allowed(target, resolved, self._rules.urls)[:SERVICE_ADDRESSES_MAX]
        connection = Connection(
            target.host,
            target.port,
            context=_context(target, request.ca_bundle),
            dial=lambda timeout_s: _dial(addresses, target.port, timeout_s),
        )
        connection.limit(min(deadline_ns, own_ns))
        try:
            headers = dict(self._headers(target, request))
            connection.connect()
            connection.limit_overhead()
            connection.request(request.method, target.path, body, headers)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.reason, self._read(answer, connection))
        except TimeoutError as error:
            message = f"{target.host} did not answer in time"
            raise _late(message, own_ns, deadline_ns) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ExpressionFailed(
                "context.apicall",
                f"failed to execute HTTP request: {request.method} of"
                f" {target.host}: {type(error).__name__}",
            ) from error
        finally:
            connection.abandon()

    def _headers(self, target: Target, request: ApiRequest) -> Mapping[str, str]:
        headers = {
            name: value for name, value in request.headers if name.lower() not in _OURS
        }
        headers["Host"] = target.authority
        names = {name.lower() for name in headers}
        if "user-agent" not in names:
            headers["User-Agent"] = self._user_agent
        if request.body is not None and "content-type" not in names:
            headers["Content-Type"] = "application/json"
        # SAFETY: this room never has our ServiceAccount's token. This token is issued
        # for services and is sent over TLS only.
        if "authorization" not in names and target.scheme == "https":
            token = self._token()
            if token:
                headers["Authorization"] = f"Bearer {token}"
        return headers

    def _read(self, answer: http.client.HTTPResponse, connection: Connection) -> bytes:
        parts: list[bytes] = []
        size = 0
        most = self._rules.answer_bytes_max
        for part in body_parts(answer, connection):
            size += len(part)
            if most and size > most:
                raise ExpressionFailed(
                    "context.apicall",
                    "response length must be less than max allowed response length of"
                    f" {most}",
                )
            parts.append(part)
        return b"".join(parts)

    def _token(self) -> str:
        if not self._rules.token_file:
            return ""
        try:
            return Path(self._rules.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _late(
    message: str, own_ns: int, deadline_ns: int
) -> ExpressionFailed | DeadlinePassed:
    if own_ns < deadline_ns:
        # The service call's timeout has passed, but not the caller's deadline.
        return ExpressionFailed("context.apicall", message)
    return DeadlinePassed("egress.deadline", message)


def _dial(addresses: list[Address], port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address that accepts; resolves no name."""
    for index, address in enumerate(addresses, start=1):
        try:
            return socket.create_connection((str(address), port), timeout_s)
        except OSError:
            if index == len(addresses):
                raise
    raise AssertionError("there is at least one address")


def _context(target: Target, ca_bundle: str) -> ssl.SSLContext | None:
    if target.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cadata=ca_bundle or None)
    except (ssl.SSLError, ValueError) as error:
        raise ExpressionFailed(
            "context.apicall", "failed to parse PEM CA bundle for APICall"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
