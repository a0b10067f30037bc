"""Test the substitution of variables: behaviour/engine 3.1-3.3."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.expr.template.nodes import Document, Mixed, Rescanned, Whole
from tests.unit.expr_template.scopes import PlainScope

ROOT: dict[str, Any] = {
    "a": "A",
    "n": 5,
    "big": 10**7,
    "half": 1.5,
    "yes": True,
    "nil": None,
    "l": [1, "x"],
    "m": {"k": "v", "h": "<b>"},
    "key": "k",
    "nested": "{{ a }}",
    "escaped": "\\{{ a }}",
    "deep": [{"in": "{{ a }}"}, "{{ n }}", "n={{ n }}"],
    "request": {"object": {"x": "new"}, "oldObject": {"x": "old"}},
}


def substitute(document: Any, operation: str = "CREATE", **root: Any) -> Any:
    scope = PlainScope({**ROOT, **root}, operation)
    return link_document(parse_document(document))(scope)


def failure(document: Any, **root: Any) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        substitute(document, **root)
    return caught.value.message


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ("{{ a }}", "A"),
        ("{{n}}", 5),
        ("{{ nil }}", None),
        ("{{ yes }}", True),
        ("{{ l }}", [1, "x"]),
        ("{{ m }}", {"k": "v", "h": "<b>"}),
        # With one space outside the braces, the result is a text.
        (" {{ n }}", " 5"),
        ("{{ l }} ", '[1,"x"] '),
        ("{{ nil }}!", "null!"),
        ("{{ half }},{{ big }},{{ yes }}", "1.5,10000000,true"),
        ("<{{ m }}>", '<{"h":"\\u003cb\\u003e","k":"v"}>'),
        # Nested variables, innermost first; the last round may be a whole string.
        ("{{ m.{{ key }} }}", "v"),
        ("{{ l[{{ yes && '1' }}] }}", "x"),
        ("{{ {k: a} }}", {"k": "A"}),
        ("{{ m.{q: k}}}", {"q": "v"}),
        # Braces may be nested, and close together.
        ("{{ {x: {y: a}} }}", {"x": {"y": "A"}}),
        ("{{ {x: {y: a}}}}", {"x": {"y": "A"}}),
        ("{{{x: {y: {z: n}}}}} {{ n }}", '{"x":{"y":{"z":5}}} 5'),
        ('{{ `{"x": {"y": {"z": "q"}}}` | x.y }}', {"z": "q"}),
        ("{{ {x: {y: {{ 'a' }} }} }}", {"x": {"y": "A"}}),
        ("{{ {x: {y: a} }", "{{ {x: {y: a} }"),
        # Variables in an inserted text are evaluated, those in a whole value are not.
        ("{{ nested }}", "{{ a }}"),
        ("x{{ nested }}", "xA"),
        ("x{{- nested }}", "x{{ a }}"),
        # The last variable decides whether there is another round.
        ("x{{- nested }}{{ n }}", "x{{ a }}{{ n }}"),
        ("x{{- nested }} {{ n }}", "x{{ a }} 5"),
        ("{{ escaped }}.", "{{ a }}."),
        # Inside a returned list or map everything is traversed again.
        ("{{ deep }}", [{"in": "A"}, 5, "n=5"]),
        # Adjacent variables are found one per round.
        ("{{ a }}{{ n }}", "A5"),
        ("{{ '' }}{{ n }}", 5),
        ("\\{{ a }}", "{{ a }}"),
        ("\\{{ a }} {{ a }}", "{{ a }} A"),
        ("{{ unclosed", "{{ unclosed"),
        ("$()", "$()"),
        ({"{{ a }}": 1, "b": "{{ n }}"}, {"A": 1, "b": 5}),
        ({"{{ nil }}": 1}, {"{{ nil }}": 1}),
        ([1, None, "{{ a }}", {"z": True}], [1, None, "A", {"z": True}]),
        (7, 7),
    ],
)
def test_values(document: Any, wanted: Any) -> None:
    """A document resolves to the same result as upstream."""
    got = substitute(document)
    assert msgspec.json.encode(got) == msgspec.json.encode(wanted)


def test_delete_reads_the_old_object() -> None:
    """``request.object`` in a variable's text means ``request.oldObject`` on DELETE."""
    assert substitute("{{ request.object.x }}", "DELETE") == "old"
    assert substitute("is {{ request.object.x }}", "DELETE") == "is old"
    assert substitute("is {{- request.object.x }}", "DELETE") == "is old"
    assert substitute("{{ request.object.x }}", "UPDATE") == "new"


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (
            "{{ zz }}",
            (
                "failed to resolve zz at path :"
                ' JMESPath query failed: Unknown key "zz" in path'
            ),
        ),
        (
            {"a/b": [1, "x {{ m.zz }}"]},
            (
                "failed to resolve m.zz at path /a\\/b/1:"
                ' JMESPath query failed: Unknown key "zz" in path'
            ),
        ),
        ("{{ }}", "failed to resolve  at path : invalid query (nil)"),
        (
            {"{{ n }}": 1},
            'expected string after substituting variables in key "{{ n }}"',
        ),
        (
            {"k": "{{ deep }}"},
            (
                "failed to resolve zz at path /k/0:"
                ' JMESPath query failed: Unknown key "zz" in path'
            ),
        ),
    ],
)
def test_error_texts(document: Any, wanted: str) -> None:
    """The error text is that of upstream, because denials contain it."""
    assert failure(document, deep=["{{ zz }}"]) == wanted


def test_bad_syntax_fails_when_used_not_when_parsed() -> None:
    """A policy with an invalid query is accepted; its rule fails with an error."""
    document = parse_document({"k": "{{ a b }}"})
    assert not document.is_constant
    text = failure({"k": "{{ a b }}"})
    assert text.startswith("failed to resolve a b at path /k: incorrect query a b: ")


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"x": "$(./../y)", "y": "1Mi"}, {"x": "1Mi", "y": "1Mi"}),
        ({"x": "$(/y/z)", "=(y)": {"(z)": "v"}}, {"x": "v", "=(y)": {"(z)": "v"}}),
        ({"x": "$(>=./../y)", "y": 5}, {"x": ">=5", "y": 5}),
        ({"x": "$(<./../y)", "y": 0.5}, {"x": "<0.500000", "y": 0.5}),
        ({"x": "a $(./../y)", "y": "{{ a }}"}, {"x": "a A", "y": "A"}),
        ({"x": "\\$(./../y)", "y": "1"}, {"x": "$(./../y)", "y": "1"}),
    ],
)
def test_references(document: Any, wanted: Any) -> None:
    """References are replaced before variables; leaves are compared without anchors."""
    assert substitute(document) == wanted


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (
            {"x": "$(./../z)"},
            "got nil resolved variable $(./../z) at path /x: <nil>",
        ),
        (
            {"x": "$(./../y)", "y": 5},
            "NotResolvedReferenceErr,reference $(./../y) not resolved at path /x",
        ),
        (
            {"x": "$(>./../y)", "y": True},
            (
                "failed to resolve $(>./../y) at path /x: incorrect expression:"
                " operator > does not match with value true"
            ),
        ),
        (
            {"x": "$(>)"},
            "failed to resolve $(>) at path /x: expected path, found empty reference",
        ),
    ],
)
def test_reference_errors(document: Any, wanted: str) -> None:
    """A broken reference fails when the document is used, with upstream's text."""
    assert failure(document) == wanted


def test_the_current_element() -> None:
    """``@`` is the path of the element without its first two components."""
    root: dict[str, Any] = {"request": {"object": {"app": "v", "l": ["x"]}}}
    document = {"metadata": {"labels": {"app": "{{ @ }}", "l": ["{{ @ }} y"]}}}
    wanted = {"metadata": {"labels": {"app": "v", "l": ["x y"]}}}
    scope = PlainScope(root)
    assert link_document(parse_document(document))(scope) == wanted
    target = {"target": {"app": "t", "l": ["u"]}}
    wanted = {"metadata": {"labels": {"app": "t", "l": ["u y"]}}}
    scope = PlainScope({**root, **target})
    assert link_document(parse_document(document))(scope) == wanted


def test_numbers_of_an_admission_request_are_floats() -> None:
    """Kyverno's context has float64 there, which affects comparisons."""
    scope = PlainScope(ROOT, ints_are_numbers=True)
    assert type(link_document(parse_document("{{ n }}"))(scope)) is float


def test_constants_are_stored_once_and_template_nodes_are_chosen() -> None:
    """The compiler decides how a string is substituted, independent of the request."""
    assert parse_document({"a": [1, "x"]}) == Document({"a": [1, "x"]})
    assert parse_document({"a": "\\{{ x }}"}).constant == {"a": "{{ x }}"}
    kinds = {
        "{{ a }}": Whole,
        "x {{ a }}": Mixed,
        "{{ a.{{ b }} }}": Rescanned,
        "{{ @ }}": Rescanned,
    }
    for text, kind in kinds.items():
        assert type(parse_document(text).template) is kind


def test_documents_survive_the_snapshot() -> None:
    """A worker decodes the records that the leader encodes, including nodes."""
    document = parse_document({"{{ a }}": ["{{ m.{{ key }} }}", "x {{ n }}", "$(/q)"]})
    for each in (
        document,
        parse_document(["{{ a | length(@) }}", {"k": "{{ l[0] }}"}]),
    ):
        encoded = msgspec.msgpack.encode(each)
        assert msgspec.msgpack.decode(encoded, type=Document) == each


def test_scope_is_notified_of_queries() -> None:
    """Deferred entries are selected by the text of the query."""
    scope = PlainScope(ROOT)
    link_document(parse_document(["{{ a }}", "x{{ m.{{ key }} }}"]))(scope)
    assert scope.asked == ["a", "key", "m.k"]


def test_self_referencing_variables_are_stopped() -> None:
    """A value that contains its own variable causes an error, not an endless loop."""
    with pytest.raises(BudgetExceeded):
        substitute("x{{ loop }}", loop="{{ loop }}")
    with pytest.raises(BudgetExceeded):
        substitute("{{ loop }}", loop=["{{ loop }}", "{{ loop }}"])
    deep: Any = "{{ a }}"
    for _ in range(400):
        deep = [deep]
    with pytest.raises(ExpressionInvalid):
        parse_document(deep)
    with pytest.raises(BudgetExceeded):
        substitute("{{ tower }}", tower=deep)
