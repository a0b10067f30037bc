"""Create small and large arguments of every type that a CEL function can take.

A missing type fails the property test, so new types have to be added here.
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from random import Random
from typing import Any

from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.functions.authorization import (
    AccessCheck,
    AccessDecision,
    Authorizer,
)
from kyverno_mp.expr.cel.functions.kyverno.documents import JSON, YAML
from kyverno_mp.expr.cel.outside import (
    GlobalContext,
    Gvr,
    HttpContext,
    ImageContext,
    ResourceContext,
)
from kyverno_mp.expr.cel.types import Type
from kyverno_mp.expr.cel.values import (
    INT_MAX,
    INT_MIN,
    NO_VALUE,
    UINT_MAX,
    CelFailed,
    Duration,
    Meter,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
)

_N = 60_000
_M = 5_000
_SMALL_TEXTS = (
    "", "a", "-", "1.5Gi", "100m", "2024-01-01T00:00:00Z", "1h30m", "10.0.0.1",
    "10.0.0.0/8", "fe80::1",
    "https://a.b:80/c?d=e&f=g", "1.2.3-rc.1+b", "YWJj",
    "a,b,c",
    "%s", "%d", "true", "12", "1e3", "Europe/Berlin", "my-name", "é☃😀", "1d2h", "a/b",
    "dns1123Label", "(a|b)*c", "[", "5m", "_x", " pad ",
)  # fmt: skip
_LONG_TEXTS = (
    "a" * _N,
    "a" * _N + "b",
    "b" + "a" * _N,
    "é" * _N,
    "😀" * (_N // 4),
    "a," * (_N // 2),
    "ab" * (_N // 2),
    "%s" * _M,
    "%%" * (_N // 2),
    "9" * _N,
    "0" * _N,
    "1" + "0" * 4000 + "m",
    "0." + "9" * 4000,
    "9e999999999",
    "1e-999999999",
    "9" * 500 + "Ei",
    " " * _N,
    "~/" * (_N // 2),
    '"' * _N,
    "\x00" * _N,
    "1h" * (_N // 2),
    "." * _N,
    ":" * _N,
    "YWJj" * (_N // 4),
    "YWJj" * (_N // 4) + "!",
    "\n" * _N,
    "https://h/?" + "a=b&" * (_N // 4),
    "https://h/" + "%41" * (_N // 3),
    "https://" + "h" * _N,
    "https://h/?" + "%41" * (_N // 3),
    "1.2.3-" + "a." * (_N // 2) + "a",
    "1.2.3+" + "a." * (_N // 2) + "a",
    "1.2." + "9" * _N,
    "v" + "0" * _N + ".1",
    "A" * _N,
    "a" * 5000,
    "a" * 2500 + "b",
    "(a*)*" * 200 + "b",
    "(a?){200}b",
    "(" * 100 + "a" + ")*" * 100,
    "x{500}" * 4,
    "2024-01-01T00:00:00." + "0" * _N + "Z",
    "%.999f" * 1000,
)


def _quantities() -> list[Any]:
    make = kyverno_library().functions["quantity"][0].implementation
    assert make is not None
    texts = ("1", "1.5Gi", "1e3", "9" * 4000, "1e2000000000", "1e-9", "-5n", "9" * 900)
    found = []
    for text in texts:
        try:
            found.append(make(Meter(), text))
        except CelFailed:
            continue
    return found


def _made(name: str, *texts: str) -> list[Any]:
    found = []
    for overload in kyverno_library().functions[name]:
        for text in texts:
            try:
                found.append(overload.implementation(Meter(), text))  # type: ignore[misc]
            except (CelFailed, TypeError):
                continue
    return found


def _authorizer() -> Authorizer:
    return Authorizer(lambda _asked: (True, "", ""), {"verb": "get"})


_PLAIN: dict[str, Callable[[], list[Any]]] = {
    "bool": lambda: [True, False],
    "int": lambda: [0, 1, -1, 3, 250_000, INT_MAX, INT_MIN],
    "uint": lambda: [Uint(0), Uint(7), Uint(UINT_MAX)],
    "double": lambda: [0.0, 1.5, -2.0, 1e300, 5e-324, float("inf"), float("nan")],
    "null_type": lambda: [None],
    "timestamp": lambda: [Timestamp(0), Timestamp(1_700_000_000_123_456_789)],
    "duration": lambda: [Duration(0), Duration(INT_MAX), Duration(-1)],
    "type": lambda: [TypeValue("int")],
    "net.IP": lambda: _made("ip", "10.0.0.1", "2001:db8::1"),
    "net.CIDR": lambda: _made("cidr", "10.0.0.1/8", "2001:db8::1/32"),
    "kubernetes.URL": lambda: _made("url", *_SMALL_TEXTS, *_LONG_TEXTS),
    "kubernetes.Quantity": _quantities,
    "kubernetes.Semver": lambda: _made(
        "semver", "1.2.3", "1.2.3-" + "a." * (_M // 2) + "a", "1.2.3-rc.1"
    ),
    "kubernetes.NamedFormat": lambda: [
        kyverno_library().functions[name][0].implementation(Meter())  # type: ignore[misc]
        for name in sorted(kyverno_library().functions)
        if name.startswith("format.") and name != "format.named"
    ],
    "Authorizer": lambda: [_authorizer()],
    "kubernetes.authorization.Authorizer": lambda: [_authorizer()],
    **{
        f"kubernetes.authorization.{kind}": lambda: [
            AccessCheck(
                "kubernetes.authorization.PathCheck", lambda _a: (True, "", ""), {}
            )
        ]
        for kind in ("PathCheck", "GroupCheck", "ResourceCheck")
    },
    "kubernetes.authorization.Decision": lambda: [AccessDecision(True, "ok")],
    "kyverno.image": lambda: _made("image", "nginx", "ghcr.io/a/b@sha256:" + "0" * 64),
    "json.Json": lambda: [JSON],
    "yaml.Yaml": lambda: [YAML],
    "resource.Context": lambda: [ResourceContext(None)],
    "globalcontext.Context": lambda: [GlobalContext(None)],
    "imagedata.Context": lambda: [ImageContext(None)],
    "http.Context": lambda: [HttpContext(None)],
    "schema.GroupVersionResource": lambda: [Gvr("v1", "pods")],
}


@cache
def small(kind: Type) -> tuple[Any, ...]:
    """Return small values of a type."""
    if kind.kind == "param" or kind.name in ("dyn", "any"):
        return (1, "a", [1, 2], {"a": 1}, None, 1.5, True)
    if kind.name == "string":
        return _SMALL_TEXTS
    if kind.name == "bytes":
        return (b"", b"abc")
    if kind.name == "list":
        inner = small(kind.params[0])
        return ([], list(inner[:1]), list(inner[:2]) * 2)
    if kind.name == "map":
        return ({}, {"a": 1})
    if kind.name == "optional_type":
        return (NO_VALUE, Optional(1), Optional("a"))
    return tuple(_PLAIN[kind.name]())[:40]


@cache
def large(kind: Type) -> tuple[Any, ...]:
    """Return large and hostile values of a type, if it has any."""
    if kind.kind == "param" or kind.name in ("dyn", "any"):
        return ("a" * _N, [1] * _M, list(range(_M)), {str(i): i for i in range(_M)})
    if kind.name == "string":
        return _LONG_TEXTS
    if kind.name == "bytes":
        return (b"a" * _N, b"\xff" * _N, "é".encode() * _N)
    if kind.name == "list":
        return _lists(kind.params[0])
    if kind.name == "map":
        return ({str(i): i for i in range(_M)},)
    if kind.name == "optional_type":
        return (Optional([1] * _M), Optional("a" * _N))
    return small(kind)


def _lists(item: Type) -> tuple[Any, ...]:
    if item.name == "list":
        return ([[]] * _M, [[1] * 100] * 200, [[[1]]] * _M, [list(range(_M))] * 50)
    if item.kind == "param" or item.name in ("dyn", "string"):
        prefix = "a" * 2000
        texts = [prefix + str(i) for i in range(2000)]
        found: list[list[Any]] = [
            [str(i) for i in range(_M)],
            ["a" * 100_000 + str(i % 2) for i in range(60)],
            texts,
            texts[::-1],
            ["x"] * _M,
            ["é" * 100] * _M,
        ]
        if item.name != "string":
            found += [
                list(range(_M)),
                [float(i) for i in range(_M)],
                [[i] for i in range(1500)],
                [list(range(200)) for _ in range(300)],
                [{"name": "n", "value": str(i)} for i in range(1500)],
                [True, 1, "a", None] * 500,
                [0] * _M + [1],
            ]
        return tuple(found)
    values = [one for one in small(item) if one == one]  # noqa: PLR0124 - NaN
    many = (values * (_M // max(len(values), 1) + 1))[:_M]
    if item.name == "bytes":
        return ([b"a" * 2000 + str(i).encode() for i in range(2000)],)
    if item.name in ("int", "uint", "double"):
        kind = type(values[0])
        return ([kind(i) for i in range(_M)], [kind(i) for i in range(_M, 0, -1)], many)
    return (many,)


def is_growing(kind: Type) -> bool:
    """Return whether values of a type can be large."""
    return kind.kind == "param" or kind.name in (
        "dyn", "string", "bytes", "list", "map", "kubernetes.URL",
    )  # fmt: skip


def combinations(kinds: tuple[Type, ...], most: int, *, hostile: bool) -> list[Any]:
    """Return argument lists: each sample at least once, and some combinations."""
    columns = [
        (*small(kind), *large(kind)) if hostile else small(kind) for kind in kinds
    ]
    found: list[tuple[Any, ...]] = []
    for place, column in enumerate(columns):
        for value in column:
            args = [other[0] for other in columns]
            args[place] = value
            found.append(tuple(args))
    if len(columns) > 1:
        total = 1
        for column in columns:
            total *= len(column)
        every = list(product(*map(range, map(len, columns)))) if total < 10_000 else []
        chosen = Random(7).sample(every, min(most, len(every)))
        if not every:
            random = Random(7)
            chosen = [
                tuple(random.randrange(len(column)) for column in columns)
                for _ in range(most)
            ]
        found += [
            tuple(column[at] for column, at in zip(columns, places, strict=True))
            for places in chosen
        ]
    return found
