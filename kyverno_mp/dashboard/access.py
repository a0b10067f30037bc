"""Control access to the dashboard by a token and by the requested host name.

Room: dashboard. Takes: the headers of a request, the file of the token. Gives: Guard.
Next: site.py. May touch: reads the token file at each request, so a new token is
effective at once.
Source: RFC 7617 (Basic), RFC 6750 (Bearer); docs/dashboard.md.

SAFETY: the token is compared in constant time and never appears in a message or log.
Without a token, the Host must be an IP address or localhost. Otherwise, another site
whose name resolves to our address could read all pages (DNS rebinding).
"""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final

from kyverno_mp.limits import DASHBOARD_TOKEN_CHARACTERS_MIN

_TOKEN_BYTES_MAX: Final = 4096
_LOCAL: Final = ("localhost", "localhost.localdomain")


class Guard:
    """Admits or rejects requests."""

    def __init__(self, token_file: Path | None) -> None:
        """``token_file`` None: no token is required."""
        self._file = token_file

    @property
    def has_token(self) -> bool:
        """Whether a token is required."""
        return self._file is not None

    def refusal(self, headers: Mapping[str, str]) -> HTTPStatus | None:
        """Return the status that rejects a request, or None if it is admitted."""
        if self._file is None:
            if _is_address(headers.get("host", "")):
                return None
            return HTTPStatus.MISDIRECTED_REQUEST
        token = token_of(self._file)
        if not token:
            return HTTPStatus.SERVICE_UNAVAILABLE
        presented = _given(headers.get("authorization", ""))
        # Digests have the same length, so the comparison does not reveal the token's.
        digests = (sha256(secret).digest() for secret in (token, presented))
        return None if hmac.compare_digest(*digests) else HTTPStatus.UNAUTHORIZED


def token_of(file: Path) -> bytes:
    """Return the token in a file; empty if it cannot be read or is too short."""
    try:
        with file.open("rb") as opened:
            token = opened.read(_TOKEN_BYTES_MAX).strip()
    except OSError:
        return b""
    return token if len(token) >= DASHBOARD_TOKEN_CHARACTERS_MIN else b""


def _given(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value.encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return decoded.partition(b":")[2]


def _is_address(host: str) -> bool:
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name[:1] == "[" else name.partition(":")[0]
    if name in _LOCAL:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
