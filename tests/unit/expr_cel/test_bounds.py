"""Test that all work of an expression is bounded."""

import sys
import tracemalloc
from contextlib import suppress
from itertools import combinations_with_replacement
from typing import Any

import pytest

from kyverno_mp.errors import (
    BudgetExceeded,
    ExpressionFailed,
    ExpressionInvalid,
    InputError,
)
from kyverno_mp.expr.cel.values import Meter
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.limits import CEL_REPEATED_MAX
from tests.unit.expr_cel.evaluate import compiled, evaluate

_LIST = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


@pytest.mark.parametrize(
    "text",
    [
        _LIST + ".all(a, x.all(b, x.all(c, x.all(d, x.all(e, x.all(f, true))))))",
        "x.map(a, x.map(b, x.map(c, x.map(d, x.map(e, x.map(f, [a, b]))))))",
        "lists.range(100000000).size() > 0",
        "lists.range(100000).map(i, lists.range(100000)).size() > 0",
        "lists.range(3000).distinct().size() > 0",
        "lists.range(200000).sort().size() > 0",
        "sets.contains(lists.range(5000), lists.range(5000))",
    ],
)
def test_loops_exhaust_the_budget(text: str) -> None:
    with pytest.raises(BudgetExceeded) as caught:
        evaluate(text, None, list(range(10)))
    assert caught.value.message == "operation cancelled: actual cost limit exceeded"


@pytest.mark.parametrize(
    "seed", ["'aaaaaaaaaaaaaaaaaaaaaaaa'", "[1, 2, 3, 4, 5, 6, 7, 8]", "b'aaaaaaaaaaa'"]
)
def test_doubling_exhausts_the_budget(seed: str) -> None:
    text = "v"
    for _ in range(40):
        text = f"cel.bind(v, v + v, {text})"
    with pytest.raises(BudgetExceeded):
        evaluate(f"cel.bind(v, {seed}, {text}).size() > 0")


def test_loop_is_charged_while_it_runs() -> None:
    short, long = Meter(), Meter()
    assert evaluate("x.exists(i, i == 0)", None, list(range(1000)), short) is True
    assert evaluate("x.exists(i, i == 999)", None, list(range(1000)), long) is True
    assert Meter().left - short.left < 20
    assert Meter().left - long.left > 1000 * 5


def test_comparing_values_with_shared_parts_is_bounded() -> None:
    text = "v == w"
    for _ in range(45):
        text = f"cel.bind(v, [v, v], cel.bind(w, [w, w], {text}))"
    with pytest.raises(BudgetExceeded):
        evaluate(f"cel.bind(v, [1], cel.bind(w, [1], {text}))")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "[" * 5000 + "]" * 5000,
        "!" * 5000 + "(" * 200 + "true" + ")" * 200,
        "+".join(["1"] * 5000),
        "x" + ".a" * 5000,
        "x" + "[0]" * 5000,
        "1 ? " * 3000 + "1" + " : 1" * 3000,
        "f(" * 5000 + ")" * 5000,
        "x.all(a, " * 2000 + "true" + ")" * 2000,
        "1 || " * 90 + "(" * 99 + "1" + ")" * 99,
        "'" + "a" * 70_000 + "'",
    ],
)
def test_too_deep_nesting_is_rejected(text: str) -> None:
    with pytest.raises((ExpressionInvalid, InputError)):
        evaluate(text)


def test_the_deepest_expression_runs() -> None:
    chain = "+".join(["1"] * 190)
    assert evaluate(chain) == 190
    assert evaluate("(" * 90 + "1" + ")" * 90) == 1
    nested = "true"
    for _ in range(40):
        nested = f"[1].all(i, {nested})"
    assert evaluate(nested) is True
    assert sys.getrecursionlimit() == 1000


def test_many_terms_do_not_count_as_nesting() -> None:
    assert evaluate(" || ".join(["false"] * 2000 + ["true"])) is True
    assert compiled(" && ".join(["true"] * 2000))[1] == "bool"


@pytest.mark.parametrize(
    ("start", "each"),
    [
        ("{1: 1}", "cel.bind(v{0}, {{v{1}: v{1}}}, "),
        ("[]", "cel.bind(v{0}, {{v{1}: v{1}}}, "),
        ("[1]", "cel.bind(v{0}, [v{1}].transformMap(k, v, {{v: v}}), "),
    ],
)
def test_types_of_exponential_size_are_bounded(start: str, each: str) -> None:
    """The type has 2**n parts: without a limit, n = 16 took half a minute."""
    levels = 60
    binds = "".join(each.format(level, level - 1) for level in range(1, levels))
    text = f"cel.bind(v0, {start}, {binds}v{levels - 1} == v0{')' * levels}"
    with pytest.raises(ExpressionInvalid) as caught:
        compiled(text)
    assert caught.value.code in {"cel.type_size", "cel.type_steps"}


def test_expensive_type_comparisons_are_bounded() -> None:
    """Each part of the list's type is compared with each element's type."""
    deep = "[" * 90 + "1" + "]" * 90
    with pytest.raises(ExpressionInvalid) as caught:
        compiled(f"[{', '.join([deep] * 300)}]")
    assert caught.value.code == "cel.type_steps"


@pytest.mark.parametrize("text", ["[" + "nope," * 10_000 + "]", "#" * 60_000])
def test_text_of_many_errors_is_bounded(text: str) -> None:
    """Otherwise, each error would show its source line of 60 kB, 1 GB in total."""
    with pytest.raises(ExpressionInvalid) as caught:
        compiled(text)
    assert caught.value.message.count("ERROR") == 100
    assert len(caught.value.message) < 20_000


def test_number_of_errors_equals_cel_go() -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compiled("[" + ", ".join(["nope"] * 103) + "]")
    assert caught.value.message.endswith("\n3 more errors were truncated")


@pytest.mark.parametrize("call", ["matches(x + '|a')", "find(x + '|b') == 'ab'"])
def test_regex_cost_does_not_depend_on_earlier_callers(call: str) -> None:
    """A dynamic regex is known at run time, and compiled once in an evaluation."""
    spent = []
    for _ in range(2):
        meter = Meter()
        evaluate(f"[1, 2, 3].all(i, 'ab'.{call})", None, "a[bc]+", meter)
        spent.append(Meter().left - meter.left)
    assert spent[0] == spent[1]


@pytest.mark.parametrize(
    "pattern", ["\\pL" * 32, "\\pL{100}" * 12, "(a{100}){10}" * 20]
)
def test_regex_cost_follows_its_compiled_size(pattern: str) -> None:
    """Charges depend on the compiled size; these regexes take some 20 ms.

    A unit is 50 ns.
    """
    meter = Meter()
    with suppress(InputError):
        evaluate("'a'.matches(x)", None, pattern, meter)
    assert Meter().left - meter.left > 150_000


@pytest.mark.parametrize("pattern", ["\\pL" * 32, "\\pL{100}" * 12])
def test_constant_regex_is_charged_to_the_policy(pattern: str) -> None:
    """A compile step takes four microseconds; these regexes take some 20 ms."""
    with bounded(CompileBudget()) as budget, suppress(ExpressionInvalid):
        compiled(f"'a'.matches(r'{pattern}')")
    assert budget.steps > 5_000


_CALLS = (
    "{}.optMap(v, v)",
    "{}.optFlatMap(v, optional.of(v))",
    "{}.all(v, true)",
    "{}.exists(v, true)",
    "{}.exists_one(v, true)",
    "{}.filter(v, true)",
    "{}.map(v, v)",
    "{}.map(v, true, v)",
    "{}.all(i, v, true)",
    "{}.exists(i, v, true)",
    "{}.existsOne(i, v, true)",
    "{}.transformList(i, v, v)",
    "{}.transformMap(i, v, v)",
    "{}.transformMapEntry(i, v, {{i: v}})",
    "{}.sortBy(v, v)",
    "cel.bind(v, {}, v)",
    "[1].map(v, {})",
    "optional.of(1).optMap(v, {})",
    "[{}]",
)
"""Each macro uses the previous expression as its target, its range or its body."""
_PAIRS = list(combinations_with_replacement(_CALLS, 2))


def _used(calls: tuple[str, ...], seed: str, length: int) -> tuple[int, int]:
    """Return the cost of parsing and checking a chain of macros.

    The cost is the number of executed lines of code, and the peak memory in bytes.
    """
    text = seed
    for at in range(length):
        text = calls[at % len(calls)].format(text)
    steps = 0

    def traced(_frame: object, _event: str, _arg: object) -> Any:
        nonlocal steps
        steps += 1
        return traced

    before = sys.gettrace()
    tracemalloc.start()
    sys.settrace(traced)
    try:
        # A type mismatch or an error for deep nesting is also a valid outcome.
        with suppress(InputError, BudgetExceeded), bounded(CompileBudget()):
            compiled(text)
    finally:
        sys.settrace(before)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return steps, peak


@pytest.mark.parametrize("calls", _PAIRS, ids=str)
@pytest.mark.parametrize("seed", ["nope", "optional.of([1, '2'])"])
def test_macro_chains_do_not_double(seed: str, calls: tuple[str, ...]) -> None:
    """Otherwise, some hundred characters could use up a worker's memory and time."""
    few, many = _used(calls, seed, 6), _used(calls, seed, 20)
    assert many[0] < 12 * few[0] + 40_000
    assert many[1] < 4 * 1024 * 1024


@pytest.mark.parametrize("seed", ["nope", "[1, '2']", "optional.of([1, '2'])"])
def test_long_chain_repeats_few_errors(seed: str) -> None:
    """For each call of the chain, cel-go lists the errors of its target twice."""
    text = seed + ".optMap(a, a)" * 60
    with pytest.raises(ExpressionInvalid) as caught, bounded(CompileBudget()) as spent:
        compiled(f"{text} == 1")
    assert len(caught.value.message) < 100 * 1_000
    assert spent.steps < 20 * CEL_REPEATED_MAX


@pytest.mark.parametrize(("calls", "errors"), [(1, 2), (3, 8), (5, 32)])
def test_short_chain_repeats_all_errors(calls: int, errors: int) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compiled("nope" + ".optMap(a, a)" * calls)
    assert caught.value.message.count("undeclared reference to 'nope'") == errors


@pytest.mark.parametrize(
    "part", ["[1:" + "1:" * 2_000 + "]", "[::1]:" + "x" * 3_999, "a:" + "é" * 3_999]
)
def test_error_for_a_long_host_is_short(part: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        evaluate("url(x)", None, f"http://{part}/")
    assert len(caught.value.message) < 3_000


def test_zone_can_be_long() -> None:
    zone = "e" * 5_000
    host = evaluate("url(x).getHostname()", None, f"http://[fe80::1%25{zone}]/")
    assert host == f"fe80::1%{zone}"
