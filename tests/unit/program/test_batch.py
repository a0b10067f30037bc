"""Guard the cost of a review, in counts: calls, shared answers, records decoded.

A failure means: reviews became slower, or memory grows with policies that no request
needs. No wall time is measured; perf/ does that.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlan, ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.recall.verdicts import CachedVerdict, VerdictCache
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import SharedResponses
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.snapshot.policies import PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from perf.reviews import REVIEWS
from perf.scale import other
from tests.waiting import FAR_NS, still_ns

_SAMPLES = Path(__file__).parents[3] / "config" / "samples"
_FAIL = frozenset({"Fail"})
_CALLS_MAX = {
    ("policies", "allowed"): 400,
    ("policies", "denied"): 575,
    ("cel", "allowed"): 660,
}
"""Python function calls in one review by the 17 samples: the measured count + 10 %."""
_CALLS_KNOWN_MAX = 60
"""The count for a Pod that equals an earlier Pod in all parts that the rules read."""


class _Loaded:
    """The sample policies and others that do not match, as a worker holds them."""

    def __init__(self, folder: Path, others: int, samples: str = "policies") -> None:
        paths = sorted((_SAMPLES / samples).glob("*.yaml"))
        files = {p.name: p.read_bytes() for p in paths}
        for number in range(others):
            variant = ("kinds", "namespaces")[number % 2]
            files[f"other-{number}.yaml"] = orjson.dumps(other(number, variant))
        policy_set = PolicyStore(lambda _namespace: True).update(Changes(files, ()))
        assert not policy_set.problems
        path = folder / "policies.segment"
        path.write_bytes(
            PoliciesWriter().encode(policy_set.encoded, generation=1, salt=bytes(16))
        )
        path.chmod(0o600)
        folder.chmod(0o700)
        self.segment = PolicySegment(Segment.attach(path, "policies"))
        source: SegmentSource[LinkedRule] = SegmentSource(self.segment, link_rule)
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        self._source = source
        self._engine = Engine(ClusterData(), clock)
        self._planner = ValidationPlanner(self._engine, source)

    def forget(self) -> None:
        """Evaluate the next object without cached verdicts."""
        self._engine.verdicts = VerdictCache()

    def plan(self, request: Request) -> ValidationPlan:
        plan = self._planner.plan(request, _FAIL, "")
        assert plan is not None
        return plan

    def explain(self, request: Request, policy: str) -> dict[str, tuple[str, str]]:
        """Evaluate one policy's explaining programs; return the result of each rule."""
        found: dict[str, tuple[str, str]] = {}
        for candidate in self._source.candidates(request):
            if candidate.policy.name == policy:
                rules = [ref.linked for ref in candidate.rules]
                linked = LinkedPolicy(candidate.policy, rules)
                response = self._engine.explain(linked, self._engine.open(request))
                found |= {r.rule: (r.status, r.message) for r in response.results}
        return found


def _request(name: str) -> Request:
    return decode(orjson.dumps(REVIEWS[name][0]))


@contextmanager
def _counted_calls() -> Iterator[Callable[[], int]]:
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        # The clock of the product is no Python function.
        count += event == "call" and _frame.f_code is not still_ns.__code__

    sys.setprofile(profile)
    try:
        yield lambda: count
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(("samples", "name"), _CALLS_MAX)
def test_calls_of_a_review(samples: str, name: str, tmp_path: Path) -> None:
    """Function calls dominate the time of a review."""
    loaded = _Loaded(tmp_path, 0, samples)
    deadline_ns = FAR_NS
    loaded.plan(_request(name)).enforce(deadline_ns)
    request = _request(name)
    loaded.forget()
    with _counted_calls() as calls:
        loaded.plan(request).enforce(deadline_ns)
        found = calls()
    assert found <= _CALLS_MAX[samples, name]


@pytest.mark.parametrize("name", ["allowed", "denied"])
def test_calls_of_a_review_with_another_pod(name: str, tmp_path: Path) -> None:
    """Pods of one ReplicaSet differ in their names, which no rule here reads."""
    loaded = _Loaded(tmp_path, 0)
    first = loaded.plan(_request(name)).enforce(0)
    document = orjson.dumps(REVIEWS[name][0]).replace(b"abcde", b"other")
    request = decode(document)
    with _counted_calls() as calls:
        again = loaded.plan(request).enforce(0)
        found = calls()
    assert again is first
    assert found <= _CALLS_KNOWN_MAX


def test_objects_that_never_recur_are_rarely_looked_up(tmp_path: Path) -> None:
    """Otherwise each object would also cost a cache key that is never used again."""
    loaded = _Loaded(tmp_path, 0)
    asked = []

    class _Counting(VerdictCache):
        def find(self, key: Any) -> CachedVerdict | None:
            asked.append(key)
            return super().find(key)

    loaded._engine.verdicts = _Counting()
    review = deepcopy(REVIEWS["allowed"][0])
    metadata = review["request"]["object"]["metadata"]
    for number in range(200):
        metadata["annotations"] = {"number": str(number)}
        loaded.plan(decode(orjson.dumps(review))).enforce(0)
    assert len(set(asked)) == len(asked) <= 45
    for _ in range(40):
        loaded.plan(decode(orjson.dumps(review))).enforce(0)
    assert len(asked) >= 65


def test_equal_outcomes_share_their_responses(tmp_path: Path) -> None:
    loaded = _Loaded(tmp_path, others=0)
    first = loaded.plan(_request("allowed")).enforce(0)
    again = loaded.plan(_request("allowed")).enforce(0)
    assert type(first) is SharedResponses
    assert again is first
    assert len(first) == 17
    assert not any(response.results for response in first)


def test_failures_at_equal_paths_share_their_responses(tmp_path: Path) -> None:
    loaded = _Loaded(tmp_path, others=0)
    first = loaded.plan(_request("denied")).enforce(0)
    again = loaded.plan(_request("denied")).enforce(0)
    assert any(response.results for response in first)
    assert again is first


def test_failures_at_other_paths_have_separate_messages(tmp_path: Path) -> None:
    loaded = _Loaded(tmp_path, others=0)
    first = loaded.plan(_request("denied")).enforce(0)
    request = _request("denied")
    containers = request.object["spec"]["containers"]
    containers.insert(0, _request("allowed").object["spec"]["containers"][0])
    second = loaded.plan(request).enforce(0)
    texts = [
        {rule.rule: rule.message for response in responses for rule in response.results}
        for responses in (first, second)
    ]
    assert any("/containers/0/" in text for text in texts[0].values())
    assert texts[1] == {
        rule: text.replace("/containers/0/", "/containers/1/")
        for rule, text in texts[0].items()
    }


def test_patterns_respect_the_deadline(tmp_path: Path) -> None:
    loaded = _Loaded(tmp_path, others=0)
    plan = loaded.plan(_request("allowed"))
    found = plan.enforce(1)
    assert len(found) == len(plan.left_out) == 17
    assert all(response.errored() for response in found)
    assert {type(error) for _, error in plan.left_out} == {DeadlinePassed}


def test_policies_that_do_not_match_are_never_decoded(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few, many = _Loaded(tmp_path / "few", 0), _Loaded(tmp_path / "many", 100)
    for loaded in (few, many):
        for _ in range(3):
            loaded.plan(_request("allowed")).enforce(0)
    assert many.segment.policy_count == few.segment.policy_count + 100
    assert many.segment.decoded_count == few.segment.decoded_count


@pytest.mark.parametrize("samples", ["policies", "cel"])
@pytest.mark.parametrize("name", ["allowed", "denied"])
def test_fast_and_explained_outcomes_agree(
    samples: str, name: str, tmp_path: Path
) -> None:
    """The webhook's response and a report have the same result."""
    loaded = _Loaded(tmp_path, 0, samples)
    request = _request(name)
    plan = loaded.plan(request)
    for response in plan.enforce(0):
        explained = loaded.explain(request, response.policy.name)
        told = {r.rule: (r.status, r.message) for r in response.results}
        assert told.items() <= explained.items()
        statuses = {rule: status for rule, (status, _) in told.items()}
        statuses |= dict.fromkeys(response.passed, "pass")
        statuses |= dict.fromkeys(response.skipped, "skip")
        assert statuses == {rule: status for rule, (status, _) in explained.items()}
