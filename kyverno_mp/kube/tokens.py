"""Request tokens for another ServiceAccount, and renew them in time.

Room: kube. Takes: a Client that can create tokens, the name of a ServiceAccount.
Gives: RequestedToken, the credentials of a connection pool. Next: kube/pool.py.
May touch: the API server through kube/rest.py, the clock.
Source: Kubernetes authentication.k8s.io/v1 TokenRequest.

K8S: a token can be bound only to a Pod that runs as the token's own ServiceAccount, and
this Pod runs as another one. Therefore these tokens live ten minutes, the shortest time
that an API server grants, so a leaked token soon stops working.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeUnavailable
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.settings.machine import boot_ns
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
ACCOUNTS: Final = core("serviceaccounts")
LIFETIME_S: Final = 600
"""K8S: the minimum of ``expirationSeconds``."""
_RENEWED_AFTER: Final = 0.6
"""The fraction of its lifetime after which a token is renewed, with four minutes
left.
"""
_TIMEOUT_S: Final = 5.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Token:
    """One token; both times are readings of ``clock_ns``."""

    text: str
    renew_ns: int
    expires_ns: int


class RequestedToken:
    """The current token of one ServiceAccount; threads may share it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        account: str,
        clock_ns: Callable[[], int] = boot_ns,
    ) -> None:
        """``client`` must be allowed to create tokens for ``account``."""
        self._client = client.within(_TIMEOUT_S)
        self._path = ACCOUNTS.object((namespace, account), "token")
        self._account = account
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._failures = 0
        self._next_ns = 0
        """Time before which no new token is requested."""
        self._error = ""

    def token(self, *, renew: bool = False) -> str:
        """Return a currently valid token.

        ``renew``: the API server rejected the last token. Cost: one call every six
        minutes; after failures, one call per second at first, later one every 30 s.

        Raises: KubeUnavailable (``kube.token``) if no valid token is available.
        """
        with self._lock:
            now_ns = self._clock_ns()
            token = self._token
            due = token is None or renew or now_ns >= token.renew_ns
            if due and now_ns >= self._next_ns:
                self._request(now_ns)
            token = self._token
            if token is not None and now_ns < token.expires_ns:
                return token.text
            raise KubeUnavailable(
                "kube.token", f"no token for ServiceAccount {self._account}{self._why}"
            )

    @property
    def _why(self) -> str:
        return f": {self._error}" if self._error else ""

    def _request(self, now_ns: int) -> None:
        try:
            self._token = self._obtain(now_ns)
        except DependencyError as error:
            self._failures += 1
            pause_s = min(_RETRY_S_MAX, _RETRY_S_MIN * 2.0 ** (self._failures - 1))
            self._error = error.message
            _log.warning(
                "no new token for ServiceAccount %s: %s", self._account, error.message
            )
        else:
            # A new token may also be rejected, so the requests are rate-limited.
            pause_s = _RETRY_S_MIN
            self._failures = 0
            self._error = ""
        self._next_ns = now_ns + int(pause_s * 1e9)

    def _obtain(self, now_ns: int) -> _Token:
        body: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME_S},
        }
        answer = self._client.send(
            Call(
                method="POST",
                path=self._path,
                body=msgspec.json.encode(body),
                # A retry may create a second token, which is harmless.
                repeatable=True,
            )
        )
        token = (answer.get("status") or {}).get("token")
        # K8S: the API server may grant another lifetime and returns it here.
        granted_s = (answer.get("spec") or {}).get("expirationSeconds") or LIFETIME_S
        if not isinstance(token, str) or not token:
            raise KubeUnavailable("kube.answer", f"{self._path}: no token in it")
        return _Token(
            token,
            renew_ns=now_ns + int(granted_s * _RENEWED_AFTER * 1e9),
            expires_ns=now_ns + int(granted_s * 1e9),
        )
