"""Parse URLs like Go's net/url.

Room: values. Takes: strings. Gives: Url, parse_url, is_authority, query_values. Next:
expr/cel/functions/urls.py.
May touch: nothing outside its arguments; nothing is fetched.
Source: Go 1.26 net/url (ParseRequestURI, EscapedPath, Query); docs/behaviour/cel 11.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes as quote_bytes
from urllib.parse import unquote_plus, unquote_to_bytes

from kyverno_mp.values.go.goaddress import Address, parse_address
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotext import text_bytes

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})[^%]?.?", re.DOTALL)
_AUTHORITY: Final = re.compile(r"[^\x00-\x1f\x7f/?#@]*")
_PORT: Final = re.compile(r"(?::[0-9]*)?")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
# The characters that each part of a URL can contain without an escape.
_HOST_ODD: Final = re.compile(
    r"[^A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"%\u0080-\U0010ffff]"
)
_HOST_ESCAPE: Final = re.compile(r"%(?:(?!25)[0-7][0-9a-fA-F])")
_ZONE_ESCAPE: Final = re.compile(r"%([0-9a-fA-F]{2})")
_PATH_KEPT: Final = "$&+,/:;=@"
_PATH_VALID: Final = re.compile(r"[A-Za-z0-9\-_.~$&+,/:;=@!'()*\[\]%]*")
_FRAGMENT_KEPT: Final = "$&+,/:;=?@!()*"
_FRAGMENT_VALID: Final = re.compile(r"[A-Za-z0-9\-_.~$&+,/:;=?@!'()*\[\]%]*")

_SHOWN_MAX: Final = 256
"""The number of characters of a host that errors show, and that are parsed as an
address."""


class Url(NamedTuple):
    """The parts of a URL; ``path`` and ``fragment`` are escaped, ``host`` is not."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    host: str = ""
    path: str = ""
    query: str = ""
    has_query: bool = False
    fragment: str = ""
    omits_host: bool = False

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "kubernetes.URL"

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        if self.host.startswith("[") and "]" in self.host:
            return self.host[1 : self.host.rindex("]")]
        head, colon, port = self.host.rpartition(":")
        return head if colon and _PORT.fullmatch(f":{port}") else self.host

    @property
    def port(self) -> str:
        """The digits after the host's colon; "" if there are none."""
        _, colon, port = self.host.rpartition(":")
        return port if colon and _PORT.fullmatch(f":{port}") else ""


def parse_url(raw_url: str) -> Url | str:
    """Parse an absolute URL or path; return Go's error for anything else."""
    if _CONTROL.search(raw_url):
        return "net/url: invalid control character in URL"
    if not raw_url:
        return "empty url"
    if raw_url == "*":
        return Url(path="*")
    if raw_url.startswith(":"):
        return "missing protocol scheme"
    # KYVERNO: the whole text must be valid with "#" as a part of the path or query;
    # then it is parsed again without the fragment.
    problem = _parse(raw_url, via_request=True)
    if type(problem) is str:
        return problem
    raw_url, _, fragment = raw_url.partition("#")
    url = _parse(raw_url, via_request=False)
    if type(url) is str or not fragment:
        return url
    assert type(url) is Url
    bad = _bad_escape(fragment)
    escaped = _escaped(fragment, _FRAGMENT_VALID, _FRAGMENT_KEPT)
    return bad or url._replace(fragment=escaped)


def _parse(raw_url: str, *, via_request: bool) -> Url | str:
    match = _SCHEME.match(raw_url)
    scheme = match[1].lower() if match else ""
    rest = raw_url[match.end() :] if match else raw_url
    rest, mark, query = rest.partition("?")
    url = Url(scheme, query=query, has_query=bool(mark))
    if not rest.startswith("/"):
        if scheme:
            return url._replace(opaque=rest)
        if via_request:
            return "invalid URI for request"
        if ":" in rest.partition("/")[0]:
            return "first path segment in URL cannot contain colon"
    is_absolute = scheme or (not via_request and not rest.startswith("///"))
    if is_absolute and rest.startswith("//"):
        authority, slash, tail = rest[2:].partition("/")
        rest = slash + tail
        placed = _with_authority(url, authority)
        if type(placed) is str:
            return placed
        assert type(placed) is Url
        url = placed
    elif scheme and rest.startswith("/"):
        url = url._replace(omits_host=True)
    bad = _bad_escape(rest)
    return bad or url._replace(path=_escaped(rest, _PATH_VALID, _PATH_KEPT))


def _with_authority(url: Url, authority: str) -> Url | str:
    user, at, host = authority.rpartition("@")
    parsed = _host(url.scheme, host)
    if type(parsed) is not list:
        return str(parsed)
    if at and not _USER.fullmatch(user):
        return "net/url: invalid userinfo"
    bad = _bad_escape(user)
    return bad or url._replace(host=parsed[0], user=user if at else None)


def _host(scheme: str, host: str) -> list[str] | str:
    """Return a list with the unescaped host, or Go's error."""
    opening = host.rfind("[")
    if opening > 0:
        return "invalid IP-literal"
    if opening == 0:
        return _literal(host)
    colon = host.find(":")
    if colon >= 0:
        # Only these two schemes reject a second colon.
        last = host.rfind(":")
        port = host[colon if scheme in ("http", "https") else last :]
        if not _PORT.fullmatch(port):
            return f"invalid port {quote(port[:_SHOWN_MAX])} after host"
    bad = _host_problem(host)
    return bad or [_unescaped(host)]


def is_authority(authority: str) -> bool:
    """Return whether Go accepts the text unchanged as a host and port."""
    if not _AUTHORITY.fullmatch(authority):
        return False
    return _host("", authority) == [authority]


def _literal(host: str) -> list[str] | str:
    """Check an IPv6 address in brackets, with its port."""
    closing = host.rfind("]")
    if closing < 0:
        return "missing ']' in host"
    inner, port = host[1:closing], host[closing + 1 :]
    if not _PORT.fullmatch(port):
        return f"invalid port {quote(port[:_SHOWN_MAX])} after host"
    zone = inner.find("%25")
    head = inner if zone < 0 else inner[:zone]
    bad = _host_problem(head) or (_zone_problem(inner[zone:]) if zone >= 0 else "")
    if bad:
        return bad
    name = _unescaped(inner)
    # A longer text is not an address, unless it has a zone, which can have any length
    # and characters.
    address = parse_address(name[:_SHOWN_MAX])
    if type(address) is str:
        return f"invalid host: {address}"
    assert type(address) is Address
    return "invalid IP-literal" if address.is_v4 else [f"[{name}]{port}"]


def _bad_escape(part: str) -> str:
    if "%" not in part:
        return ""
    bad = _BAD_ESCAPE.search(part)
    if bad is None:
        return ""
    return f"invalid URL escape {quote(part[bad.start() : bad.start() + 3])}"


def _host_problem(host: str) -> str:
    """Return Go's error for the first invalid character or escape in a host."""
    problems: list[tuple[int, str]] = []
    odd = _HOST_ODD.search(host)
    if odd is not None:
        message = f"invalid character {quote(odd.group())} in host name"
        problems.append((odd.start(), message))
    for pattern in (_BAD_ESCAPE, _HOST_ESCAPE):
        bad = pattern.search(host)
        if bad is not None:
            named = quote(host[bad.start() : bad.start() + 3])
            problems.append((bad.start(), f"invalid URL escape {named}"))
    return min(problems)[1] if problems else ""


def _zone_problem(zone: str) -> str:
    """Return Go's error for a zone, which allows more escapes than a host does."""
    bad = _bad_escape(zone)
    if bad:
        return bad
    for match in _ZONE_ESCAPE.finditer(zone):
        char = chr(int(match[1], 16))
        if match.group() != "%25" and char != " " and not _is_plain(char):
            return f"invalid URL escape {quote(match.group())}"
    odd = _HOST_ODD.search(zone)
    if odd is None:
        return ""
    return f"invalid character {quote(odd.group())} in host name"


def _is_plain(char: str) -> bool:
    return char < "\x80" and char != "%" and not _HOST_ODD.match(char)


def _unescaped(part: str) -> str:
    if "%" not in part:
        return part
    return unquote_to_bytes(text_bytes(part)).decode(errors="replace")


def _escaped(part: str, valid: re.Pattern[str], safe: str) -> str:
    """Return a validly escaped part unchanged; otherwise escape all of it again."""
    if valid.fullmatch(part):
        return part
    return quote_bytes(unquote_to_bytes(text_bytes(part)), safe)


def query_values(query: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values; skip pairs with a semicolon or an invalid escape."""
    for pair in query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        if not _bad_escape(key) and not _bad_escape(value):
            yield unquote_plus(key), unquote_plus(value)
