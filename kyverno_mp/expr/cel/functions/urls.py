"""Implement URLs, parsed like Go's net/url.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, uri_problem. Next:
expr/cel/catalogue.py.
May touch: nothing outside its arguments; nothing is fetched.
Source: k8s apiserver/pkg/cel/library/urls.go; docs/behaviour/cel 11.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import LIST_BYTES, CelFailed, Meter, shown, text_bytes
from kyverno_mp.values.go.duration import quote_text

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_COST: Final = 150
_PAIR_COST: Final = 120
_ESCAPE_COST: Final = 20
_ESCAPE_BYTES: Final = 200
_PAIR_BYTES: Final = 400
"""One pair of a query: its entry, its list, two strings."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})(.{0,2})", re.DOTALL)
_HOST: Final = re.compile(r"[^\x00-\x20\"<>^`{|}\\/?#]*")
_PATH_SAFE: Final = "/$&+,:;=@-_.~!'()*[]%"


class Url(NamedTuple):
    """The parts that CEL can read; ``path`` is still escaped."""

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
    """Return the parts, or Go's error."""
    if _CONTROL.search(text):
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
        return f"invalid port {shown(port)} after host"
    odd = _HOST.match(host)
    if odd is None or odd.end() < len(host):
        at = odd.end() if odd else 0
        return f"invalid character {quote_text(host[at])} in host name"
    return ""


def uri_problem(text: str) -> str:
    """Return Go's error for a URL that is not absolute, "" for a valid one."""
    found = _parse(text)
    return f"parse {shown(text)}: {found}" if type(found) is str else ""


def _url(meter: Meter, text: str) -> Url:
    _charge(meter, text)
    found = _parse(text)
    if type(found) is str:
        raise CelFailed(
            "URL parse error during conversion from string:"
            f" parse {shown(text)}: {found}"
        )
    assert type(found) is Url
    return found


def _is_url(meter: Meter, text: str) -> bool:
    _charge(meter, text)
    return type(_parse(text)) is Url


def _charge(meter: Meter, text: str) -> None:
    """Charge parsing a URL, and two copies of its parts."""
    meter.charge_bytes(3 * text_bytes(len(text), text))


def _hostname(meter: Meter, url: Url) -> str:
    meter.charge_bytes(text_bytes(len(url.host), url.host))
    if url.host.startswith("["):
        return url.host[1:].partition("]")[0]
    return url.host.partition(":")[0]


def _port(meter: Meter, url: Url) -> str:
    meter.charge_bytes(text_bytes(len(url.host), url.host))
    tail = url.host.rpartition("]")[2]
    return tail.rpartition(":")[2] if ":" in tail else ""


def _query(meter: Meter, url: Url) -> dict[str, list[str]]:
    meter.charge_bytes(LIST_BYTES + len(url.query))
    pairs = url.query.count("&") + 1
    meter.charge(_PAIR_COST * pairs)
    meter.hold(_PAIR_BYTES * pairs)
    meter.charge(_ESCAPE_COST * url.query.count("%"))
    meter.hold(_ESCAPE_BYTES * url.query.count("%"))
    found: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        if _ESCAPE.search(key) or _ESCAPE.search(value):
            continue
        found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


def _escaped_path(meter: Meter, url: Url) -> str:
    meter.charge(4 * len(url.path))
    meter.hold(20 * len(url.path))
    return quote(url.path, safe=_PATH_SAFE)


OVERLOADS = (
    function("url(string) -> URL", _url, cost=_COST),
    function("isURL(string) -> bool", _is_url, cost=_COST),
    member("getScheme(URL) -> string", lambda _m, u: u.scheme),
    member("getHost(URL) -> string", lambda _m, u: u.host),
    member("getHostname(URL) -> string", _hostname, cost=20),
    member("getPort(URL) -> string", _port, cost=20),
    member("getEscapedPath(URL) -> string", _escaped_path, cost=60),
    member("getQuery(URL) -> map(string, list(string))", _query, cost=20),
)
