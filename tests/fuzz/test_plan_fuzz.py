"""Policies evaluated together, alone, fast or explaining have the same results.

Three ways lead to a verdict: the batch (program/plans/batch.py), the fast program of a
single rule, and its explaining program. A failure means: a review's answer and a report
of the same object disagree, or the result of a policy depends on other policies.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import BudgetExceeded, PolicyInvalid
from kyverno_mp.program.bodies import cel_conditions
from kyverno_mp.program.bodies.outcome import FAILED, NONE, PASSED, SKIPPED
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlan, ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, SKIP, PolicyResponse
from kyverno_mp.program.rule import LinkedRule
from tests.fuzz.bench import everything_remembered, review, segment_of

_ALL = frozenset({"Fail", "Ignore"})
_CLOCK = Clock(lambda: datetime(2026, 1, 2, tzinfo=UTC), lambda: 0)
_ENGINE = Engine(ClusterData(), _CLOCK)

NAMES = st.sampled_from(["a", "b"])
IMAGES = st.sampled_from(["r.io/a:1", "b:latest", "b"])
VALUES = st.sampled_from(["x", "y", "x*", "!x", "?*"])
OPERATIONS = ["CREATE", "UPDATE", "DELETE"]
CONTAINERS = "request.object.spec.containers"
OBJECT = "{{ request.object.metadata.labels.a || 'none' }}"


def condition(key: str, value: Any, operator: str = "Equals") -> dict[str, Any]:
    return {"key": key, "operator": operator, "value": value}


CONDITIONS = st.one_of(
    st.builds(
        lambda value, operator: condition("{{ request.operation }}", value, operator),
        st.sampled_from(OPERATIONS),
        st.sampled_from(["Equals", "NotEquals"]),
    ),
    st.builds(lambda value: condition(OBJECT, value), st.sampled_from(["x", "none"])),
    # It fails: the field does not exist, and there is no default.
    st.just(condition("{{ request.object.nowhere.to.be }}", "x")),
)
BLOCKS = st.builds(
    lambda mode, found: {mode: found},
    st.sampled_from(["any", "all"]),
    st.lists(CONDITIONS, min_size=1, max_size=2),
)
PATTERNS = st.one_of(
    st.builds(lambda value: {"metadata": {"labels": {"a": value}}}, VALUES),
    st.builds(lambda value: {"metadata": {"=(labels)": {"=(a)": value}}}, VALUES),
    st.builds(
        lambda value: {"metadata": {"labels": {"<(b)": value, "a": "x"}}}, VALUES
    ),
    st.builds(
        lambda value: {"spec": {"containers": [{"(name)": "a", "image": value}]}},
        st.sampled_from(["r.io/*", "!*:latest"]),
    ),
    st.builds(
        lambda value: {"spec": {"^(containers)": [{"image": value}]}},
        st.sampled_from(["r.io/*", "*:latest"]),
    ),
    st.just({"metadata": {"labels": {"a": OBJECT}}}),
)
CEL = st.sampled_from(
    [
        "has(object.metadata.labels) && object.metadata.labels.a == 'x'",
        "object.spec.containers.all(c, c.image.startsWith('r.io/'))",
        "request.operation == 'CREATE'",
        "object.metadata.labels.b == 'y'",
    ]
)
MATCH_CONDITIONS = st.sampled_from(
    [
        "object.metadata.name == 'a'",
        "request.operation != 'UPDATE'",
        "has(object.metadata.labels)",
        # An error if the label is missing.
        "object.metadata.labels.a == 'x'",
        # Two containers cost more than COST_MAX.
        (
            "object.spec.containers.all(c, object.spec.containers.all(d,"
            " c.name != 'q' + d.name))"
        ),
    ]
)
COST_MAX = 100
BODIES = st.one_of(
    st.builds(lambda pattern: {"pattern": pattern}, PATTERNS),
    st.builds(
        lambda patterns: {"anyPattern": patterns},
        st.lists(PATTERNS, min_size=1, max_size=2),
    ),
    st.builds(lambda block: {"deny": {"conditions": block}}, BLOCKS),
    st.just({"deny": {}}),
    st.builds(
        lambda block: {
            "foreach": [
                {
                    "list": "request.object.spec.containers",
                    "deny": {"conditions": block},
                }
            ]
        },
        BLOCKS,
    ),
    st.builds(lambda text: {"cel": {"expressions": [{"expression": text}]}}, CEL),
    st.builds(
        lambda level: {"podSecurity": {"level": level, "version": "latest"}},
        st.sampled_from(["baseline", "restricted"]),
    ),
    st.builds(
        lambda value: {"assert": {"object": {"metadata": {"name": value}}}}, NAMES
    ),
)


@st.composite
def filters(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one entry of match or exclude."""
    kinds = draw(st.sampled_from([["Pod"], ["Pod", "ConfigMap"], ["*"]]))
    found: dict[str, Any] = {"kinds": kinds}
    if draw(st.booleans()):
        found["operations"] = draw(
            st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=2, unique=True)
        )
    if draw(st.booleans()):
        found["names"] = [draw(st.sampled_from(["a", "b", "a*", "*"]))]
    if draw(st.booleans()):
        found["selector"] = {"matchLabels": {"a": draw(st.sampled_from(["x", "?*"]))}}
    return {"resources": found}


@st.composite
def rules(draw: st.DrawFn, number: int, action: str) -> dict[str, Any]:
    """Draw one rule; ``action`` "" draws one."""
    body = draw(BODIES)
    found: dict[str, Any] = {
        "name": f"r{number}",
        "match": {draw(st.sampled_from(["any", "all"])): [draw(filters())]},
        "validate": {
            "message": draw(st.sampled_from(["no", "", OBJECT])),
            "allowExistingViolations": draw(st.booleans()),
            "failureAction": action or draw(st.sampled_from(["Enforce", "Audit"])),
            **body,
        },
    }
    if draw(st.integers(0, 3)) == 0:
        found["exclude"] = {"any": [draw(filters())]}
    if draw(st.booleans()) and "cel" not in body:
        found["preconditions"] = draw(BLOCKS)
    return found


@st.composite
def policies(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw up to five policies, of the cluster and of the namespace."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        namespace = draw(st.sampled_from(["", "", "default"]))
        only_one = draw(st.booleans())
        # With applyRules One, the remaining rules of a policy decide; so one action.
        action = draw(st.sampled_from(["Enforce", "Audit"])) if only_one else ""
        gates = draw(st.lists(MATCH_CONDITIONS, max_size=2))
        found.append(
            {
                "apiVersion": "kyverno.io/v1",
                "kind": "Policy" if namespace else "ClusterPolicy",
                "metadata": {
                    "name": f"p{number}",
                    "namespace": namespace or None,
                    "annotations": {
                        "pod-policies.kyverno.io/autogen-controllers": "none"
                    },
                },
                "spec": {
                    "background": False,
                    "applyRules": "One" if only_one else "All",
                    "failurePolicy": draw(st.sampled_from(["Fail", "Ignore"])),
                    **gated_by(gates),
                    "rules": [
                        draw(rules(place, action))
                        for place in range(draw(st.integers(1, 3)))
                    ],
                },
            }
        )
        if draw(st.integers(0, 3)) == 0:
            rule = draw(st.sampled_from(["r0", "r1", "*"]))
            found.append(exception(f"{namespace}/p{number}".lstrip("/"), rule))
    return found


def gated_by(expressions: list[str]) -> dict[str, Any]:
    """Return the part of a policy's spec with its matchConditions."""
    conditions = [
        {"name": f"c{number}", "expression": expression}
        for number, expression in enumerate(expressions)
    ]
    return (
        {"webhookConfiguration": {"matchConditions": conditions}} if conditions else {}
    )


def exception(policy: str, rule: str) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e-" + policy.replace("/", "-"), "namespace": "default"},
        "spec": {
            "exceptions": [{"policyName": policy, "ruleNames": [rule]}],
            "match": {"any": [{"resources": {"kinds": ["Pod"], "names": ["a"]}}]},
        },
    }


OBJECTS = st.builds(
    lambda name, labels, containers: {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"}
        | ({"labels": labels} if labels is not None else {}),
        "spec": {"containers": containers},
    },
    NAMES,
    st.none() | st.dictionaries(NAMES, st.sampled_from(["x", "y"]), max_size=2),
    st.lists(
        st.builds(
            lambda name, image, privileged: {
                "name": name,
                "image": image,
                "securityContext": {"privileged": privileged},
            },
            NAMES,
            IMAGES,
            st.booleans(),
        ),
        max_size=2,
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an AdmissionReview."""
    operation = draw(st.sampled_from(OPERATIONS))
    new, old = draw(OBJECTS), draw(OBJECTS)
    found = review(new, operation=operation)
    found["request"]["object"] = None if operation == "DELETE" else new
    found["request"]["oldObject"] = None if operation == "CREATE" else old
    return found


def source_of(documents: list[dict[str, Any]]) -> SegmentSource[LinkedRule]:
    """Compile the policies, through a snapshot."""
    text = "\n---\n".join(json.dumps(document) for document in documents)
    try:
        return SegmentSource(segment_of(text), link_rule)
    except PolicyInvalid:
        # For example, a rule that excludes everything it matches.
        reject()


def told(responses: list[PolicyResponse]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the results of rules: the status and, if there is one, the message."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for response in responses:
        rows = found.setdefault(response.policy.key, {})
        rows |= {r.rule: (r.status, r.message) for r in response.results}
        rows |= dict.fromkeys(response.passed, (PASS, ""))
        rows |= dict.fromkeys(response.skipped, (SKIP, ""))
    return found


def with_messages(source: SegmentSource[LinkedRule], request: Request) -> Any:
    """Evaluate each policy alone, by the explaining programs."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for candidate in source.candidates(request):
        linked = LinkedPolicy(candidate.policy, [ref.linked for ref in candidate.rules])
        response = _ENGINE.explain(linked, _ENGINE.open(request))
        found[candidate.policy.key] = {
            r.rule: (r.status, r.message) for r in response.results
        }
    return found


def check_single_rules(
    source: SegmentSource[LinkedRule], request: Request, words: Any
) -> None:
    """Check that a rule's fast program agrees with its explaining one, or defers."""
    for candidate in source.candidates(request):
        if candidate.policy.apply_rules == "One":
            continue
        first = True
        for rule in (ref.linked for ref in candidate.rules):
            context = _ENGINE.open(request)
            try:
                if not _ENGINE.matches(rule, context):
                    continue
            except BudgetExceeded:
                assert words[candidate.policy.key][rule.ir.name][0] == ERROR
                first = False
                continue
            scope = _ENGINE.scope(rule, context, first=first)
            code = rule.fast(request, scope)
            first = False
            said = words[candidate.policy.key].get(rule.ir.name)
            assert code != PASSED or said[0] == PASS
            assert code != SKIPPED or said[0] == SKIP
            assert code != FAILED or said[0] == FAIL
            assert code != NONE or said is None


def _said(plan: ValidationPlan | None) -> dict[str, dict[str, tuple[str, str]]]:
    if plan is None:
        return {}
    found = told([*plan.enforce(0)])
    for key, rows in told([*plan.audit(0)]).items():
        assert not rows.keys() & found.get(key, {}).keys(), "no rule speaks twice"
        found[key] = found.get(key, {}) | rows
    # A condition exceeds its budget; the rules report that.
    for policy, error in plan.left_out:
        assert isinstance(error, BudgetExceeded)
        assert (ERROR, f"not evaluated (cel.cost): {error}") in found[
            policy.key
        ].values()
    return found


@pytest.fixture(autouse=True, scope="module")
def _small_budget() -> Iterator[None]:
    """Let small objects exceed the budget of matchConditions."""
    with patch.object(cel_conditions, "MATCH_CONDITIONS_COST_MAX", COST_MAX):
        yield


def denying(name: str, *conditions: str) -> dict[str, Any]:
    """Return a policy that denies all Pods for which its matchConditions hold."""
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {
            "background": False,
            **gated_by(list(conditions)),
            "rules": [
                {
                    "name": "r0",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "validate": {
                        "message": "no",
                        "failureAction": "Enforce",
                        "deny": {},
                    },
                }
            ],
        },
    }


EQUAL_BLOCKS = [
    denying("p0", "object.metadata.name == 'b'"),
    denying("p1", "object.metadata.name == 'a'"),
    denying("p2"),
    denying("p3", "object.spec.containers.all(c, c.image.startsWith('r.io/'))"),
]
"""Equal match blocks, of policies with different matchConditions."""
FIRST_SKIPS = [
    {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": f"p{number}"},
        "spec": {
            "background": False,
            "rules": [
                {
                    "name": "r0",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "preconditions": {
                        "all": [condition("{{ request.operation }}", "UPDATE")]
                    },
                    "validate": {
                        "message": "no",
                        "failureAction": "Enforce",
                        "deny": {},
                    },
                }
            ],
        },
    }
    for number in range(2)
]


@given(policies(), st.lists(requests(), min_size=1, max_size=3))
@example(FIRST_SKIPS, [review({"kind": "Pod", "metadata": {"name": "a"}})])
@example(EQUAL_BLOCKS, [review({"kind": "Pod", "metadata": {"name": "a"}})])
@settings(max_examples=150)
def test_all_evaluators_agree(
    documents: list[dict[str, Any]], reviews: list[dict[str, Any]]
) -> None:
    source = source_of(documents)
    planner = ValidationPlanner(_ENGINE, source)
    for each in reviews:
        request = decode(json.dumps(each).encode())
        words = with_messages(source, request)
        check_single_rules(source, request, words)
        # Twice: data cached by the first run must not change the second.
        for _ in range(2):
            with everything_remembered():
                found = _said(planner.plan(request, _ALL, ""))
            for key, rows in words.items():
                here = found.get(key, {})
                assert {r: status for r, (status, _) in here.items()} == {
                    r: status for r, (status, _) in rows.items()
                }, key
                for rule, (_, message) in here.items():
                    assert message in {"", rows[rule][1]}


@given(policies(), requests())
@example(EQUAL_BLOCKS, review({"kind": "Pod", "metadata": {"name": "a"}}))
@settings(max_examples=60)
def test_results_of_a_policy_do_not_depend_on_other_policies(
    documents: list[dict[str, Any]], document: dict[str, Any]
) -> None:
    request = decode(json.dumps(document).encode())
    together = _planned(documents, request)
    alone: dict[str, Any] = {}
    exceptions = [d for d in documents if d["kind"] == "PolicyException"]
    for each in documents:
        if each["kind"] != "PolicyException":
            alone |= _planned([each, *exceptions], request)
    assert together == alone


def _planned(documents: list[dict[str, Any]], request: Request) -> Any:
    planner = ValidationPlanner(_ENGINE, source_of(documents))
    return _said(planner.plan(request, _ALL, ""))
