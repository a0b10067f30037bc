"""The verdict cached for one object is the verdict of an equal one.

A failure means: a review is answered with the verdict on another object, which is a
wrong allow or a wrong denial.
"""

import copy
import itertools
import json
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from kyverno_mp.admission.decode import decode
from kyverno_mp.limits import RECALL_MESSAGES_CHARACTERS_MAX, RECALL_REVIEW_BYTES_MAX
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.recall import verdicts as recall
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule
from tests.fuzz import test_plan_fuzz as plans
from tests.fuzz.bench import everything_remembered, review

_CLOCK = Clock(plans._CLOCK.now, lambda: 0)
NAME = "{{ request.object.metadata.name }}"
CONTAINERS = "request.object.spec.[initContainers, containers][]"


def _deny(key: str, operator: str, value: Any) -> dict[str, Any]:
    return {"deny": {"conditions": {"all": [plans.condition(key, value, operator)]}}}


def _loop(*bodies: dict[str, Any], over: str = CONTAINERS) -> dict[str, Any]:
    return {"foreach": [{"list": over, **body} for body in bodies]}


OPERATORS = st.sampled_from(["AnyIn", "AnyNotIn", "AllIn", "Equals", "NotEquals"])
READERS = st.sampled_from(
    [
        "{{ element.image }}",
        "{{ element.securityContext.privileged || 'none' }}",
        "{{ element.keys(@) }}",
        "{{ elementIndex }}",
        "{{ element0.ports[].number || `[]` }}",
        "{{ element }}",
        "{{ request.object.metadata.labels.a || 'none' }}",
        NAME,
        "{{ request.namespace }}",
        "{{ images.containers.*.name || `[]` }}",
    ]
)
OUTER = st.sampled_from(
    [
        "{{ request.object.spec.containers[].keys(@)[] }}",
        "{{ request.object.spec.containers[*].name || `[]` }}",
        "{{ request.object.spec.containers[?name == 'a'].image }}",
        "{{ request.object.spec.containers[0].image || '' }}",
        "{{ length(request.object.spec.containers) }}",
        "{{ " + CONTAINERS + ".ports[].number }}",
        "{{ request.object.spec.[containers, initContainers] }}",
    ]
)
WANTED = st.sampled_from(["a", "b", "none", True, 0, 1, ["a", "b"], ["name", "image"]])
SIMPLE = st.one_of(
    st.builds(_deny, READERS, OPERATORS, WANTED),
    st.builds(
        lambda value: {"pattern": {"image": value}},
        st.sampled_from(["b*", "!*:latest"]),
    ),
    st.just({"anyPattern": [{"name": "a"}, {"ports": [{"number": ">1"}]}]}),
    st.just({"pattern": {"name": "a"}, "elementScope": False}),
    st.just({"pattern": {"=(ports)": "*"}, "elementScope": True}),
)
MORE = st.one_of(
    st.builds(_deny, OUTER, OPERATORS, WANTED),
    st.builds(_loop, SIMPLE),
    st.builds(_loop, SIMPLE, SIMPLE),
    st.builds(
        lambda inner, over: _loop(_loop(inner, over=over)),
        SIMPLE,
        st.sampled_from(["element.ports", "element0.ports[].number", CONTAINERS]),
    ),
    st.builds(
        lambda value: {
            "pattern": {
                "metadata": {"=(annotations)": {"=(example.com/*)": value}},
                "spec": {"=(containers)": [{"=(ports)": [{"=(number)": "<3"}]}]},
            }
        },
        st.sampled_from(["1", "?*", "!x"]),
    ),
)


@st.composite
def families(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw reviews, most of which create objects with small differences."""
    base = draw(plans.requests())
    request = base["request"]
    if draw(st.integers(0, 4)):
        request["operation"], request["oldObject"] = "CREATE", None
        request["object"] = request["object"] or draw(plans.OBJECTS)
    family = []
    for _ in range(draw(st.integers(2, 8))):
        document = draw(plans.requests())
        if draw(st.integers(0, 6)):
            document = copy.deepcopy(base)
            for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
                change(draw, document["request"])
        family.append(document)
    return family


def _renamed(draw: Any, request: dict[str, Any]) -> None:
    if request["object"]:
        request["object"]["metadata"]["name"] = draw(plans.NAMES)


def _moved(_draw: Any, request: dict[str, Any]) -> None:
    request["namespace"] = "other"


def _labelled(draw: Any, request: dict[str, Any]) -> None:
    if request["object"]:
        labels = {draw(plans.NAMES): draw(st.sampled_from(["x", "y"]))}
        request["object"]["metadata"]["labels"] = labels


def _annotated(draw: Any, request: dict[str, Any]) -> None:
    if request["object"]:
        key = draw(st.sampled_from(["example.com/a", "b"]))
        value = draw(st.sampled_from(["1", 1, 1.0, True, "x", NAME]))
        request["object"]["metadata"]["annotations"] = {key: value}


def _in_container(draw: Any, request: dict[str, Any]) -> None:
    containers = (request["object"] or {"spec": {}})["spec"].get("containers")
    if not containers:
        return
    container = draw(st.sampled_from(containers))
    key, values = draw(
        st.sampled_from(
            [
                ("ports", PORTS),
                ("name", st.sampled_from(["a", "b", NAME, [NAME], {NAME: 1}, 1])),
                ("image", plans.IMAGES),
                ("unread", plans.NAMES),
                ("securityContext", st.sampled_from([{"privileged": True}, {}, None])),
            ]
        )
    )
    container[key] = draw(values)


CHANGES = [_renamed, _renamed, _moved, _labelled, _annotated, *[_in_container] * 4]


PORTS = st.lists(
    st.builds(
        lambda number, name: {"number": number, "name": name},
        st.sampled_from([1, 1.0, True, "1", 5, None]),
        plans.NAMES,
    ),
    max_size=2,
)


class _Counting(recall.VerdictCache):
    """A cache that counts its hits."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0

    def find(self, key: Any) -> recall.CachedVerdict | None:
        """Count the hits."""
        found = super().find(key)
        self.hits += found is not None
        return found


def evaluated(planner: ValidationPlanner, request: Request) -> Any:
    """Return every message of the enforcing and of the auditing rules."""
    plan = planner.plan(request, plans._ALL, "")
    if plan is None:
        return None
    found = [
        [(r.policy.key, r.results, r.action, r.passed, r.skipped) for r in responses]
        for responses in (plan.enforce(0), plan.audit(0))
    ]
    assert not plan.left_out
    return found


def check(documents: list[dict[str, Any]], reviews: list[dict[str, Any]]) -> int:
    """Evaluate them in sequence, and each alone; return the number of cache hits."""
    with everything_remembered():
        source: SegmentSource[LinkedRule] = plans.source_of(documents)
        engine = Engine(ClusterData(), _CLOCK)
        engine.verdicts = counting = _Counting()
        planner = ValidationPlanner(engine, source)
        for each in reviews:
            body = json.dumps(each).encode()
            together = evaluated(planner, decode(body))
            alone = ValidationPlanner(Engine(ClusterData(), _CLOCK), source)
            assert together == evaluated(alone, decode(body))
    return counting.hits


@st.composite
def policies(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw policies, some of which have a body made for this test."""
    documents = draw(plans.policies())
    for document in documents:
        for rule in document["spec"].get("rules", ()):
            if draw(st.integers(0, 2)):
                validate = rule["validate"]
                kept = ("message", "allowExistingViolations", "failureAction")
                rule["validate"] = {k: validate[k] for k in kept} | draw(MORE)
                for block in (rule["match"], rule.get("exclude", {})):
                    for each in itertools.chain(*block.values()):
                        each["resources"]["kinds"] = ["Pod"]
    return documents


@given(policies(), families())
@settings(max_examples=200)
def test_cached_verdict_equals_an_evaluated_one(
    documents: list[dict[str, Any]], reviews: list[dict[str, Any]]
) -> None:
    # The first object again, at the end: others may have been cached in between.
    event(f"known: {min(check(documents, [*reviews, reviews[0]]), 3)}")


POLICY: dict[str, Any] = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {
        "name": "p",
        "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
    },
    "spec": {
        "background": False,
        "rules": [
            {
                "name": "r0",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {"message": "no", "failureAction": "Enforce"},
            }
        ],
    },
}


def _policy(**body: Any) -> dict[str, Any]:
    document = copy.deepcopy(POLICY)
    document["spec"]["rules"][0]["validate"] |= body
    return document


def _pod(name: str, **container: Any) -> dict[str, Any]:
    return review(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "b", **container}]},
        },
        name=name,
    )


def test_pods_that_differ_only_in_name_are_evaluated_once() -> None:
    """Otherwise the laws above would hold because nothing is ever cached."""
    documents = [
        _policy(pattern={"spec": {"containers": [{"image": "!b"}]}}),
    ]
    assert check(documents, [_pod(f"x{number}") for number in range(5)]) == 4
    loop = _policy(**_loop(_deny("{{ element.keys(@) }}", "AnyIn", ["env"])))
    assert check([loop], [_pod(f"x{number}") for number in range(5)]) == 4
    assert check([loop], [_pod("x"), _pod("x", env=1), _pod("y", env=2)]) == 1


def test_numbers_and_booleans_are_distinguished() -> None:
    documents = [_policy(**_deny("{{ " + CONTAINERS + ".x }}", "AnyIn", ["1"]))]
    values = [1, 1.0, True, "1"]
    assert check(documents, [_pod("x", x=value) for value in values]) == 0


def test_variable_in_a_value_is_evaluated_each_time() -> None:
    """The variable may read data that the rule itself does not read."""
    documents = [_policy(**_deny("{{ " + CONTAINERS + ".x }}", "AnyIn", ["a"]))]
    assert check(documents, [_pod(name, x=NAME) for name in ("a", "b", "a")]) == 0


def test_old_object_is_evaluated_each_time() -> None:
    """An existing violation is excused, a new one is not."""
    documents = [_policy(pattern={"spec": {"containers": [{"image": "!b"}]}})]
    bad, good = _pod("x"), _pod("x", image="c")
    updates = []
    for old in (bad, good, bad):
        update = copy.deepcopy(bad)
        update["request"]["operation"] = "UPDATE"
        update["request"]["oldObject"] = old["request"]["object"]
        updates.append(update)
    made = copy.deepcopy(updates[0])
    made["request"]["operation"] = "CREATE"
    assert check(documents, [bad, *updates, made, good]) == 0


@example(0)
@given(st.integers(0, 40))
@settings(max_examples=20)
def test_cache_is_bounded(more: int) -> None:
    verdicts = recall.VerdictCache()
    with patch.object(recall, "RECALL_ENTRIES_MAX", 10):
        for number in range(more):
            key: Any = (None, b"%d" % number, ())
            verdicts.keep(key, recall.CachedVerdict(b"", ("x" * number,)))
            assert len(verdicts._known) <= 10
    long = recall.CachedVerdict(b"", ("x" * (RECALL_MESSAGES_CHARACTERS_MAX + 1),))
    verdicts.keep(key := (None, b"long", ()), long)
    assert verdicts.find(key) is None


def test_large_reviews_and_large_parts_are_evaluated_each_time() -> None:
    documents = [_policy(pattern={"spec": {"containers": [{"image": "!b"}]}})]
    large = "x" * RECALL_REVIEW_BYTES_MAX
    assert check(documents, [_pod("x", env=large)] * 2) == 0
    assert check(documents, [_pod("x", env=large[:-2000])] * 2) == 1
    assert check(documents, [_pod("x", image=large[:4100])] * 2) == 0


def _image(operator: str, value: Any, reader: str = "{{ element.image }}") -> Any:
    return _deny(reader, operator, value)


READ = {
    "a pattern of an element": (
        _loop({"pattern": {"image": "b*"}}),
        [_pod("x", image="b"), _pod("x", image="c")],
    ),
    "the whole object, where an element is no map": (
        _loop(
            {"pattern": {"metadata": {"name": "x"}}},
            over="request.object.spec.containers[].image",
        ),
        [_pod("x"), _pod("y")],
    ),
    "any of the patterns of an element": (
        _loop({"anyPattern": [{"image": "b*"}, {"other": "1"}]}),
        [_pod("x", image="c", other="1"), _pod("x", image="c")],
    ),
    "an element by its number": (
        _loop(_image("AnyIn", ["b"], "{{ element0.image }}")),
        [_pod("x", image="c"), _pod("x", image="b")],
    ),
    "an outer element": (
        _loop(_loop(_image("AnyIn", ["b"], "{{ element0.image }}"), over="element.l")),
        [_pod("x", image="c", l=[{}]), _pod("x", image="b", l=[{}])],
    ),
    "an inner element": (
        _loop(_loop(_image("AnyIn", ["b"]), over="element.l")),
        [_pod("x", l=[{"image": "c"}]), _pod("x", l=[{"image": "b"}])],
    ),
    "preconditions of elements": (
        _loop(
            {
                **_image("AnyIn", ["b"]),
                "preconditions": {"all": [plans.condition("{{ element.if }}", "y")]},
            }
        ),
        [_pod("x", **{"if": "n"}), _pod("x", **{"if": "y"})],
    ),
    "images": (
        _deny("{{ images.containers.*.tag }}", "AnyIn", ["1"]),
        [_pod("x", image="b:2"), _pod("x", image="b:1")],
    ),
    "images, which are all read where a query may mention them": (
        _deny("{{ request.object.spec.[images][] || `[]` }}", "AnyIn", ["b"]),
        [_pod("x", image="b:2"), _pod("x", image="b:::")],
    ),
    "the name of the request": (
        _deny("{{ request.name }}", "AnyIn", ["b"]),
        [_pod("a"), _pod("b")],
    ),
    "the whole root": (
        _deny("{{ @ | request.name }}", "AnyIn", ["b"]),
        [_pod("a"), _pod("b")],
    ),
    "text around values": (
        _deny("{{ request.object.metadata.name }}-x", "AnyIn", ["b-x"]),
        [_pod("a"), _pod("b")],
    ),
}


@pytest.mark.parametrize("what", READ)
def test_objects_that_differ_in_read_parts_are_never_equal(what: str) -> None:
    """Of two objects that differ only in this part, one passes and one fails."""
    body, (one, other) = READ[what]
    documents = [_policy(**body)]
    assert check(documents, [one, other]) == check(documents, [other, one]) == 0
    planner = ValidationPlanner(
        Engine(ClusterData(), _CLOCK), plans.source_of(documents)
    )
    first, second = (
        evaluated(planner, decode(json.dumps(each).encode())) for each in (one, other)
    )
    assert first != second


EXCUSED = [
    _policy(pattern={"spec": {"containers": [{"image": "!b"}]}}),
    plans.exception("p", "r0"),
]


def test_objects_that_differ_in_rule_conditions_are_never_equal() -> None:
    """Matches, preconditions and exceptions read more than the body."""
    assert check(EXCUSED, [_pod("c", image="c"), _pod("a", image="c")]) == 0
    named = _policy(pattern={"spec": {"containers": [{"image": "!b"}]}})
    rule = named["spec"]["rules"][0]
    rule["match"]["any"][0]["resources"]["selector"] = {"matchLabels": {"a": "x"}}
    pods = _alternating(_pod(name) for name in ("a", "b", "c", "d"))
    assert check([named], pods) == 2
    asked = _policy(pattern={"spec": {"containers": [{"image": "!b"}]}})
    label = "{{ request.object.metadata.labels.a }}"
    asked["spec"]["rules"][0]["preconditions"] = {"all": [plans.condition(label, "x")]}
    pods = _alternating(_pod(name, image="c") for name in ("a", "b", "c"))
    assert check([asked], pods) == 1


def test_objects_are_never_equal_for_a_rule_that_reads_their_names() -> None:
    """So its keys would only fill the cache."""
    asked = _policy(pattern={"spec": {"containers": [{"image": "!b"}]}})
    asked["spec"]["rules"][0]["preconditions"] = {"all": [plans.condition(NAME, "a")]}
    pods = [_pod(name, image="c") for name in ("a", "b", "a")]
    assert check([asked], pods) == 0


def _alternating(pods: Iterable[Any]) -> list[Any]:
    """Return the pods with the label ``a``: x, y, x, ..."""
    labelled = list(pods)
    for number, pod in enumerate(labelled):
        metadata = pod["request"]["object"]["metadata"]
        metadata["labels"] = {"a": ("x", "y")[number % 2]}
    return labelled


@given(MORE, families())
@settings(max_examples=200)
def test_cached_rule_equals_an_evaluated_one(
    body: dict[str, Any], reviews: list[dict[str, Any]]
) -> None:
    event(f"known: {min(check([_policy(**body)], [*reviews, reviews[0]]), 3)}")
