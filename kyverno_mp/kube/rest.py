"""Call the API server: one request, one response or one error of errors.py.

Room: kube. Takes: method, path, body, deadline. Gives: JSON, bytes or lines.
Next: kube/{discovery,watch,apply,lease}.py, egress/api_calls.py.
May touch: connections of the pool, the clock; sleeps between attempts.
Source: Kubernetes API concepts; docs/architecture.md 3 (live calls carry the request's
deadline).

Reads and idempotent writes are retried within their deadline, with exponential back-off
and jitter. Responses 429 and 503 may have a Retry-After.
"""

import http.client
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.kube.connection import Connection, body_parts
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.queries import Labels, labels_of
from kyverno_mp.kube.rights import MissingRights
from kyverno_mp.kube.translate import broken, failure, message_of
from kyverno_mp.limits import (
    KUBE_ANSWER_BYTES_MAX,
    KUBE_ATTEMPTS_MAX,
    KUBE_EVENT_BYTES_MAX,
)
from kyverno_mp.telemetry.trace import External
from kyverno_mp.values.jsonvalue import Json

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_TIMEOUT_S: Final = 30.0
_KEPT_PART: Final = 3
"""A reused connection gets a third of the time left to answer a repeatable call."""
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 10.0
_FAILED: Final = 400
_UNAUTHORIZED: Final = 401
_READ_BYTES: Final = 65536
_BROKEN: Final = (OSError, http.client.HTTPException, ssl.SSLError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``repeatable`` None = depends on the method.

    ``guard`` is called again before each retry, which may happen long after the first
    attempt; its exception ends the call.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = field(default=None, repr=False)
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool | None = None
    bytes_max: int = KUBE_ANSWER_BYTES_MAX
    guard: Callable[[], None] | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether the call is idempotent."""
        if self.repeatable is None:
            return self.method in _REPEATABLE
        return self.repeatable

    def ask_guard(self) -> None:
        """Call the guard, which may raise."""
        if self.guard is not None:
            self.guard()


class Client:
    """A client for one API server; threads of one process may share it.

    ``timeout_s`` applies to calls without a deadline.
    """

    def __init__(
        self, pool: Pool, user_agent: str, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._pool = pool
        self._user_agent = user_agent
        self._timeout_ns = int(timeout_s * 1e9)
        self.on_query: Callable[[Labels], None] | None = None
        """Called for each request that is sent, in any thread."""
        self.rights: MissingRights | None = None
        """Gets each answer, to know which permissions the account lacks."""

    def within(self, timeout_s: float) -> "Client":
        """Return a client on the same connections with another time-out."""
        client = Client(self._pool, self._user_agent, timeout_s)
        client.on_query, client.rights = self.on_query, self.rights
        return client

    def get(
        self,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        deadline_ns: int = 0,
    ) -> Json:
        """Return the decoded response of a GET. Raises: DependencyError."""
        call = Call(method="GET", path=path, query=query)
        return decoded(self.call(call, deadline_ns), path)

    def send(self, call: Call, deadline_ns: int = 0) -> Json:
        """Return the decoded response of any call. Raises: DependencyError."""
        return decoded(self.call(call, deadline_ns), call.path)

    def call(self, call: Call, deadline_ns: int = 0) -> bytes:
        """Return the response's body; ``deadline_ns`` 0 = now plus the time-out.

        Raises: DependencyError; the last error if attempts or time run out.
        """
        with External("kubernetes", call.method):
            return self._repeated(call, deadline_ns)

    def _repeated(self, call: Call, deadline_ns: int) -> bytes:
        deadline_ns = deadline_ns or time.monotonic_ns() + self._timeout_ns
        for attempt in range(1, KUBE_ATTEMPTS_MAX + 1):
            try:
                return self._attempt(call, deadline_ns)
            except KubeUnavailable as error:
                throttled = error.code == "kube.throttled"
                answered = throttled or error.code == "kube.server"
                if attempt == KUBE_ATTEMPTS_MAX or not (call.may_repeat or throttled):
                    raise
                pause_s = self._pause(attempt)
                pause_s += error.retry_after_s if answered else 0.0
                left_s = (deadline_ns - time.monotonic_ns()) / 1e9
                if pause_s >= left_s:
                    raise
                time.sleep(pause_s)
                call.ask_guard()
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream(
        self, call: Call, *, silence_s: float
    ) -> Iterator[tuple[Connection, Iterator[bytes]]]:
        """Open a watch; return its connection and its lines.

        The lines end with the response. Silence for ``silence_s`` raises
        DeadlinePassed. ``Connection.interrupt`` wakes a reader from another thread.
        """
        silence_ns = int(silence_s * 1e9)
        connection = self._pool.fresh(time.monotonic_ns() + self._timeout_ns)
        try:
            answer = self._exchange(connection, call, renew=False)
            if answer.status >= _FAILED:
                body = answer.read(_READ_BYTES)
                raise self._failed(call, answer, body)
            self._heard(call, answer)
            yield connection, _lines(connection, answer, silence_ns)
        except _BROKEN as error:
            raise broken(error, call.method, call.path) from error
        finally:
            connection.abandon()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _pause(self, attempt: int) -> float:
        pause_s = min(_PAUSE_S_MAX, _PAUSE_S * float(2**attempt))
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    def _attempt(self, call: Call, deadline_ns: int) -> bytes:
        connection = self._pool.take(deadline_ns)
        if call.may_repeat and not connection.fresh:
            now_ns = time.monotonic_ns()
            connection.limit(now_ns + (deadline_ns - now_ns) // _KEPT_PART)
        try:
            return self._once(connection, call)
        except DeadlinePassed:
            if connection.fresh:
                raise
            # The connection may have died silently (a firewall dropped it, a machine is
            # gone), and so may all other idle connections.
            self._pool.close()
            if not call.may_repeat:
                raise
        except KubeUnavailable as error:
            # The server may have closed the reused connection while we wrote to it.
            if error.code != "kube.connection" or connection.fresh:
                raise
            if not call.may_repeat:
                raise
        call.ask_guard()
        return self._once(self._pool.fresh(deadline_ns), call)

    def _once(
        self, connection: Connection, call: Call, *, renew: bool = False
    ) -> bytes:
        done = False
        try:
            answer = self._exchange(connection, call, renew=renew)
            body = _body_of(call, answer, connection)
            done = True
        except _BROKEN as error:
            raise broken(error, call.method, call.path) from error
        finally:
            if not done:
                connection.abandon()
        connection.fresh = False
        self._pool.give(connection)
        if answer.status == _UNAUTHORIZED and not renew:
            # The token may have been rotated since it was last read.
            again = self._pool.take(connection.deadline_ns)
            return self._once(again, call, renew=True)
        if answer.status >= _FAILED:
            raise self._failed(call, answer, body)
        self._heard(call, answer)
        return body

    def _failed(
        self, call: Call, answer: http.client.HTTPResponse, body: bytes
    ) -> DependencyError:
        self._heard(call, answer, body)
        return failure(answer.status, body, call.method, call.path, _headers_of(answer))

    def _heard(
        self, call: Call, answer: http.client.HTTPResponse, body: bytes = b""
    ) -> None:
        if self.rights is not None:
            message = message_of(body) if body else ""
            self.rights.heard(
                call.method, call.path, call.query, answer.status, message
            )

    def _exchange(
        self, connection: Connection, call: Call, *, renew: bool
    ) -> http.client.HTTPResponse:
        if self.on_query is not None:
            self.on_query(labels_of(call.method, call.path, call.query, call.accept))
        headers = {"Accept": call.accept, "User-Agent": self._user_agent}
        authorization = self._pool.authorization(renew=renew)
        if authorization:
            headers["Authorization"] = authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        target = self._pool.prefix + call.path
        if call.query:
            target += ("&" if "?" in target else "?") + urlencode(call.query)
        try:
            connection.request(call.method, target, call.body, headers)
        except (ValueError, UnicodeError) as error:
            raise KubeRefused("kube.path", "the path is not a path of HTTP") from error
        return connection.getresponse()


def decoded(body: bytes, path: str) -> Json:
    """Decode a response.

    Raises: KubeUnavailable (``kube.answer``) when it is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KubeUnavailable(
            "kube.answer", f"{path}: the response is not JSON"
        ) from error


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def _body_of(
    call: Call, answer: http.client.HTTPResponse, connection: Connection
) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in body_parts(answer, connection):
        size += len(part)
        if size > call.bytes_max:
            raise KubeRefused(
                "kube.too_large",
                f"{call.method} {call.path}: more than {call.bytes_max} bytes",
            )
        parts.append(part)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    # ``read1`` leaves the response open, and the connection would accept no request.
    answer.close()
    return b"".join(parts)


def _headers_of(answer: http.client.HTTPResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def _lines(
    connection: Connection, answer: http.client.HTTPResponse, silence_ns: int
) -> Iterator[bytes]:
    """Split a stream into lines.

    Raises: KubeRefused (``kube.too_large``) for a line that is too long.
    """
    pieces: list[bytes] = []
    size = 0
    while True:
        connection.limit(time.monotonic_ns() + silence_ns)
        part = answer.read1(_READ_BYTES)
        if not part:
            return
        *lines, rest = part.split(b"\n")
        for line in lines:
            full_line = b"".join((*pieces, line))
            pieces, size = [], 0
            if full_line:
                yield full_line
        pieces.append(rest)
        size += len(rest)
        if size > KUBE_EVENT_BYTES_MAX:
            raise KubeRefused("kube.too_large", "an event of a watch is too large")
