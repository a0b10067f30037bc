"""A new generation is linked before reviews use it, and only what has changed.

A failure means: after a change of a single policy, or in a restarted worker, the first
reviews link hundreds of policies, one after the other, and end at their deadline.
"""

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import Preempted
from kyverno_mp.limits import (
    LINKED_AHEAD_BYTES_MAX,
    LINKED_AHEAD_NS_MAX,
    LINKED_AHEAD_REFERENCES_MIN,
    LINKED_AHEAD_SLICE_NS,
)
from kyverno_mp.program.cel_policies import mutate
from kyverno_mp.program.image_policies import evaluate as images
from kyverno_mp.program.matching.rule_ref import Ahead
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.program.validating_policy import evaluate as validating
from kyverno_mp.program.validating_policy.group import Group
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from kyverno_mp.webhook.attach.ahead import LinkingAhead
from kyverno_mp.webhook.attach.followed import Aside, knows_or_waits
from kyverno_mp.webhook.collector import Collector
from perf.churn import KINDS
from tests.unit.webhook.cel.test_cel_policies import exception, policy
from tests.unit.webhook.cel.test_cel_worker import Service

COUNT = LINKED_AHEAD_REFERENCES_MIN + 8
LINKED: dict[str, type] = {
    "ClusterPolicy": LinkedRule,
    "ValidatingPolicy": validating.LinkedValidatingPolicy,
    "MutatingPolicy": mutate.LinkedMutatingPolicy,
    "ImageValidatingPolicy": images.LinkedImagePolicy,
}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker link everything before it serves, however slow the machine is."""
    monkeypatch.setattr("kyverno_mp.webhook.start.LINKED_AHEAD_ALONE_NS_MAX", 10**12)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.close()


class Links:
    """Counts the links of one kind; the class itself does the work."""

    def __init__(self, kind: type, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        init = vars(kind)["__init__"]

        def linked(*given: Any, **more: Any) -> None:
            self.count += 1
            init(*given, **more)

        patch.setattr(kind, "__init__", linked)

    def taken(self) -> int:
        """Return the count since the last call."""
        count, self.count = self.count, 0
        return count


def many(kind: str, changed: int = -1, without: int = -1) -> list[dict[str, Any]]:
    make = KINDS[kind][0]
    return [
        make(number, int(number == changed))
        for number in range(COUNT)
        if number != without
    ]


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("kind", KINDS)
def test_only_changes_are_linked(
    service: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    links = Links(LINKED[kind], monkeypatch)
    path = KINDS[kind][1]
    rules = 3 if kind == "ClusterPolicy" else 1
    """The policy's rule, and its copies for controllers and for CronJobs."""
    service.put(*many(kind))
    service.start()
    first = links.taken()
    assert first >= COUNT, "a restarted worker links before it serves"
    assert service.allows(path)
    assert links.taken() == 0, "a review of a Pod links nothing"
    for changed in range(3):
        service.put(*many(kind, changed))
        # The one that has changed, and the one that has changed back.
        assert 1 <= links.taken() <= 2 * rules
        assert service.allows(path)
        assert links.taken() == 0
    service.put(*many(kind, without=5))
    assert links.taken() <= rules
    assert service.allows(path)
    assert links.taken() == 0


def test_groups_of_recent_reviews_are_made_ahead(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of 1,000 policies takes the event loop 30 ms."""
    groups = Links(Group, monkeypatch)
    service.put(*many("ValidatingPolicy"))
    service.start()
    service.allows("/vpol")
    service.allows("/vpol/churn-1")
    assert groups.taken() == 2
    service.put(*many("ValidatingPolicy", 1))
    assert groups.taken() == 2
    service.allows("/vpol")
    assert groups.taken() == 0, "a review makes none"
    service.put(*many("ValidatingPolicy", 2))
    assert groups.taken() == 1, "a path that nobody uses any more is forgotten"


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_policies_are_freed(service: Service, kind: str) -> None:
    """Otherwise each change makes a worker larger."""
    before = alive(LINKED[kind])
    service.put(*many(kind))
    service.start()
    service.allows(KINDS[kind][1])
    linked = alive(LINKED[kind])
    assert linked - before >= COUNT
    for changed in range(6):
        service.put(*many(kind, changed))
        service.allows(KINDS[kind][1])
    service.put(*many(kind, 0, without=7))

    def is_level() -> bool:
        assert service.served is not None
        service.served.tick()
        return alive(LINKED[kind]) <= linked

    service.until(is_level)


def test_answers_are_those_of_the_new_generation(service: Service) -> None:
    """A policy that stays linked has its newest exceptions and its own position."""
    others = [policy(f"z{number}", {"expression": "true"}) for number in range(COUNT)]
    service.put(policy("m"), *others)
    service.start()
    assert not service.allows("/vpol")
    service.put(policy("m"), *others, exception("m"))
    assert service.allows("/vpol"), "the exception is new"
    service.put(policy("m"), *others)
    assert not service.allows("/vpol"), "the exception is gone"
    service.put(policy("a", {"expression": "true"}), policy("m"), *others[3:])
    assert not service.allows("/vpol"), "all positions have moved"
    service.put(*others)
    assert service.allows("/vpol"), "the policy is gone"


def test_few_policies_are_linked_on_demand(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker's memory grows with policies for objects it never sees."""
    links = Links(validating.LinkedValidatingPolicy, monkeypatch)
    elsewhere = [
        policy(f"p{number}", rules=[{**_RULE, "resources": [f"kind{number // 4}s"]}])
        for number in range(COUNT)
    ]
    service.put(*elsewhere)
    service.start()
    service.allows("/vpol")
    service.put(*elsewhere, policy())
    assert links.taken() <= 1


_RULE = {
    "apiGroups": ["example.com"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
}


def test_generation_is_reported_with_all_its_segments(service: Service) -> None:
    """Otherwise a policy is Ready although a worker does not have it."""
    service.put(policy())
    service.start()
    before = service.generations()[POLICIES]
    assert before
    file = service.snapshot / segment_file(VALIDATING_POLICY.segment)
    service.leader.step(force=True)
    (service.policies / "p.yaml").write_text(json.dumps(policy("other")))
    service.leader.step(force=True)
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    service.turn()
    assert service.generations()[POLICIES] == before
    file.write_bytes(whole)

    def is_reported() -> bool:
        assert service.served is not None
        # A rejected file is tried again once a second.
        service.served.tick()
        return service.generations()[POLICIES] == service.leader.generation

    service.until(is_reported)


def test_only_worker_serves_before_all_is_linked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody answers until it has linked thousands of policies."""
    monkeypatch.setattr("kyverno_mp.webhook.start.LINKED_AHEAD_ALONE_NS_MAX", -1)
    links = Links(validating.LinkedValidatingPolicy, monkeypatch)
    service.put(*many("ValidatingPolicy"))
    service.start()
    service.until(lambda: links.count == COUNT)
    assert service.allows("/vpol")
    # The review links the one that the other thread is still linking, and no more.
    assert links.count <= COUNT + 1


class Following:
    """A follower whose next generation is attached when somebody waits for it."""

    def __init__(self) -> None:
        self.is_behind = True
        self.segment = _Names(set())

    def current(self) -> "Following":
        return self

    def catch_up(self) -> None:
        self.is_behind = False
        self.segment = _Names({"new"})


class _Names:
    def __init__(self, names: set[str]) -> None:
        self.knows = names.__contains__

    def misses(self, _key: str) -> bool:
        return False


def test_review_waits_for_its_policy_in_a_thread() -> None:
    """The API server may send reviews for a policy that is being attached."""
    loop = threading.get_ident()

    def leave_loop() -> None:
        if threading.get_ident() == loop:
            raise Preempted("test.preempted", "not here")

    aside = Aside(lambda _attach: None, leave_loop)
    follower: Any = Following()
    with pytest.raises(Preempted):
        knows_or_waits(follower, aside, set(), "new")
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(knows_or_waits(follower, aside, set(), "new"))
    )
    thread.start()
    thread.join(60)
    assert found == [True]
    assert not knows_or_waits(follower, aside, set(), "nobody's"), "nothing is awaited"


class Linking:
    """A linker whose links take time on a clock of its own."""

    def __init__(self, link_ns: int) -> None:
        self.now_ns = 0
        self.links = 0
        self.errors: list[str] = []
        self.slept = 0
        self._link_ns = link_ns
        self.ahead = LinkingAhead(
            Collector(lambda: None),
            self.errors.append,
            2 * LINKED_AHEAD_NS_MAX,
            lambda: self.now_ns,
            self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now_ns += round(seconds * 1e9)

    def link(self) -> None:
        self.links += 1
        self.now_ns += self._link_ns

    def run(self, *steps: Ahead) -> int:
        """Return the number of links."""
        self.links = 0
        self.ahead.link([_Steps(steps)], None)
        return self.links


class _Steps:
    def __init__(self, steps: tuple[Ahead, ...]) -> None:
        self._steps = steps

    def take_over(self, _previous: object) -> list[Any]:
        raise AssertionError("there is no previous generation")

    def ahead(self, _previous: object) -> Iterator[Ahead]:
        return iter(self._steps)


def _fails() -> None:
    raise ValueError("cannot be linked")


def test_links_ahead_are_bounded() -> None:
    """Otherwise a generation with huge policies never comes into force."""
    bench = Linking(1)
    assert bench.run(*[Ahead(LINKED_AHEAD_BYTES_MAX // 4, bench.link)] * 10) == 4
    slow = Linking(LINKED_AHEAD_NS_MAX // 4)
    assert slow.run(*[Ahead(1, slow.link)] * 6) == 6
    assert slow.run(*[Ahead(1, slow.link)] * 6) == 3, "the time is for all kinds"
    assert slow.run(*[Ahead(1, slow.link)] * 6) == 0
    assert slow.ahead.begin_serving(), "the rest is linked while the worker serves"
    assert 4 <= slow.run(*[Ahead(1, slow.link)] * 10) <= 5, (
        "the time is for one generation"
    )


def test_links_ahead_leave_the_core_to_reviews() -> None:
    bench = Linking(LINKED_AHEAD_SLICE_NS // 4)
    bench.run(*[Ahead(1, bench.link)] * 100)
    assert bench.slept == 0, "nobody waits at the start"
    assert not bench.ahead.begin_serving()
    bench.run(*[Ahead(1, bench.link)] * 100)
    assert 15 <= bench.slept <= 25


def test_rule_that_fails_to_link_delays_no_other() -> None:
    bench = Linking(1)
    steps = Ahead(1, bench.link), Ahead(1, _fails), Ahead(1, bench.link)
    assert bench.run(*steps) == 2
    assert bench.errors == ["webhook.defect"]
