"""Every operator of the policy language charges for its input and output.

Node kinds of expressions, operators of conditions and criteria of match blocks are
listed by their own tables, so a new one fails until it is tried here. See charges.py.
"""

from collections.abc import Callable
from typing import Any, Final, get_args

import pytest

from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.conditions.operators import OPERATORS
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.pattern.link import link_pattern
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.match import FilterIR, KindIR, SelectorIR, SelectorTermIR, SubjectIR
from kyverno_mp.program.matching.filter import link_filter
from kyverno_mp.program.request import Request
from tests.charges.charges import cost_of

pytestmark = pytest.mark.slow

COUNT: Final = 30_000
LETTERS: Final = "a" * 1_000_000
TEXTS: Final = [f"text {number}" for number in range(COUNT)]
STARS: Final = [f"text*{number}*?" for number in range(COUNT)]
MAPS: Final[list[Any]] = [{} for _ in range(COUNT)]
NUMBERS: Final = [float(number) for number in range(COUNT)]
KEYS: Final = {f"key {number}": {"a": number} for number in range(COUNT)}
WIDE: Final = [[1.0] * 300] * 300
DEEP: Final[Any] = {"a": 1.0}
for _ in range(150):
    DEEP["a"] = {"a": DEEP["a"], "b": 1.0}


class Whole:
    """A scope in which everything is loaded."""

    operation = "CREATE"

    def __init__(self, root: dict[str, Any], runtime: Runtime) -> None:
        self.root = root
        self.runtime = runtime

    def ensure(self, query: str) -> None:
        """Load nothing."""


def _repeated(work: Callable[[Runtime], object]) -> Callable[[Runtime], None]:
    """Repeat the work until its cost is measurable."""

    def until_measured(runtime: Runtime) -> None:
        before = runtime.steps_left
        for _ in range(300):
            work(runtime)
            if before - runtime.steps_left > 20_000:
                return

    return until_measured


def _faults(work: Callable[[Runtime], object]) -> list[str]:
    return cost_of(_repeated(work)).faults()


DATA: Final = {
    "texts": TEXTS,
    "maps": MAPS,
    "numbers": NUMBERS,
    "keys": KEYS,
    "wide": WIDE,
    "deep": DEEP,
    "same": list(TEXTS),
    "letters": LETTERS,
    "others": "a" * 999_999 + "b",
}
EXPRESSIONS: Final[dict[type, tuple[str, ...]]] = {
    nodes.Field: ("keys.*.a",),
    nodes.Literal: ("texts[*].[`[1,2,3]`]",),
    nodes.Identity: ("texts[*]",),
    nodes.Current: ("texts[?@]",),
    nodes.Index: ("wide[*][0]",),
    nodes.Slice: ("texts[::2]", "wide[*][::-1]"),
    nodes.Subexpression: ("keys.*.a.b.c.d",),
    nodes.IndexExpression: ("wide[*][1:2]",),
    nodes.Flatten: ("wide[]", "wide[][][]"),
    nodes.Projection: ("texts[*]", "wide[*][*]"),
    nodes.FilterProjection: (
        "texts[?@ == 'a']",
        "maps[?a || b || c || d || e || f || g || h || i || j || k || l || m]",
        "maps[?contains(keys(@), 'a')]",
    ),
    nodes.ValueProjection: ("keys.*", "maps[*].*"),
    nodes.Comparator: (
        "texts == same",
        "letters == others",
        "deep == deep",
        "`1` < `2`",
    ),
    nodes.Or: ("maps[*].[a || b || c]",),
    nodes.And: ("maps[*].[a && b && c]",),
    nodes.Not: ("maps[?!a]",),
    nodes.Pipe: ("texts | @ | [*]",),
    nodes.ExpressionReference: ("map(&[@, @, @], texts)", "sort_by(numbers, &@)"),
    nodes.Function: ("length(texts)",),
    nodes.MultiSelectList: (
        "maps[*].[" + ",".join(["a"] * 500) + "]",
        "[texts, texts[*].[@, @]]",
    ),
    nodes.MultiSelectHash: (
        "maps[*].{" + ",".join(f"a{n}: b" for n in range(500)) + "}",
    ),
}
COMMUNITY: Final[dict[type, tuple[str, ...]]] = {
    nodes.Root: ("$",),
    nodes.Arithmetic: ("numbers[*].[@ + @ * @]",),
    nodes.Unary: ("numbers[*].[-@]",),
    nodes.Variable: ("let $a = texts in $a[*]",),
    nodes.Let: ("numbers[*].[let $a = @ in $a]",),
}
_UNREACHED: Final = {nodes.Empty}
"""A node that no parser creates."""


def test_every_node_type_is_tested() -> None:
    kinds = set(get_args(nodes.Node))
    assert kinds - _UNREACHED == {*EXPRESSIONS, *COMMUNITY}


@pytest.mark.parametrize("text", [t for texts in EXPRESSIONS.values() for t in texts])
def test_nodes_charge_for_their_work(text: str) -> None:
    query = link(parse(text))
    assert _faults(lambda runtime: query(runtime, DATA)) == []


@pytest.mark.parametrize(
    "text",
    [t for table in (EXPRESSIONS, COMMUNITY) for ts in table.values() for t in ts],
)
def test_assertion_nodes_charge_for_their_work(text: str) -> None:
    query = link_dialect(parse(text, community=True))
    assert _faults(lambda runtime: query(runtime, DATA)) == []


SIDES: Final[list[tuple[str, Any, Any]]] = [
    ("long texts", LETTERS, LETTERS),
    ("a wildcard", LETTERS, "*a" * 50_000 + "b"),
    ("questions", "a" * 50_000, "*" + "a?" * 5000 + "b"),
    ("lists", TEXTS, TEXTS[:20]),
    ("wildcards", TEXTS[:300], STARS[:300]),
    ("both wildcards", STARS[:300], STARS[300:600]),
    ("a key and wildcards", LETTERS[:10_000], STARS),
    ("maps", KEYS, dict(KEYS)),
    ("deep maps", DEEP, {**DEEP}),
    ("numbers", NUMBERS, NUMBERS),
    ("a list in JSON", TEXTS, "[" + ",".join(['"a"'] * 1000) + "]"),
    ("long JSON", "a", "[" + "{}," * 100_000 + "{}]"),
    ("durations", "1h" * 300, "1m" * 300),
    ("quantities", "1" * 400 + "m", "1" * 400),
    ("versions", "1.0.0-" + "1." * 2000 + "1", "1.0.0-" + "1." * 2000 + "2"),
    ("digits", "1" * 1_000_000, "2" * 1_000_000),
    ("a range", "1" * 400, "1-" + "9" * 400),
    ("maps in a list", [KEYS], [KEYS]),
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_conditions_charge_for_compared_values(operator: str) -> None:
    found = []
    for title, key, value in SIDES:
        root = {"k": key, "v": value}
        for place, side in (("", "{{ v }}"), ("fixed ", value)):
            fixed = {"key": "{{ k }}", "operator": operator, "value": side}
            found += [
                f"{place}{title}: {fault}" for fault in _condition_faults(fixed, root)
            ]
    assert found == []


def _condition_faults(condition: dict[str, Any], root: dict[str, Any]) -> list[str]:
    holds = link_conditions(parse_conditions({"all": [condition]})).holds
    return _faults(lambda runtime: holds(Whole(root, runtime)))


CROWD: Final = [{"image": f"r.io/a{n}:1", "a": {"b": [n]}} for n in range(COUNT)]
PATTERNS: Final[list[tuple[str, Any, Any]]] = [
    ("a list of maps", {"x": [{"image": "*:1"}]}, {"x": CROWD}),
    ("anchors", {"x": [{"=(a)": {"=(b)": ["<5|>3"]}}]}, {"x": CROWD}),
    ("conditions", {"x": [{"(image)": "a*", "a": "b"}]}, {"x": CROWD}),
    ("existence", {"^(x)": [{"image": "none"}]}, {"x": CROWD}),
    ("a global anchor", {"x": [{"<(image)": "none"}]}, {"x": CROWD}),
    ("a negation", {"x": [{"X(other)": "null"}]}, {"x": CROWD}),
    ("empty maps", {"x": [{f"=(k{n})": "a" for n in range(100)}]}, {"x": MAPS}),
    ("texts", {"x": ["a*|b*&c*|1-5|>1Gi"]}, {"x": TEXTS}),
    ("numbers", {"x": [">100m & <1h | 5"]}, {"x": NUMBERS}),
    ("a long text", {"x": "*" + "b*" * 1000 + "|?a*"}, {"x": LETTERS}),
    (
        "many alternatives",
        {"x": "|".join(f"a*{n}" for n in range(5000))},
        {"x": LETTERS},
    ),
    (
        "labels",
        {"metadata": {"labels": {f"k*{n}?": "b" for n in range(50)}}},
        {"metadata": {"labels": {f"key{n}": "a" for n in range(COUNT)}}},
    ),
    (
        "values of labels",
        {"metadata": {"labels": {"k*": "?*?*?*|" * 50 + "c"}}},
        {"metadata": {"labels": {f"key{n}": "a" * 1000 for n in range(5000)}}},
    ),
    ("what is printed", {"x": "b"}, {"x": KEYS}),
    ("lists", {"x": [[{"a": 1}]]}, {"x": [MAPS]}),
]


@pytest.mark.parametrize("title", [title for title, *_ in PATTERNS])
def test_patterns_charge_for_visited_values(title: str) -> None:
    pattern, resource = next((p, r) for name, p, r in PATTERNS if name == title)
    program = link_pattern(parse_pattern(pattern))
    passes = program.passes(resource)
    assert program.passes_within(resource, Whole({}, _plenty()).runtime) is passes
    assert _faults(lambda runtime: program.passes_within(resource, runtime)) == []
    assert _faults(lambda runtime: program.evaluate(resource, runtime)) == []


def _plenty() -> Runtime:
    from tests.charges.charges import runtime

    found: Runtime = runtime(steps=1 << 40, bytes_max=1 << 40)
    return found


DOCUMENTS: Final[list[tuple[str, Any]]] = [
    ("a whole list", "{{ maps }}"),
    ("a whole map", {"a": "{{ keys }}"}),
    ("a long text in a text", "a {{ letters }} b {{ letters }}"),
    ("a list in a text", "a {{ keys }}"),
    ("one in another", "{{ {{ name }} }}"),
    ("texts that hold variables", "{{ templates }}"),
    ("a text with many variables", "{{ many }} x"),
    ("many", ["{{ name }}"] * 2000),
]


@pytest.mark.parametrize("title", [title for title, _ in DOCUMENTS])
def test_templates_charge_for_substituted_values(title: str) -> None:
    resolve = link_document(parse_document(dict(DOCUMENTS)[title]))
    root = {
        **DATA,
        "name": "name",
        "templates": ["{{ name }}"] * COUNT,
        "many": "{{ name }} " * 2000,
    }
    assert _faults(lambda runtime: resolve(Whole(root, runtime))) == []


ASSERTIONS: Final[list[tuple[str, Any]]] = [
    ("each", {"~.(texts)": "a"}),
    ("each of a map", {"~.keys": {"a": 1}}),
    ("a computed key", {"(length(texts))": 5}),
    ("a long list", {"texts": TEXTS}),
    ("a long text", {"letters": DATA["others"]}),
    ("many", {"~.maps": {f"(a{n} || b)": None for n in range(50)}}),
]


@pytest.mark.parametrize("title", [title for title, _ in ASSERTIONS])
def test_assertions_charge_for_checked_values(title: str) -> None:
    program = link_assertion(parse_assertion(dict(ASSERTIONS)[title]))
    assert _faults(lambda runtime: program.evaluate(DATA, Whole({}, runtime))) == []


_WILD: Final = tuple((f"*k{n}*", f"*v{n}?") for n in range(50))
_SELECTOR: Final = SelectorIR(
    labels=_WILD, terms=tuple(SelectorTermIR(f"k{n}", "Exists") for n in range(200))
)
_NAMES: Final = tuple(f"*a{n}*?b" for n in range(200))
CRITERIA: Final[dict[str, Any]] = {
    "kinds": tuple(KindIR("*", "*", f"K*{n}?", "*") for n in range(50)),
    "name": "*a" * 1000 + "b",
    "names": _NAMES,
    "namespaces": _NAMES,
    "annotations": _WILD,
    "selector": _SELECTOR,
    "namespace_selector": _SELECTOR,
    "operations": ("CREATE",),
    "subjects": tuple(SubjectIR("User", name) for name in _NAMES),
    "roles": tuple(f"r{n}" for n in range(1000)),
    "cluster_roles": tuple(f"r{n}" for n in range(1000)),
}


def test_every_match_criterion_is_tested() -> None:
    assert set(CRITERIA) == set(FilterIR.__struct_fields__)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_matching_charges_for_read_values(criterion: str) -> None:
    record = FilterIR(**{criterion: CRITERIA[criterion]})
    test = link_filter(record, for_exception=False).test
    many = {f"key{n}": f"value{n}" for n in range(COUNT)}
    resource = {
        "kind": "Pod",
        "metadata": {"name": LETTERS, "labels": many, "annotations": many},
    }

    def match(runtime: Runtime) -> None:
        request = Request(
            kind="Pod",
            namespace="a" * 100_000,
            object=resource,
            namespace_labels=many,
            has_user_info=True,
            charge=runtime.charge,
        )
        test(request, resource)

    assert cost_of(match).faults() == []
