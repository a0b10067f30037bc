"""Talk to one registry about one repository: scheme, authorization, redirects.

Room: registry. Takes: a host, a repository, Credentials. Gives: Answers.
Next: registry/client.py. May touch: the network through registry/exchange.py.
Source: OCI distribution specification 1.1; distribution's token authentication;
docs/behaviour/controllers 11.7 (user agent).

As docker does, a registry on this machine or one marked as insecure is called by TLS
without verification, then by plain HTTP. Every other registry is called by verified TLS
only, and so is one on this machine that has files for TLS.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from kyverno_mp.errors import RegistryUnavailable, RequestInvalid
from kyverno_mp.limits import REGISTRY_REDIRECTS_MAX, REGISTRY_TOKEN_BYTES_MAX
from kyverno_mp.registry.credentials import NO_FILES, Credentials
from kyverno_mp.registry.exchange import (
    Exchange,
    RegistryCall,
    RegistryResponse,
    exchange,
)

_UNAUTHORIZED: Final = 401
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PARAMETER: Final = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_CHALLENGE_LENGTH_MAX: Final = 4096
_OK: Final = 200


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


_TOKEN = msgspec.json.Decoder(_Token)


class Session:
    """One repository of one registry; requests authorization after a 401."""

    def __init__(  # noqa: PLR0913 - independent facts, most of them keyword-only
        self,
        host: str,
        repository: str,
        credentials: Credentials,
        *,
        actions: str,
        insecure: bool,
        user_agent: str,
        send: Exchange = exchange,
    ) -> None:
        self._send_one = send
        self._host = host
        self._scope = f"repository:{repository}:{actions}"
        self._root = f"/v2/{repository}/"
        self._credentials = credentials
        self._may_be_plain = insecure or (
            is_loopback(host) and credentials.tls == NO_FILES
        )
        self._user_agent = user_agent
        self._origin = "" if self._may_be_plain else f"https://{host}"
        self._authorization = ""

    def url(self, path: str, deadline_ns: int) -> str:
        """Return the URL of a path below the repository, or of a Location header."""
        return urljoin(self._origin_of(deadline_ns) + self._root, path)

    def ask(
        self,
        method: str,
        url: str,
        *,
        bytes_max: int,
        deadline_ns: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> RegistryResponse:
        """Send a request with the required authorization; follow download redirects.

        Raises: RegistryUnavailable, RequestInvalid, DeadlinePassed, SettingInvalid.
        """
        sent_headers = dict(headers or {})
        for _ in range(REGISTRY_REDIRECTS_MAX + 1):
            answer = self._send(method, url, sent_headers, body, bytes_max, deadline_ns)
            if answer.status == _UNAUTHORIZED and self._is_ours(url):
                self._authorize(answer, deadline_ns)
                answer = self._send(
                    method, url, sent_headers, body, bytes_max, deadline_ns
                )
            if method != "GET":
                return answer
            if answer.status not in _REDIRECTS:
                return answer if self._is_ours(url) else _without_text(answer)
            url = self._redirected(url, answer)
        raise RegistryUnavailable(
            "registry.redirects", f"{self._host}: redirected too often"
        )

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        bytes_max: int,
        deadline_ns: int,
    ) -> RegistryResponse:
        sent = {**headers, "User-Agent": self._user_agent}
        # SAFETY: the registry's credentials are sent to no other server.
        if self._authorization and self._is_ours(url):
            sent["Authorization"] = self._authorization
        call = RegistryCall(
            method=method,
            url=url,
            headers=sent,
            body=body,
            bytes_max=bytes_max,
            is_verified=not self._may_be_plain,
            is_redirected=not self._is_ours(url),
            tls=self._credentials.tls if self._is_ours(url) else NO_FILES,
        )
        return self._send_one(call, deadline_ns)

    def _is_ours(self, url: str) -> bool:
        return url.startswith(f"{self._origin}/")

    def _origin_of(self, deadline_ns: int) -> str:
        """Return scheme and host; the first call may probe the registry."""
        if not self._origin:
            origin = f"https://{self._host}"
            call = RegistryCall(
                method="GET",
                url=f"{origin}/v2/",
                headers={"User-Agent": self._user_agent},
                bytes_max=REGISTRY_TOKEN_BYTES_MAX,
                is_verified=False,
            )
            try:
                self._send_one(call, deadline_ns)
            except RegistryUnavailable:
                origin = f"http://{self._host}"
            self._origin = origin
        return self._origin

    def _redirected(self, url: str, answer: RegistryResponse) -> str:
        target = urljoin(url, answer.headers.get("location", ""))
        if url.startswith("https:") and not target.startswith("https:"):
            raise RequestInvalid(
                "registry.url", f"{self._host}: redirected from https to another scheme"
            )
        return target

    def _authorize(self, answer: RegistryResponse, deadline_ns: int) -> None:
        """Build the Authorization header that the registry's challenge requires."""
        challenge = answer.headers.get("www-authenticate", "")[:_CHALLENGE_LENGTH_MAX]
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            self._authorization = self._credentials.basic()
        elif kind == "bearer":
            token = self._credentials.registry_token or self._token(
                dict(_PARAMETER.findall(challenge)),
                deadline_ns,
                is_private=answer.is_private,
            )
            self._authorization = f"Bearer {token}"
        else:
            raise RegistryUnavailable(
                "registry.refused", f"{self._host}: unknown authorization scheme"
            )

    def _token(
        self, challenge: Mapping[str, str], deadline_ns: int, *, is_private: bool
    ) -> str:
        """Ask the registry's token service; ``is_private``: the registry's network."""
        realm = challenge.get("realm", "")
        # SAFETY: a password is sent in plain text only to a registry with plain HTTP.
        if not realm.startswith("https://") and self._origin.startswith("https://"):
            raise RequestInvalid(
                "registry.url", f"{self._host}: its token service does not use https"
            )
        form = {"service": challenge.get("service", ""), "scope": self._scope}
        body, headers = None, {"User-Agent": self._user_agent}
        identity = self._credentials.identity_token
        if identity:
            form |= {"grant_type": "refresh_token", "refresh_token": identity}
            form["client_id"] = "kyverno-mp"
            body = urlencode(form).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        else:
            realm += ("&" if urlsplit(realm).query else "?") + urlencode(
                {name: value for name, value in form.items() if value},
                quote_via=quote,
            )
            basic = self._credentials.basic()
            if basic:
                headers["Authorization"] = basic
        answer = self._send_one(
            RegistryCall(
                method="POST" if identity else "GET",
                url=realm,
                headers=headers,
                body=body,
                bytes_max=REGISTRY_TOKEN_BYTES_MAX,
                is_verified=not self._may_be_plain,
                # SAFETY: a public registry can name any token service, also one that
                # only we can reach. One in a private network often has it on another
                # host there.
                is_redirected=not is_private
                and _name_of(realm) != _name_of(f"//{self._host}"),
            ),
            deadline_ns,
        )
        return self._token_in(answer)

    def _token_in(self, answer: RegistryResponse) -> str:
        if answer.status != _OK:
            raise RegistryUnavailable(
                "registry.refused",
                f"{self._host}: its token service returned {answer.status}",
            )
        try:
            decoded = _TOKEN.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            decoded = _Token()
        token = decoded.token or decoded.access_token
        if not token or not token.isprintable() or not token.isascii():
            raise RegistryUnavailable(
                "registry.refused", f"{self._host}: its token service returned no token"
            )
        return token


def _without_text(answer: RegistryResponse) -> RegistryResponse:
    """Return another server's response without the body of a failure.

    SAFETY: a registry can redirect us to any server, also to one that only we can
    reach.
    """
    if answer.status == _OK:
        return answer
    return RegistryResponse(answer.status, {}, b"")


def _name_of(url: str) -> str:
    """Return the host in a URL without its port. Raises: RequestInvalid."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError as error:
        raise RequestInvalid("registry.url", "a registry's URL is invalid") from error


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
