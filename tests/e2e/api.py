"""Talk to an API server in plain JSON.

Takes: an Access. Gives: answers as (status, body). One connection, opened again when
the server closed it. May touch: the network.
"""

import contextlib
import http.client
import json
import re
import ssl
import time
import urllib.parse
from types import TracebackType
from typing import Any, Final, Self

from tests.e2e.kubeconfig import Access
from tests.waiting import HANG_S

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


_STALE: Final = (ConnectionError, ssl.SSLEOFError)
"""Errors of a kept connection that the server closed before this request."""
_BUSY: Final = 429
"""K8S: also the status while the storage of a new CRD starts; nothing was done."""
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
BUSY_POLL_S: Final = 0.2


class Refused(AssertionError):
    """The answer was not the expected one."""

    def __init__(self, status: int, body: Any) -> None:
        text = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{status}: {text}")
        self.status = status
        self.body = body


class Api:
    """A connection to an API server."""

    def __init__(self, access: Access, timeout_s: float = 30.0) -> None:
        address = urllib.parse.urlsplit(access.server)
        assert address.hostname
        self.server = access.server
        self._headers = {"Accept": "application/json"}
        self.warnings: list[str] = []
        """The warnings of the last answer."""
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._connection = http.client.HTTPSConnection(
            address.hostname,
            address.port or 443,
            context=access.tls(),
            timeout=timeout_s,
        )

    def __enter__(self) -> Self:
        """Return the connection itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
    ) -> tuple[int, Any]:
        """Send a request; return the status and the decoded body."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": content_type} if data else {})
        deadline = time.monotonic() + HANG_S
        while True:
            status, answer = self._twice(method, path, data, headers)
            if status != _BUSY or time.monotonic() > deadline:
                return status, answer
            time.sleep(BUSY_POLL_S)

    def _twice(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        """Send a request; retry once if the kept connection turns out to be closed."""
        was_kept = self._connection.sock is not None
        try:
            return self._once(method, path, data, headers)
        except _STALE:
            self._connection.close()
            if not was_kept:
                raise
            return self._once(method, path, data, headers)

    def _once(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        text = response.read()
        given = response.headers.get_all("Warning") or []
        self.warnings = [_warning(one) for one in given]
        with contextlib.suppress(ValueError):
            return response.status, json.loads(text)
        return response.status, text.decode(errors="replace")

    def get(self, path: str) -> Any:
        """Read an object; raises Refused unless the answer is 200."""
        return self._expect("GET", path)

    def metadata(self, path: str) -> list[Any]:
        """Read only the metadata of all objects of the collection at ``path``."""
        usual = self._headers
        self._headers = {**usual, "Accept": _METADATA}
        try:
            return [one["metadata"] for one in self.get(path)["items"] or ()]
        finally:
            self._headers = usual

    def create(self, path: str, body: Any) -> Any:
        """Create an object in the collection at ``path``."""
        return self._expect("POST", path, body)

    def patch(self, path: str, body: Any, kind: str = "merge") -> Any:
        """Patch the object at ``path``; ``kind`` is a key of PATCH_TYPES."""
        return self._expect("PATCH", path, body, PATCH_TYPES[kind])

    def delete(self, path: str) -> Any:
        """Delete the object at ``path``."""
        return self._expect("DELETE", path)

    def _expect(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        status, answer = self.ask(method, path, body, content_type)
        if not 200 <= status < 300:  # the class of successful answers
            raise Refused(status, answer)
        return answer


def _warning(header: str) -> str:
    """Return the text of a Warning header, e.g. of ``299 - "text"``."""
    quoted = header.partition(" - ")[2].strip().removeprefix('"').removesuffix('"')
    return re.sub(r"\\(.)", r"\1", quoted)
