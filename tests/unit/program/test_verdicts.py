"""Whole rules compared with Kyverno 1.18.2, on the fast and the explaining path.

``fast`` decides at admission, ``explain`` produces the messages: each case runs both. A
failure means: a verdict or text differs from the real program's, or the webhook admits
objects that the command line rejects.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.bodies.outcome import EXPLAIN, FAILED, NONE, PASSED, SKIPPED
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, SKIP, RuleResult

THING = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "x"},
    "items": [{"name": "a"}, {"name": "b"}],
    "pairs": [{"a": "1"}, {"a": "2"}],
    "words": ["v", "w"],
}
_CODES: dict[frozenset[str], int] = {
    frozenset(): NONE,
    frozenset({PASS}): PASSED,
    frozenset({SKIP}): SKIPPED,
    frozenset({FAIL}): FAILED,
}


def evaluate(validate: dict[str, Any], **rule: Any) -> list[tuple[str, str]]:
    """Return (status, message) of one rule; both paths must agree."""
    return [(one.status, one.message) for one in results(validate, **rule)]


def results(validate: dict[str, Any], **rule: Any) -> list[RuleResult]:
    """Return the results of one rule; both paths must agree."""
    match = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
    raw = {"name": "r", "match": match, "validate": validate, **rule}
    policy = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [raw]},
        }
    )
    assert isinstance(policy, ClusterPolicy)
    linked = link_policy(compile_policy(policy))
    engine = Engine(
        OFFLINE, Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
    )
    request = Request(kind="ConfigMap", name="x", object=THING)
    found = engine.explain(linked, engine.open(request)).results
    context = engine.open(request)
    one = linked.rules[0]
    code = one.fast(request, engine.scope(one, context, first=True))
    statuses = frozenset(result.status for result in found)
    assert code in (EXPLAIN, _CODES.get(statuses, EXPLAIN))
    return found


def each(context: list[Any], body: dict[str, Any], query: str = "items") -> Any:
    """Return the verdict of a rule with a context and a loop over items of THING."""
    loop = {"list": f"request.object.{query}", **body}
    return evaluate({"foreach": [loop]}, context=context)


def variable(name: str, query: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "variable": {"jmesPath": query, **more}}


def test_unresolvable_message_reports_the_pattern() -> None:
    bad = "{{ request.object.none }}"
    head = "validation error: variables substitution error in rule r execution error: "
    text = f"{head}resource value 'x' does not match 'y' at path /metadata/name/"
    pattern = {"metadata": {"name": "y"}}
    assert evaluate({"message": bad, "pattern": pattern}) == [(FAIL, text)]
    text = f"{head}rule r[0] failed at path /metadata/name/"
    assert evaluate({"message": bad, "anyPattern": [pattern]}) == [(FAIL, text)]


def test_paths_in_any_pattern_begin_with_the_index() -> None:
    patterns = [{"a": "?*"}, {"b": "{{ request.object.none }}"}]
    text = (
        "variable substitution failed: failed to resolve request.object.none at path"
        ' /1/b: JMESPath query failed: Unknown key "none" in path'
    )
    assert evaluate({"anyPattern": patterns}) == [(ERROR, text)]


def test_any_pattern_alternatives_can_refer_to_each_other() -> None:
    last = {"kind": "$(./../../0/kind)"}
    text = (
        "validation error: rule r[0] failed at path /metadata/name/"
        " rule r[1] failed at path /kind/"
    )
    first = {"kind": "ConfigMap", "metadata": {"name": "y"}}
    passed = [(PASS, "validation rule 'r' anyPattern[1] passed.")]
    assert evaluate({"anyPattern": [first, last]}) == passed
    failed = [{**first, "kind": "Secret"}, last]
    assert evaluate({"anyPattern": failed}) == [
        (FAIL, text.replace("metadata/name", "kind"))
    ]


def test_invalid_element_scope_is_an_error_with_any_preconditions() -> None:
    never = {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
    loop = {"elementScope": True, "preconditions": never, "pattern": {"kind": "?*"}}
    text = (
        "failed to process foreach: cannot use elementScope=true foreach rules for"
        " elements that are not maps, expected type=map got type=string"
    )
    assert each([], loop, "words") == [(ERROR, text)]


UNKNOWN = (
    "validation failure: failed to check deny conditions: failed to substitute"
    " variables in condition key: failed to resolve {0} at path : JMESPath query"
    ' failed: Unknown key "{0}" in path'
)


@pytest.mark.parametrize(
    ("context", "keys", "wanted"),
    [
        # No variable of the first element is visible to the second one.
        ([variable("one", "element.name")], ["one"], (ERROR, UNKNOWN.format("one"))),
        (
            [variable("one", "element.name", default="d")],
            ["one"],
            (PASS, "rule passed"),
        ),
        # The same holds for a variable whose value came from an entry declared later.
        (
            [variable("one", "two"), variable("two", "request.object.kind")],
            ["two", "one"],
            (ERROR, UNKNOWN.format("one")),
        ),
        (
            [variable("two", "request.object.kind"), variable("one", "two")],
            ["one"],
            (PASS, "rule passed"),
        ),
        # Constant entries are visible to every element.
        ([{"name": "one", "variable": {"value": "v"}}], ["one"], (PASS, "rule passed")),
        # A constant is visible again after an entry of the same name was evaluated.
        (
            [
                variable("one", "request.object.kind"),
                {"name": "one", "variable": {"value": "v"}},
            ],
            ["one == 'v' && `0`"],
            (PASS, "rule passed"),
        ),
    ],
)
def test_entries_of_the_rule_are_evaluated_again_for_each_element(
    context: list[Any], keys: list[str], wanted: tuple[str, str]
) -> None:
    conditions = [
        {"key": f"{{{{ {key} }}}}", "operator": "Equals", "value": False}
        for key in keys
    ]
    assert each(context, {"deny": {"conditions": {"any": conditions}}}) == [wanted]


NAMED = "{{ request.object.metadata.name }}"
NEVER = {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}


@pytest.mark.parametrize(
    ("properties", "preconditions", "wanted"),
    [
        ({"a": NAMED, "b": "c"}, {}, {"a": "x", "b": "c"}),
        ({"a": "{{ request.object.metadata.nothing || `null` }}"}, {}, {"a": ""}),
        # If one of them fails or is not a string, all stay as written.
        (
            {"a": NAMED, "b": "{{ request.object.none }}"},
            {},
            {"a": NAMED, "b": "{{ request.object.none }}"},
        ),
        (
            {"a": NAMED, "b": "{{ request.object.words }}"},
            {},
            {"a": NAMED, "b": "{{ request.object.words }}"},
        ),
        # They are substituted after the preconditions.
        ({"a": NAMED}, NEVER, {"a": NAMED}),
    ],
)
def test_report_properties(
    properties: dict[str, str], preconditions: dict[str, Any], wanted: dict[str, str]
) -> None:
    rule = {"preconditions": preconditions, "reportProperties": properties}
    (found,) = results({"pattern": {"kind": "?*"}}, **rule)
    assert found.properties == wanted
