"""URLs, read as Go's net/url reads them.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, uri_problem. Next: catalogue.py.
May touch: nothing outside its arguments; nothing is fetched.
Source: k8s apiserver/pkg/cel/library/urls.go; spec/cel.md 11.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import POINTER_BYTES, CelFailed, Meter
from kyverno_mp.values.duration import quote_text

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})(.{0,2})", re.DOTALL)
_HOST: Final = re.compile(r"[^\x00-\x20\"<>^`{|}\\/?#]*")
_PATH_SAFE: Final = "/$&+,:;=@-_.~!'()*[]%"


class Url(NamedTuple):
    """The parts that CEL may ask for; ``path`` still escaped."""

    text: str
    scheme: str
    host: str
    path: str
    query: str

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "kubernetes.URL"


def _parse(text: str) -> Url | str:
    """Return the parts, or Go's reason to refuse."""
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in text):  # noqa: PLR2004 - control characters
        return "net/url: invalid control character in URL"
    if not text:
        return "empty url"
    if text.startswith(":"):
        return "missing protocol scheme"
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    rest = text[found.end() :] if found else text
    rest, _, query = rest.partition("?")
    query = query.partition("#")[0]
    fragmentless = rest.partition("#")[0]
    if not rest.startswith("/"):
        if scheme:
            return Url(text, scheme, "", "", query)
        return "invalid URI for request"
    host = ""
    path = fragmentless
    if scheme and path.startswith("//"):
        host, slash, tail = path[2:].partition("/")
        path = slash + tail
        problem = _host_problem(host.rpartition("@")[2])
        if problem:
            return problem
        host = host.rpartition("@")[2]
    bad = _ESCAPE.search(path)
    if bad is not None:
        return f"invalid URL escape {quote_text(bad.group())}"
    return Url(text, scheme, host, path, query)


def _host_problem(host: str) -> str:
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            return "missing ']' in host"
        port = host[end + 1 :]
    else:
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if port and not (port[0] == ":" and (port[1:] or "0").isdecimal()):
        return f"invalid port {quote_text(port)} after host"
    odd = _HOST.match(host)
    if odd is None or odd.end() < len(host):
        at = odd.end() if odd else 0
        return f"invalid character {quote_text(host[at])} in host name"
    return ""


def uri_problem(text: str) -> str:
    """Return Go's error for a URL that is not absolute, "" for a good one."""
    found = _parse(text)
    return f"parse {quote_text(text)}: {found}" if type(found) is str else ""


def _url(meter: Meter, text: str) -> Url:
    meter.charge_text(len(text))
    found = _parse(text)
    if type(found) is str:
        raise CelFailed(
            "URL parse error during conversion from string:"
            f" parse {quote_text(text)}: {found}"
        )
    assert type(found) is Url
    return found


def _is_url(meter: Meter, text: str) -> bool:
    meter.charge_text(len(text))
    return type(_parse(text)) is Url


def _hostname(url: Url) -> str:
    if url.host.startswith("["):
        return url.host[1:].partition("]")[0]
    return url.host.partition(":")[0]


def _port(url: Url) -> str:
    tail = url.host.rpartition("]")[2]
    return tail.rpartition(":")[2] if ":" in tail else ""


def _query(meter: Meter, url: Url) -> dict[str, list[str]]:
    meter.charge_text(len(url.query))
    found: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        meter.charge_bytes(len(pair) + POINTER_BYTES)
        key, _, value = pair.partition("=")
        if _ESCAPE.search(key) or _ESCAPE.search(value):
            continue
        found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


def _escaped_path(meter: Meter, url: Url) -> str:
    meter.charge_bytes(3 * len(url.path))
    return quote(url.path, safe=_PATH_SAFE)


OVERLOADS = (
    function("url(string) -> URL", _url),
    function("isURL(string) -> bool", _is_url),
    member("getScheme(URL) -> string", lambda _m, u: u.scheme),
    member("getHost(URL) -> string", lambda _m, u: u.host),
    member("getHostname(URL) -> string", lambda _m, u: _hostname(u)),
    member("getPort(URL) -> string", lambda _m, u: _port(u)),
    member("getEscapedPath(URL) -> string", _escaped_path),
    member("getQuery(URL) -> map(string, list(string))", _query),
)
