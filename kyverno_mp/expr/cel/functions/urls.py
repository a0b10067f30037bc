"""Implement URLs, parsed like Go's net/url.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, uri_problem. Next:
expr/cel/catalogue.py.
May touch: nothing outside its arguments; nothing is fetched.
Source: k8s apiserver/pkg/cel/library/urls.go; docs/behaviour/cel 11.
"""

from typing import Final

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import LIST_BYTES, CelFailed, Meter, shown, text_bytes
from kyverno_mp.values.go.gourl import Url, parse_url, query_values

_COST: Final = 250
_PAIR_COST: Final = 120
_ESCAPE_COST: Final = 20
_ODD_COST: Final = 6
_ODD_BYTES: Final = 60
"""The memory of a piece between two escapes."""
_ESCAPE_BYTES: Final = 200
_PAIR_BYTES: Final = 400
"""The memory of one pair of a query: its entry, its list, two strings."""


def uri_problem(url: str) -> str:
    """Return Go's error for a URL that is not absolute; "" if the URL is valid."""
    parsed = parse_url(url)
    return f"parse {shown(url)}: {parsed}" if type(parsed) is str else ""


def _url(meter: Meter, url: str) -> Url:
    _charge(meter, url)
    parsed = parse_url(url)
    if type(parsed) is str:
        raise CelFailed(
            "URL parse error during conversion from string:"
            f" parse {shown(url)}: {parsed}"
        )
    assert type(parsed) is Url
    return parsed


def _is_url(meter: Meter, url: str) -> bool:
    _charge(meter, url)
    return type(parse_url(url)) is Url


def _charge(meter: Meter, url: str) -> None:
    """Charge for parsing a URL and for two copies of its parts."""
    meter.charge_bytes(3 * text_bytes(len(url), url))
    # Escapes are decoded, and a non-ASCII character is encoded as up to four escapes.
    odd = url.count("%")
    if not url.isascii():
        odd += 2 * (len(url) - len(url.encode("ascii", "ignore")))
    meter.charge(_ODD_COST * odd)
    meter.hold(_ODD_BYTES * odd)


def _hostname(meter: Meter, url: Url) -> str:
    meter.charge_bytes(text_bytes(len(url.host), url.host))
    return url.hostname


def _port(meter: Meter, url: Url) -> str:
    meter.charge_bytes(text_bytes(len(url.host), url.host))
    return url.port


def _query(meter: Meter, url: Url) -> dict[str, list[str]]:
    meter.charge_bytes(LIST_BYTES + len(url.query))
    pairs = url.query.count("&") + 1
    meter.charge(_PAIR_COST * pairs)
    meter.hold(_PAIR_BYTES * pairs)
    meter.charge(_ESCAPE_COST * url.query.count("%"))
    meter.hold(_ESCAPE_BYTES * url.query.count("%"))
    parameters: dict[str, list[str]] = {}
    for key, value in query_values(url.query):
        parameters.setdefault(key, []).append(value)
    return parameters


OVERLOADS = (
    function("url(string) -> URL", _url, cost=_COST),
    function("isURL(string) -> bool", _is_url, cost=_COST),
    member("getScheme(URL) -> string", lambda _m, u: u.scheme),
    member("getHost(URL) -> string", lambda _m, u: u.host),
    member("getHostname(URL) -> string", _hostname, cost=40),
    member("getPort(URL) -> string", _port, cost=40),
    member("getEscapedPath(URL) -> string", lambda _m, u: u.path),
    member("getQuery(URL) -> map(string, list(string))", _query, cost=20),
)
