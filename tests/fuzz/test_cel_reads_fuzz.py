"""A CEL expression has the same value on an object and on the part that it reads.

Room: tests. The law of expr/cel/reads.py. A failure means: a cached verdict may belong
to another object.
"""

from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.cel.reads import follow_cel
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.expr.cel.values import Optional
from kyverno_mp.expr.reads import Found, Reads, ReadsUnknown
from tests.fuzz.test_reads_fuzz import exactly, part_of
from tests.unit.expr_cel.evaluate import evaluate

NAME: Final = st.sampled_from(["a", "b", "c"])
LEAVES: Final = st.sampled_from(
    ["object", "object.a", "object.b", "1", "'a'", "[]", "['a', 'b']", "true", "{}"]
)
_ONE: Final = (
    *("{}.a", "{}.b", "{}.?a", "{}.?b.?c", "has({}.a)", "!({})", "size({})"),
    *("{}.size()", "{}[0]", "{}['a']", "{}[?'b']", "{}.orValue([])", "{}.hasValue()"),
    *("({}).?a.orValue('x')", "({}).?b.orValue([])", "type({})", "string({})"),
    *("{}.all(v, v == 'a')", "{}.all(v, has(v.a))", "{}.exists(v, v.a == 1)"),
    *("{}.filter(v, has(v.b)).size()", "{}.filter(v, v.a == 'a')", "{}.map(v, v.b)"),
    *("{}.map(v, has(v.a), v.a)", "{}.exists_one(v, v == 'b')", "{}.map(v, [v.a, v])"),
    *("{}.optMap(v, v.a)", "cel.bind(v, {}, v.a)", "{}.all(k, object[k] == 'a')"),
    *("dyn({}).a", "[{}][0].b", "{}.map(v, v).filter(v, v != 1)"),
)
_TWO: Final = (
    *(
        "{} == {}",
        "{} != {}",
        "{} + {}",
        "({} + {})[0].a",
        "({} + {}).all(v, has(v.a))",
    ),
    *("{} in {}", "{} && {}", "{} || {}", "[{}, {}]", "[{}, {}].map(v, v.a)"),
    *("{}.orValue({})", "{}[{}]", "{{'k': {}, 'a': {}}}.a", "{}.or({})"),
    *("{}.all(v, v in {})", "{}.map(v, {})", "{}.filter(v, {} == v)"),
)
_THREE: Final = ("({} ? {} : {})", "({} ? {} : {}).a", "({} ? {} : {}).size()")


def longer(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions that contain smaller ones."""
    return st.one_of(
        st.builds(str.format, st.sampled_from(_ONE), below),
        st.builds(str.format, st.sampled_from(_TWO), below, below),
        st.builds(str.format, st.sampled_from(_THREE), below, below, below),
    )


EXPRESSIONS: Final = st.recursive(LEAVES, longer, max_leaves=6)
SCALARS: Final = st.sampled_from(["a", "b", "", 0, 1, 1.0, True, False, None])
TREES: Final = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(NAME, below, max_size=3)
    ),
    max_leaves=14,
)
OBJECTS: Final = st.dictionaries(NAME, TREES, max_size=3)


def plain(value: Any) -> Any:
    """Return a value with optionals as lists, which are comparable."""
    if isinstance(value, Optional):
        return ["optional", plain(value.value)] if value.present else ["none"]
    if isinstance(value, dict):
        return {plain(key): plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return value


def outcome(text: str, value: Any) -> tuple[str, Any]:
    try:
        return "", plain(evaluate(text, value))
    except ExpressionFailed as error:
        return error.message, None


def reads_of(text: str) -> Reads | None:
    reads = Reads()
    names = {"object": Found((reads,))}

    def none(name: str) -> Found:
        raise ReadsUnknown(name)

    try:
        follow_cel(parse(text), names, none).read_whole()
    except ReadsUnknown:
        return None
    return reads


@settings(max_examples=1500)
@given(EXPRESSIONS, OBJECTS)
@example("(object.a + object.b)[0].a", {"a": [{"a": 1, "b": 2}], "b": [{"a": 3}]})
@example("object.a.filter(v, v.a == 'a').map(v, v.b)", {"a": [{"a": "a", "b": 1}]})
@example("object.a.map(v, has(v.a), v.b)", {"a": [{"a": 1, "b": 2}, {"b": 3}]})
@example("object.all(k, object[k] == 'a')", {"a": "a", "b": "b"})
@example("(object.a ? object.b : object.c).size()", {"a": True, "b": [1], "c": {}})
@example("[object.a, object.b].map(v, v.a)", {"a": {"a": 1, "b": 2}, "b": {"a": {}}})
@example("object.?b.?c.orValue(object.a).a", {"b": {"c": {"a": 1}}, "a": {"a": 2}})
@example("object.?b.optMap(v, v.a)", {"b": {"a": [1], "b": 2}})
def test_expressions_read_only_declared_paths(text: str, value: Any) -> None:
    try:
        reads = reads_of(text)
        if reads is None:
            return
        one, other = outcome(text, value), outcome(text, part_of(reads, value))
    except ExpressionInvalid:
        return
    assert one[0] == other[0]
    assert one == other or exactly(one[1], other[1])


def test_other_dependencies_are_unknown() -> None:
    """Such a verdict does not hold for every equal object."""
    for text in (
        "request.userInfo.username == 'x'",
        "request.name == 'x'",
        "namespaceObject.metadata.name == 'x'",
        "authorizer.group('').resource('pods').check('get').allowed()",
        "variables.unknown == 1",
        "random() == 'x'",
        "time.now() == time.now()",
        "resource.Get('v1', 'pods', 'a', 'b').x == 1",
        "object.a.sortBy(v, v.b).size() == 1",
        "object.a.all(i, v, v == i)",
    ):
        assert reads_of(text) is None, text


def test_common_expressions_are_analyzed() -> None:
    for text in (
        "object.spec.containers.all(c, !c.?securityContext.?privileged.orValue(false))",
        "has(object.metadata.labels) && 'team' in object.metadata.labels",
        "(object.spec.containers + object.spec.?initContainers.orValue([])).size() < 3",
        "object.metadata.name.matches('^[a-z]+$') && request.operation == 'CREATE'",
        "oldObject == null || sets.contains(object.a, oldObject.a)",
    ):
        assert reads_of(text) is not None, text
