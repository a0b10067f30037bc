"""Every operator, member and macro with a separate closure is charged.

The linkers' tables are walked: an entry without an expression here fails.
"""

from typing import Any

import pytest

from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.linking import macro as link_macro
from kyverno_mp.expr.cel.linking import operator as link_operator
from kyverno_mp.expr.cel.linking.program import Budget, link_expression
from tests.charges.cel import gauge
from tests.unit.expr_cel.evaluate import NAMES, compiled

_N = 20_000
_TEXT = "a" * 500_000
_OBJECT: dict[str, Any] = {
    "texts": ["a" * 2000 + str(i) for i in range(500)],
    "others": ["a" * 2000 + str(i) for i in range(500)],
    "numbers": list(range(_N)),
    "more": list(range(_N)),
    "long": _TEXT,
    "twin": "b" + _TEXT[1:],
    "same": "".join(["a"] * 500_000),
    "map": {str(i): i for i in range(_N)},
    "maps": [{"name": str(i)} for i in range(_N)],
    "nested": [[i] for i in range(_N)],
    "deep": [[[[i]]] for i in range(2000)],
}
_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "&&": ("object.numbers.all(i, i >= 0 && true && i < 9999999)",),
    "||": ("object.numbers.exists(i, i < 0 || false || 1 / 0 > i)",),
    "!_": ("object.numbers.all(i, !(i < 0))",),
    "?:": ("object.numbers.all(i, i > 5 ? true : true)",),
    "==": (
        "object.numbers == object.more",
        "object.nested == object.nested",
        "object.numbers.all(i, object.long == object.same)",
        "object.numbers.exists(i, object.deep == object.nested)",
        "object.texts == object.others",
        "object.maps == object.maps",
    ),
    "!=": ("object.numbers.all(i, object.map != object.numbers)",),
    "in": (
        "object.numbers.all(i, i in object.more)",
        "object.texts.all(t, t in object.others)",
        "object.numbers.exists(i, '1' in object.map && 1 in object.map)",
        "object.numbers.all(i, object.long in [object.same])",
        "object.numbers.exists(i, i in {1: 2, 3: 4, 5: 6} && i < 0)",
    ),
    "<": ("object.numbers.all(i, object.long < object.twin)",),
    "<=": ("object.numbers.all(i, object.long <= object.same)",),
    ">": ("object.numbers.all(i, object.twin > object.long)",),
    ">=": ("object.numbers.all(i, object.long >= object.same)",),
    "+": (
        "object.numbers.all(i, (object.long + object.twin).size() > 0)",
        "object.numbers.all(i, (object.numbers + object.more).size() > 0)",
        "object.numbers.all(i, i + 1 > i)",
        "object.texts.map(t, object.texts.map(u, t + u)).size() > 0",
    ),
    "_[_]": (
        "object.numbers.all(i, object.numbers[i] == i)",
        "object.numbers.exists(i, object.map['x'] == i)",
    ),
    "_[?_]": ("object.numbers.all(i, object.numbers[?i].hasValue())",),
    "size": ("object.numbers.all(i, size(object.long) > 0)",),
    "orValue": ("object.numbers.all(i, object.?a.?b.orValue(1) == 1)",),
    "or": ("object.numbers.all(i, object.?a.or(object.?numbers).hasValue())",),
    "hasValue": ("object.numbers.all(i, object.?numbers.hasValue())",),
    "startsWith": ("object.numbers.all(i, object.long.startsWith('aaaa'))",),
    "endsWith": ("object.numbers.all(i, object.long.endsWith('aaaa'))",),
    "matches": (
        "object.numbers.all(i, object.long.matches('(a?){30}a{30}b'))",
        "object.numbers.all(i, 'abc'.matches('^[a-z]+$'))",
        "object.texts.all(t, t.matches('(x+x+)+y|a{1000}a{1000}$'))",
    ),
    "all": ("object.numbers.all(i, object.numbers.all(j, true))",),
    "exists": ("object.numbers.exists(i, 1 / 0 == i)",),
    "existsOne": ("object.numbers.exists_one(i, i == 1)",),
    "filter": ("object.numbers.filter(i, i > 0).filter(i, i > 1).size() > 0",),
    "map": (
        "object.numbers.map(i, [[i], [i]]).size() > 0",
        "object.numbers.map(i, i + 1000000).size() > 0",
        "object.maps.map(m, object.maps.map(n, {m.name: n})).size() > 0",
    ),
    "transformList": ("object.numbers.transformList(i, v, i + v).size() > 0",),
    "transformMap": ("object.numbers.transformMap(i, v, i + v).size() > 0",),
    "transformMapEntry": ("object.map.transformMapEntry(k, v, {v: k}).size() > 0",),
    "sortBy": ("object.texts.sortBy(t, t).size() > 0",),
    "bind": ("object.numbers.all(i, cel.bind(v, [i, i], v.size() == 2))",),
    "optMap": ("object.numbers.all(i, object.?a.optMap(v, v).orValue(1) == 1)",),
    "optFlatMap": ("object.numbers.all(i, !object.?a.optFlatMap(v, v).hasValue())",),
}


def test_every_operator_is_tested() -> None:
    tables = {
        *link_operator._OPERATORS,
        *(name for name, _ in link_operator._MEMBERS),
        *link_macro._KINDS,
        "bind",
        "optMap",
        "optFlatMap",
    }
    assert tables == set(_EXPRESSIONS)


def _work(text: str) -> gauge.Work:
    program = link_expression(compiled(text)[0], NAMES, library=kyverno_library())

    def work(budget: gauge.RuleBudget) -> Any:
        return Budget(10_000_000).run(program, [_OBJECT, None], budget)

    return work


@pytest.mark.parametrize("name", _EXPRESSIONS)
def test_expressions_are_charged(name: str) -> None:
    for text in _EXPRESSIONS[name]:
        work = _work(text)
        found = gauge.problem(work) or gauge.memory_problem(work)
        assert not found, f"{text}: {found}"
