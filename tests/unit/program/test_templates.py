"""Templates of GeneratingPolicies, and their annotations: documents to objects.

Expected: docs/behaviour/v1.19 5; Kyverno pkg/cel/policies/gpol at v1.19.0
(template/scanner.go, template/template.go, compiler/policy.go).
"""

from typing import Any

import pytest

from kyverno_mp.compiler.cel_kinds.policies import compile_generating_policy
from kyverno_mp.compiler.cel_kinds.review import refusals
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.effects import EFFECT_CLUSTER
from kyverno_mp.limits import TEMPLATE_DEPTH_MAX
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.validating_policy.reads import expressions_of
from tests.unit.program.test_cel_policies import Generated, document, generated

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: n}\n"
VARIABLES = {
    "port": "8080",
    "big": "9007199254740993",
    "ratio": "1.5",
    "million": "1000000.0",
    "on": "true",
    "labels": "{'team': 'dev'}",
    "names": "['a', 'b']",
    "nested": "{'a': dyn(duration('90s')), 'b': dyn(9007199254740993)}",
    "unsigned": "3u",
    "text": "'web'",
    "bytes": "b'ab'",
    "nothing": "null",
    "moment": "timestamp('2026-01-02T03:04:05Z')",
}


def template(text: str, interpolate: str = "cel", **more: Any) -> dict[str, Any]:
    """Return a spec with one template."""
    variables = [{"name": key, "expression": one} for key, one in VARIABLES.items()]
    entry = {"template": {"value": text, "interpolate": interpolate}}
    return {"variables": variables, "generate": [entry], **more}


def value_of(text: str, interpolate: str = "cel") -> Any:
    """Return what a value of the data becomes."""
    found, port = generated(template(f"{HEAD}data: {text}\n", interpolate))
    assert found is not None
    assert (found.status, found.message) == ("pass", "policy evaluated successfully")
    ((_, (made,)),) = port.calls
    return made["data"]


MERGED = [{"k": "1", "j": "3"}, {"k": "2", "j": "3"}]
SEVERAL_MERGED = [
    {"k": "2", "j": "3"},
    {"j": "4", "i": "5"},
    {"k": "2", "j": "3", "i": "5"},
]
VALUES: list[tuple[str, Any]] = [
    ("{a: (( variables.port ))}", {"a": 8080}),
    ("(( variables.big ))", 9007199254740993),
    ("(( variables.unsigned ))", 3),
    ("(( variables.ratio ))", 1.5),
    ("'(( variables.on ))'", True),
    ("(( variables.labels ))", {"team": "dev"}),
    ("[x, (( variables.names ))]", ["x", ["a", "b"]]),
    ("(( variables.nested ))", {"a": "90s", "b": "9007199254740993"}),
    ("(( variables.nothing ))", None),
    ("(( variables.bytes ))", "YWI="),
    ("(( variables.moment ))", "2026-01-02T03:04:05Z"),
    ("(( string(variables.port) ))", "8080"),
    ("a-(( variables.text ))-(( variables.port ))", "a-web-8080"),
    ("(( variables.million ))/(( variables.on ))", "1e+06/true"),
    (r"\(( literal ))", "(( literal ))"),
    (r"\((-(( variables.text ))", "((-web"),
    (r"""'(( ":)".size() ))'""", 2),
    ("(( (variables.port) + (1) ))", 8081),
    (r"""'(( "\")) " + variables.text ))'""", '")) web'),
    ("{x: &a [(( variables.text ))], y: *a}", {"x": ["web"], "y": ["web"]}),
    ("[yes, on, 0x10, 1.0, true, ~]", ["yes", "on", 16, 1, True, None]),
    ("[&a {k: '1', j: '3'}, {<<: *a, k: '2'}]", MERGED),
    ("[&a {k: '1', j: '3'}, {k: '2', <<: *a}]", MERGED),
    ("[&a {k: '2', j: '3'}, &b {j: '4', i: '5'}, {<<: [*a, *b]}]", SEVERAL_MERGED),
]


@pytest.mark.parametrize(("text", "wanted"), VALUES)
def test_placeholder_values(text: str, wanted: Any) -> None:
    """A wrong type would be an object that the API server rejects."""
    found = value_of(text)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize("text", ["{<<: *a, k: '2'}", "{k: '2', <<: *a}"])
def test_merge_keys_without_interpolation(text: str) -> None:
    assert value_of(f"[&a {{k: '1', j: '3'}}, {text}]", "none") == MERGED


@pytest.mark.parametrize("interpolate", ["cel", "none"])
def test_the_deepest_template_generates(interpolate: str) -> None:
    """Its recursive functions must fit in the stack of every thread."""
    wanted: Any = "x"
    for _ in range(TEMPLATE_DEPTH_MAX - 2):
        wanted = [wanted]
    assert value_of(nested(TEMPLATE_DEPTH_MAX - 2), interpolate) == wanted


def test_placeholder_without_interpolation_is_text() -> None:
    assert value_of("(( variables.port ))", "none") == "(( variables.port ))"
    assert value_of("{(( x )): 1}", "none") == {"(( x ))": 1}


DOCUMENTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: (( variables.text ))}
---
apiVersion: v1
kind: Namespace
metadata: {name: second}
---
# nothing
---
apiVersion: v1
kind: ConfigMap
metadata: {name: third, namespace: web}
"""


def places(port: Generated) -> list[tuple[str, list[str]]]:
    return [
        (namespace, [one["metadata"]["name"] for one in objects])
        for namespace, objects in port.calls
    ]


def test_each_object_gets_its_namespace() -> None:
    """One without a namespace belongs to the cluster."""
    found, port = generated(template(DOCUMENTS))
    assert found is not None
    assert found.status == "pass"
    assert places(port) == [("web", ["first", "third"]), ("", ["second"])]


def test_document_that_is_one_placeholder() -> None:
    text = "\"(( {'kind': dyn('X'), 'metadata': dyn({'name': 'n'})} ))\""
    found, port = generated(template(text))
    assert found is not None
    assert port.calls == [("", [{"kind": "X", "metadata": {"name": "n"}}])]
    found, port = generated(template("(( variables.names ))"))
    assert found is not None
    assert found.message == (
        "failed to evaluate policy: failed to render generation template: document 1:"
        " expected a mapping describing a resource, got []interface {}"
    )


def test_a_namespaced_policy_stays_in_its_namespace() -> None:
    """A tenant would create objects for others."""
    found, port = generated(template(HEAD), namespace="shop")
    assert found is not None
    assert places(port) == [("shop", ["n"])]
    away = HEAD.replace("name: n", "name: n, namespace: (( variables.text ))")
    found, port = generated(template(away), namespace="shop")
    assert found is not None
    assert (found.status, port.calls) == ("error", [])
    assert found.message == (
        "failed to evaluate policy: cross-namespace generation denied: a policy in"
        ' namespace "shop" cannot generate resources into namespace "web"'
    )


def test_objects_are_not_shared() -> None:
    """What changes one object would change those of later triggers."""
    calls = []
    for _ in range(2):
        _, port = generated(template(HEAD + "data: {a: {b: 1}}"))
        ((_, (made,)),) = port.calls
        calls.append(made)
    ir = compile_generating_policy(document("GeneratingPolicy", template(HEAD)))
    assert calls[0] == calls[1]
    assert calls[0]["data"] is not calls[1]["data"]
    assert ir.effects == EFFECT_CLUSTER


FAILURES: list[tuple[str, str]] = [
    (
        "{a: [1, x-(( variables.labels ))]}",
        (
            'field "data": field "a": item 1: placeholder "variables.labels" embedded'
            " in a string must evaluate to a scalar, got map[string]interface {}; use a"
            " whole-value placeholder for structured results"
        ),
    ),
    (
        "x-(( variables.nothing ))",
        (
            'field "data": placeholder "variables.nothing" embedded in a string must'
            " evaluate to a scalar, got <nil>; use a whole-value placeholder for"
            " structured results"
        ),
    ),
    (
        "(( object.x ))",
        ('field "data": failed to evaluate placeholder "object.x": no such key: x'),
    ),
    (
        "(( 18446744073709551615u ))",
        (
            'field "data": failed to convert placeholder "18446744073709551615u"'
            " result: uint value 18446744073709551615 overflows the supported integer"
            " range"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), FAILURES)
def test_failing_placeholders(text: str, message: str) -> None:
    """Nothing is generated, and the author sees where it failed."""
    found, port = generated(template(f"{HEAD}data: {text}\n"))
    assert found is not None
    assert (found.status, port.calls) == ("error", [])
    head = "failed to evaluate policy: failed to render generation template"
    assert found.message == f"{head}: document 1: {message}"


def test_failing_port() -> None:
    class Refusing(Generated):
        def generate(self, *_given: Any) -> None:
            raise ExpressionFailed("generate.kind", "unknown kind")

    found, _ = generated(template(HEAD), port=Refusing())
    assert found is not None
    assert found.message == (
        "failed to evaluate policy: failed to generate resources: unknown kind"
    )


TOO_DEEP = f"line 1: nested deeper than {TEMPLATE_DEPTH_MAX} levels"


def nested(depth: int, text: str = "x") -> str:
    """Return a text in this many lists."""
    return "[" * depth + text + "]" * depth


def chained(depth: int) -> str:
    """Return lists that contain each other by aliases, so that none looks deep."""
    links = [f"&a{one} [*a{one - 1}]" for one in range(1, depth)]
    return f"[&a0 [x], {', '.join(links)}]"


INVALID: list[tuple[str, str]] = [
    ("kind: [unclosed", "failed to parse YAML: yaml: line "),
    ("# nothing", "template must contain at least one YAML document"),
    ("- a", "line 1: document must be a mapping describing a resource"),
    ("a-(( 'b' ))", "line 1: document must be a mapping describing a resource"),
    (
        "kind: X\nname: (( variables. ))",
        'line 2: invalid placeholder expression "variables.": ERROR: <input>:1:11:',
    ),
    (
        "kind: X\nname: (( nowhere ))",
        'line 2: invalid placeholder expression "nowhere": ERROR: <input>:1:1:',
    ),
    (
        'kind: "(( object.a"',
        "line 1: unterminated placeholder starting at offset 0: missing closing '))'",
    ),
    (
        'kind: "ä(( a ) b ))x"',
        "line 1: unbalanced parenthesis in placeholder starting at offset 2",
    ),
    ("kind: (( ))", "line 1: empty placeholder at offset 0"),
    (
        """kind: '(( "abc ))'""",
        ("line 1: unterminated string literal in placeholder starting at offset 0"),
    ),
    (
        "kind: X\nlabels:\n  (( variables.text )): on",
        (
            "line 3: placeholders are not supported in mapping keys; use a whole-value"
            " placeholder on the parent field instead (e.g. `labels: (("
            " variables.labels ))`)"
        ),
    ),
    ("kind: X\nkind: Y", 'line 1: mapping key "kind" already defined'),
    (
        "kind: X\na: &a {k: 1}\nb: {<<: *a, k: 2, k: 3}",
        'line 1: mapping key "k" already defined',
    ),
    (
        "kind: X\na: &a {k: 1}\nb: {<<: *a, <<: *a}",
        'line 1: mapping key "<<" already defined',
    ),
    (f"kind: X\na: {nested(TEMPLATE_DEPTH_MAX - 1)}", TOO_DEEP),
    (f"kind: X\na: {nested(TEMPLATE_DEPTH_MAX - 1, '((1))')}", TOO_DEEP),
    (f"kind: X\na: {nested(511)}", TOO_DEEP),
    (f"kind: X\na: {chained(TEMPLATE_DEPTH_MAX)}", TOO_DEEP),
    (f"{'[' * 511}x{']' * 511}", TOO_DEEP),
]


@pytest.mark.parametrize(("text", "message"), INVALID)
def test_invalid_templates(text: str, message: str) -> None:
    """The author would learn of it when the first object is missing."""
    spec = template(text)
    with pytest.raises(DocumentInvalid) as caught:
        compile_generating_policy(document("GeneratingPolicy", spec))
    (problem,) = caught.value.problems
    assert problem.path == "spec.generate[0].template.value"
    assert problem.reason.startswith(message)
    assert problem.upstream.startswith(f"{problem.path}: Invalid value: ")


def test_expression_and_template() -> None:
    spec = template(HEAD)
    spec["generate"][0]["expression"] = "true"
    with pytest.raises(DocumentInvalid, match="only one of expression or template"):
        compile_generating_policy(document("GeneratingPolicy", spec))


def test_namespaced_policy_cannot_call_services() -> None:
    """A tenant would reach services with the permissions of the pool."""
    text = HEAD + "data: x-(( http.Get('http://a').b ))"
    spec = template(text)
    denied = "spec: Forbidden: http.* is not allowed in namespaced policies"
    (found,) = refusals(document("GeneratingPolicy", spec, "shop"))
    assert found.startswith(denied)
    assert refusals(document("GeneratingPolicy", spec)) == []
    inert = template(text, "none")
    assert refusals(document("GeneratingPolicy", inert, "shop")) == []


def test_annotations_become_properties_of_the_result() -> None:
    annotations = [
        {"key": "k", "valueExpression": "'port ' + string(variables.port)"},
        {"key": "empty", "valueExpression": "''"},
    ]
    found, _ = generated(template(HEAD, auditAnnotations=annotations))
    assert found is not None
    assert found.properties == {"k": "port 8080"}
    skips: dict[str, Any] = {"matchConditions": [{"name": "c", "expression": "false"}]}
    found, _ = generated(template(HEAD, auditAnnotations=annotations, **skips))
    assert found is not None
    assert (found.status, found.properties) == ("pass", {})
    annotations[0]["valueExpression"] = "string(object.x)"
    found, _ = generated(template(HEAD, auditAnnotations=annotations))
    assert found is not None
    assert found.message == (
        'failed to evaluate policy: failed to evaluate auditAnnotation "k": no such'
        " key: x"
    )
    annotations[0]["valueExpression"] = "1"
    with pytest.raises(DocumentInvalid, match="either of type string or null"):
        generated(template(HEAD, auditAnnotations=annotations))


def test_expressions_of_templates_are_known() -> None:
    """A policy that reads the old object would not get it."""
    spec = template(f"{HEAD}data: (( oldObject.data ))")
    ir = compile_generating_policy(document("GeneratingPolicy", spec))
    texts = [one.text for one in expressions_of(ir)]
    assert "oldObject.data" in texts
