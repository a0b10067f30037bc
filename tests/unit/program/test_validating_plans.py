"""A plan of ValidatingPolicies has the verdicts of its policies, however it runs.

A failure means: a cached verdict belongs to another object, or a review that moves from
the event loop to a thread loses or repeats a policy.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.errors import Preempted, SnapshotUnusable
from kyverno_mp.policy.cel_kinds.validating_policy import decode_validating_policy
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.plan import CelPlanner
from tests.unit.program.test_validating_policy import MATCH, request

Row = tuple[str, str, str]

EXPRESSIONS: Final = (
    # Of what Pods of one owner share, and of what they do not.
    "object.spec.containers.all(c, c.image != 'bad')",
    "object.metadata.labels.app == 'web'",
    "object.metadata.name != 'web-1'",
    "object.metadata.name.startsWith('web')",
    "object.metadata.?uid.orValue('') != 'u-2'",
    "size(object.metadata) > 2",
    "object == object && object.metadata.name != 'web-0'",
    "request.userInfo.username != 'bob'",
    "object.none == 1",
    "object.spec.n > 1.0 && object.spec.containers.size() < 2",
)
MESSAGES: Final = ("no", "", "'of ' + object.metadata.name", "string(object.spec.n)")


class Counting(LinkedValidatingPolicy):
    """Counts the evaluations of all policies."""

    count = 0

    def results(self, *arguments: Any) -> Any:
        type(self).count += 1
        return super().results(*arguments)


class Source:
    """Policies that all apply to every request."""

    def __init__(self, policies: Sequence[LinkedValidatingPolicy]) -> None:
        self.policies = policies

    def candidates(self, *_: Any) -> list[LinkedValidatingPolicy]:
        return list(self.policies)


class StopsAt:
    """A pace whose event loop has no more time at one of its questions."""

    slice_ends_ns = 0

    def __init__(self, at: int) -> None:
        self._left = at

    def next_slice(self, _now_ns: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise Preempted("webhook.preempted", "the review takes long")

    def make_room(self) -> None:
        self.next_slice(0)


def linked(number: int, expression: str, message: str, failure: str) -> Counting:
    """``message``: a text, or an expression that computes it."""
    text = "messageExpression" if "object" in message else "message"
    validation = {"expression": expression, text: message}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": f"p{number:03}"},
        "spec": {
            "matchConstraints": MATCH,
            "failurePolicy": failure,
            "validations": [validation],
        },
    }
    document: Any = decode_validating_policy(raw)
    return Counting(compile_validating_policy(document, ()))


def pod(number: int, image: str = "nginx", **fields: Any) -> Request:
    metadata = {
        "name": f"web-{number}",
        "namespace": "shop",
        "uid": f"u-{number}",
        "labels": {"app": "web"},
    }
    spec = {"containers": [{"name": "c", "image": image}], "n": 3.0}
    resource = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    asked = request(resource, operation="CREATE", size=500, **fields)
    asked.namespace_known = True
    assert asked.review_request is not None
    user = {"username": "bob" if number % 2 else "alice"}
    asked.review_request.update(userInfo=user, operation="CREATE", object=resource)
    return asked


def planner_of(policies: Sequence[LinkedValidatingPolicy]) -> CelPlanner:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 1)
    source: Any = Source(policies)
    return CelPlanner(Engine(OFFLINE, clock), source, lambda _key: True)


def rows(planner: CelPlanner, asked: Request, stops_at: int = -1) -> list[Row]:
    plan = planner.plan(asked, frozenset(), is_namespaced=False)
    assert plan is not None
    if stops_at >= 0:
        try:
            verdicts = plan.run(10, StopsAt(stops_at))
        except Preempted:
            verdicts = plan.run(10)
    else:
        verdicts = plan.run(10)
    return [
        (one.response.policy.name, result.status, result.message)
        for one in verdicts.found
        for result in one.response.results
    ]


POLICIES: Final = st.lists(
    st.tuples(
        st.sampled_from(EXPRESSIONS),
        st.sampled_from(MESSAGES),
        st.sampled_from(["Fail", "Ignore"]),
    ),
    min_size=1,
    max_size=8,
)
REVIEWS: Final = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["nginx", "bad"]), st.integers(-1, 12)
    ),
    min_size=1,
    max_size=8,
)


@given(POLICIES, REVIEWS)
def test_verdicts_are_those_of_a_new_worker(
    chosen: list[tuple[str, str, str]], reviews: list[tuple[int, str, int]]
) -> None:
    """Whatever was reviewed before, and wherever the event loop gave up."""
    policies = [linked(number, *one) for number, one in enumerate(chosen)]
    planner = planner_of(policies)
    for number, image, stops_at in reviews:
        expected = rows(planner_of(policies), pod(number, image))
        assert [name for name, *_ in expected] == [p.ir.policy.name for p in policies]
        assert rows(planner, pod(number, image), stops_at) == expected


@pytest.mark.parametrize("naming", [0, 1, 3])
def test_policies_that_read_no_name_are_evaluated_once(naming: int) -> None:
    """Pods of one owner differ in their names; other policies may read those."""
    shared = [linked(number, EXPRESSIONS[0], "no", "Fail") for number in range(20)]
    named = [linked(100 + n, EXPRESSIONS[3], "no", "Fail") for n in range(naming)]
    planner = planner_of([*shared, *named])
    Counting.count = 0
    for number in range(10):
        rows(planner, pod(number))
    assert Counting.count == 20 + 10 * naming


def test_a_review_that_leaves_the_event_loop_goes_on() -> None:
    """Otherwise everything that the event loop had evaluated is done twice."""
    expression = "object.metadata.name.startsWith('web')"
    policies = [linked(number, expression, "no", "Fail") for number in range(64)]
    Counting.count = 0
    found = rows(planner_of(policies), pod(0), stops_at=1)
    assert len(found) == len(policies)
    assert Counting.count <= len(policies) + 1


def test_names_of_a_path_are_looked_up_once_in_a_generation() -> None:
    """A path can name a thousand policies."""
    looked_up: list[str] = []

    def knows(key: str) -> bool:
        looked_up.append(key)
        return key != "new"

    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 1)
    source: Any = Source([])
    planner = CelPlanner(Engine(OFFLINE, clock), source, knows)
    names = frozenset({"a", "b"})
    for _ in range(3):
        planner.require(names)
    assert sorted(looked_up) == ["a", "b"]
    for _ in range(2):
        with pytest.raises(SnapshotUnusable, match="new is not known"):
            planner.require(frozenset({"a", "new"}))
