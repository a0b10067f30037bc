"""Every function and operator charges for its input and output before it works.

The tables themselves are iterated, so a new row without a charge fails, and so does a
row for whose arguments no large values are defined here. See charges.py for what is
measured.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest

from kyverno_mp.expr.assertion.calls import _TABLE as ASSERTION
from kyverno_mp.expr.assertion.calls import link_call as link_assertion_call
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, link_call
from kyverno_mp.expr.jmespath.functions.entry import Kinds
from kyverno_mp.expr.jmespath.interim import Closure, GoInt, Reference
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime
from tests.charges.charges import cost_of

pytestmark = pytest.mark.slow

SIZE: Final = 1_000_000
COMBINATIONS_MAX: Final = 4
_SAME: Final = "a" * 100_000


def _repeated(unit: str, size: int = SIZE) -> str:
    return unit * (size // len(unit))


LONG: Final[dict[str, Callable[[], Any]]] = {
    "letters": lambda: "a" * SIZE,
    "ten million letters": lambda: "a" * (10 << 20),
    "letters and an end": lambda: "a" * SIZE + "b",
    "accents": lambda: "\u00e9" * SIZE,
    "faces": lambda: "\U0001f600" * SIZE,
    "digits": lambda: "1" * SIZE,
    "blanks": lambda: " " * SIZE,
    "lines": lambda: "\n" * SIZE,
    "slashes": lambda: _repeated("/a/../"),
    "quotes": lambda: '"' * SIZE,
    "controls": lambda: "\x01" * SIZE,
    "tags": lambda: "<" * SIZE,
    "stars": lambda: _repeated("*a"),
    "questions": lambda: "*" + "?" * 60_000 + "b",
    "versions": lambda: _repeated("1.0.0-"),
    "ranges": lambda: _repeated(">1.0.0 "),
    "empty maps": lambda: "[" + "{}," * 100_000 + "{}]",
    "a million maps": lambda: "[" + "{}," * 300_000 + "{}]",
    "yaml lines": lambda: "- a\n" * 10_000,
    "bad base64": lambda: "A" * SIZE + "=A",
    "base64": lambda: "/////" * (SIZE // 4 // 5 * 4),
    "groups": lambda: "(a)" * 90,
    "many groups": lambda: "(a)" * 20_000,
    "a small regex": lambda: "(a*)*b",
    "regex of nothing": lambda: "",
    "repetitions": lambda: "((a{100}){10})*",
    "references": lambda: "$0" * 1000,
    "url": lambda: "http://" + "a" * SIZE,
    "short url": lambda: "http://a." + "a." * 5000,
    "dots": lambda: _repeated("1."),
    "zeros": lambda: _repeated("0s"),
    "brackets": lambda: "[" * SIZE,
    "one letter": lambda: "a",
    "colons": lambda: _repeated("a:b\n"),
    "a certificate": lambda: (
        "-----BEGIN CERTIFICATE-----\n" + "A" * SIZE + "\n-----END CERTIFICATE-----"
    ),
    "a time": lambda: "2024-01-02T03:04:05Z",
    "a layout": lambda: "2006-01-02" + " " * 900,
    "a quantity": lambda: "1" + "0" * 400 + "m",
    "a duration": lambda: "1h" * 400,
}
NUMBERS: Final[dict[str, Callable[[], Any]]] = {
    "one": lambda: 1.0,
    "many": lambda: float(SIZE),
    "huge": lambda: 1e300,
    "minus": lambda: -1.0,
}
ARRAYS: Final[dict[str, Callable[[], Any]]] = {
    "numbers": lambda: [float(n) for n in range(SIZE // 20)],
    "texts": lambda: [f"text {n}" for n in range(SIZE // 20)],
    "few texts": lambda: [f"text {n}" for n in range(40_000)],
    "long texts": lambda: [f"{'a' * 100_000}{n}" for n in range(100)],
    "equal texts": lambda: ["a" * 1_000_000] * 1000,
    "maps": lambda: [{} for _ in range(SIZE // 20)],
    "lists": lambda: [[] for _ in range(SIZE // 20)],
    "pairs": lambda: [[str(n), n] for n in range(30_000)],
    "quantities": lambda: ["1" * 400 + "m"] * 50_000,
    "durations": lambda: ["1h" * 400] * 50_000,
    "ints": lambda: list(range(SIZE // 20)),
    "wide": lambda: [["a"] * 1000] * 1000,
}
OBJECTS: Final[dict[str, Callable[[], Any]]] = {
    "keys": lambda: {f"key {n}": "v" for n in range(SIZE // 20)},
    "few keys": lambda: {f"key {n}": "v" for n in range(30_000)},
    "long keys": lambda: {f"{'k' * 10_000}{n}": n for n in range(1000)},
    "long values": lambda: {f"k{n}": "a" * 100_000 for n in range(100)},
    "empty maps": lambda: {str(n): {} for n in range(SIZE // 10)},
}
REFERENCES: Final[dict[str, Callable[[], Any]]] = {
    "itself": lambda: Reference(lambda _runtime, current: current),
    "its text": lambda: Reference(link(parse("to_string(@)"))),
    "the same": lambda: Reference(lambda _runtime, _current: _SAME),
}
OTHERS: Final[dict[str, Callable[[], Any]]] = {
    "null": lambda: None,
    "true": lambda: True,
    "index": lambda: GoInt(1),
}
BY_KIND: Final[dict[str, dict[str, Callable[[], Any]]]] = {
    "string": LONG,
    "number": NUMBERS,
    "array": ARRAYS,
    "array[number]": {"numbers": ARRAYS["numbers"]},
    "array[string]": {
        name: ARRAYS[name] for name in ("texts", "few texts", "long texts")
    }
    | {"equal texts": ARRAYS["equal texts"]},
    "array[array]": {name: ARRAYS[name] for name in ("pairs", "lists", "wide")},
    "object": OBJECTS,
    "expref": REFERENCES,
    "any": {
        **{name: LONG[name] for name in ("letters", "faces", "controls", "a quantity")},
        "a duration": LONG["a duration"],
        **ARRAYS,
        **OBJECTS,
        **NUMBERS,
        **OTHERS,
    },
}


_MADE: Final[dict[int, Any]] = {}


def _made(make: Callable[[], Any]) -> Any:
    """Create an argument once; it must not be changed."""
    if id(make) not in _MADE:
        _MADE[id(make)] = make()
    return _MADE[id(make)]


def _makers(kinds: Kinds) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    for kind in kinds:
        assert kind in BY_KIND, f"no large arguments of the kind {kind} are known"
        found |= BY_KIND[kind]
    return found


def _combinations(arguments: tuple[Kinds, ...]) -> Iterator[tuple[str, list[Any]]]:
    """Yield arguments: first all alike, then each with short or other partners."""
    makers = [_makers(kinds) for kinds in arguments]
    alike = [name for name in makers[0] if all(name in each for each in makers)]
    seen = set()
    chosen = [tuple([name] * len(makers)) for name in alike]
    if len(makers) > 1:
        chosen = chosen[:: len(makers)]
    every = list(product(*makers))
    stride = max(len(every) // COMBINATIONS_MAX, 1)
    # A stride that does not divide the lists' lengths visits all their values.
    chosen += every[:: stride + (stride % 2 == 0)]
    for names in chosen:
        if names not in seen:
            seen.add(names)
            yield (
                " + ".join(names),
                [_made(make[name]) for make, name in zip(makers, names, strict=True)],
            )


PARTICULAR: Final[dict[str, list[tuple[Any, ...]]]] = {
    "regex_replace_all": [
        ("(a)", "a" * 200_000, "$1" * 100),
        ("(a*)", "a" * 1_000_000, "$0" * 200_000),
        ("", "a" * 1_000_000, "bbbbbbbbbb"),
        ("(a)" * 90, "a" * 1_000_000, "$1"),
    ],
    "regex_match": [("(a|b)*a(a|b){500}c", "ab" * 100_000)],
    "replace_all": [("a" * 1_000_000, "a", "b" * 1000), ("a" * 10_000_000, "aa", "")],
    "pattern_match": [
        ("*a" * 1000 + "?b", "a" * 100_000),
        ("*" + "a" * 1000 + "b*", "a" * 1_000_000),
        ("*" + "a?" * 5000 + "b*", "a" * 1_000_000),
    ],
    "trim": [("a" * 1_000_000, "bcdefgh" * 100_000 + "a")],
    "time_parse": [("2006-01-02T15:04:05Z07:00" * 30, "2006-01-02T15:04:05Z" * 12)],
    "random": [("[a-z]{1000}" * 50,), ("(((a{1000}){1000}){1000})",), ("(?:a|b)" * 9,)],
    "semver_compare": [("1.0.0", ">1.x " * 3000), ("1.0.0-" + "1." * 8000, ">1.0.0")],
    "x509_decode": [
        (
            "-----BEGIN CERTIFICATE-----\n"
            + "A" * 60_000
            + "\n-----END CERTIFICATE-----",
        )
    ],
    "items": [({f"k{n}": n for n in range(40_000)}, "k", "v")],
    "contains": [
        ("a" * 1_000_000, "a" * 90 + "b"),
        (["a" * 100_000] * 1000, "a" * 99_999),
    ],
    "wildcard": [("*" + "a?" * 5000 + "b*", "a" * 1_000_000)],
    "find_first": [("a" * 1_000_000, "a" * 90 + "b")],
    "parse_json": [("[" * 500 + "1" * 1000 + "," + "{}" * 100_000,)],
    "base64_decode": [("A" * 1_000_000 + "\n" * 1_000_000 + "=",)],
    "pad_left": [("a", 1e7, "b")],
    "image_normalize": [("a/" * 8000,), ("a" * 16_000,)],
    "round": [(1.5, 300.0)],
}


def _constants(values: list[Any]) -> tuple[Closure, ...]:
    def constant(value: Any) -> Closure:
        return lambda _runtime, _current: value

    return tuple(constant(value) for value in values)


def _calls(name: str, arguments: tuple[Kinds, ...]) -> Iterator[tuple[str, list[Any]]]:
    if arguments:
        yield from _combinations(arguments)
    for number, values in enumerate(PARTICULAR.get(name, ())):
        yield f"particular {number}", list(values)


def _faults(
    name: str, arguments: tuple[Kinds, ...], linked: Callable[..., Closure]
) -> list[str]:
    found = []
    for title, values in _calls(name, arguments):
        call = linked(name, _constants(values))

        def work(runtime: Runtime, call: Closure = call) -> None:
            # Called repeatedly until the cost is measurable.
            before = runtime.steps_left
            for _ in range(200):
                call(runtime, None)
                if before - runtime.steps_left > 20_000:
                    return

        found += [f"{title}: {fault}" for fault in cost_of(work).faults()]
    return found


@pytest.mark.parametrize("name", sorted(KYVERNO))
def test_functions_charge_for_their_work(name: str) -> None:
    def linked(name: str, arguments: tuple[Closure, ...]) -> Closure:
        return link_call(KYVERNO, name, arguments)

    assert _faults(name, KYVERNO[name].arguments, linked) == []


@pytest.mark.parametrize("name", sorted(ASSERTION))
def test_assertion_functions_charge_for_their_work(name: str) -> None:
    assert _faults(name, ASSERTION[name].arguments, link_assertion_call) == []
