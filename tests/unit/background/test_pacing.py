"""A writer that reacts to each failed attempt causes no attempts without pauses."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kyverno_mp.background import pacing
from kyverno_mp.background.update_request import GENERATE, Task, Trigger
from tests.unit.background.world import (
    CONFIG_MAPS,
    REQUESTS,
    Term,
    identity,
    new_cluster,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_DATA = {"data": {"from": "{{request.object.metadata.annotations.value}}"}}
_POSTS = rf"POST {CONFIG_MAPS.format('a')}"
_FOR_EVER = [403] * 1000


def _task(raw: Json) -> Task:
    found = identity(raw)
    return Task(GENERATE, "p", "r", Trigger(found.pop("apiVersion"), **found))


def _submit(api: FakeApi, one: Term, raw: Json) -> None:
    assert one.background.requests.submit(_task(raw))


def _mark(api: FakeApi, one: Term, raw: Json) -> None:
    """Update the trigger's UpdateRequest, as the leader does after a review."""
    found = stored(api, f"{REQUESTS}/ur")
    if found is None:
        request(api, raw)
    else:
        api.put(f"{REQUESTS}/ur", **found)


@pytest.mark.parametrize("react", [_submit, _mark])
def test_a_writer_that_reacts_to_each_attempt(
    api: FakeApi, react: Callable[[FakeApi, Term, Json], None]
) -> None:
    """The first change causes an attempt at once, the next after 1, 2, 4, ... s."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        react(api, one, raw)
        tried_s, seen = [], 0
        for _ in range(80):
            one.settle()
            if api.count(_POSTS) > seen:
                seen = api.count(_POSTS)
                tried_s.append(one.time.now_s)
                react(api, one, raw)
            one.time.now_s += 0.5
        pauses = [b - a for a, b in pairwise(tried_s)]
        assert seen == len(tried_s)
        assert pauses[1:] == sorted(pauses[1:])
        assert 4 <= len(tried_s) <= 8
        # The rest needs no reaction.
        api.faults.clear()
        one.pass_s(60)
        assert stored(api, OUT) is not None
        assert requests_left(api) == []


@pytest.mark.parametrize("react", [_submit, _mark])
def test_a_failing_trigger_that_a_user_changes(
    api: FakeApi, react: Callable[[FakeApi, Term, Json], None]
) -> None:
    """The change is processed at once, although the next attempt is due later."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        react(api, one, raw)
        one.pass_s(100)
        api.faults.clear()
        react(api, one, raw)
        one.settle()
        assert stored(api, OUT) is not None


@pytest.mark.parametrize("react", [_submit, _mark])
def test_a_healthy_trigger_is_never_delayed(
    api: FakeApi, react: Callable[[FakeApi, Term, Json], None]
) -> None:
    """After a success, changes are processed at once, even after earlier failures."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, 403, 403)
        for _ in range(3):
            react(api, one, raw)
            one.pass_s(4)
        for value in "23456789":
            raw = trigger(api, value=value)
            react(api, one, raw)
            one.settle()
            assert (stored(api, OUT) or {})["data"] == {"from": value}


def test_other_work_of_the_trigger_causes_no_attempt(api: FakeApi) -> None:
    """A failing task waits, no matter how often other requests of its trigger run."""
    new_cluster(api)
    other = rule("other", data=_DATA)
    other["generate"]["namespace"] = "b"
    policy(api, rule(data=_DATA), other)
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        _submit(api, one, raw)
        one.settle()
        tried = api.count(_POSTS)
        for number in range(10):
            request(api, raw, name=f"ur-{number}", rules=("other",))
            one.settle()
        assert requests_left(api) == []
        assert api.count(_POSTS) == tried


def test_failing_requests_of_many_triggers_do_not_stay(
    api: FakeApi,
) -> None:
    """Otherwise, they would reach the threshold, from which all triggers wait."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api, threshold=lambda: 10) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        for number in range(20):
            request(api, raw, name=f"ur-{number}")
        one.settle()
        assert len(requests_left(api)) == 20
        one.pass_s(60)
        left = requests_left(api)
        assert len(left) == 4
        # The others have all their attempts.
        one.pass_s(60)
        assert requests_left(api) == left


def test_marks_of_failing_requests_of_many_triggers(api: FakeApi) -> None:
    """Requests do not stay because their triggers change all the time."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api, threshold=lambda: 10) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        names = [f"ur-{number}" for number in range(12)]
        for name in names:
            request(api, raw, name=name)
        one.settle()
        for _ in range(6):
            for name in names:
                found = stored(api, f"{REQUESTS}/{name}")
                if found is not None:
                    api.put(f"{REQUESTS}/{name}", **found)
            one.time.now_s += 5.0
            one.settle()
        assert len(requests_left(api)) == 4


def test_requests_of_others_have_all_their_attempts(api: FakeApi) -> None:
    """Neither waiting requests nor failing ones of a tenant shorten them."""
    new_cluster(api)
    policy(api, rule(data=_DATA))
    policy(api, rule(data=_DATA), name="other")
    raw = trigger(api)
    with term(api, threshold=lambda: 10) as one:
        one.settle()
        api.fault(_POSTS, *_FOR_EVER)
        for number in range(12):
            absent = {"name": f"x{number}", "uid": f"none{number}"}
            metadata = {**raw["metadata"], **absent}
            request(api, {**raw, "metadata": metadata}, name=f"waits-{number}")
        for number in range(9):
            request(api, raw, name=f"ur-{number}")
        request(api, raw, policy="other", name="other")
        one.settle()
        one.pass_s(12)
        left = requests_left(api)
        assert "other" in left
        assert len([name for name in left if name.startswith("ur-")]) == 3


def test_a_change_does_not_postpone_the_attempt_after_an_outage(api: FakeApi) -> None:
    new_cluster(api)
    policy(api, rule(data=_DATA))
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, *[503] * 1000)
        for _ in range(40):
            _mark(api, one, raw)
            one.settle()
            one.time.now_s += 5.0
        tried = api.count(_POSTS)
        # At most two attempts after 0.5, 1, 2, ... 30 s each.
        assert tried <= 40
        api.faults.clear()
        one.time.now_s += 35.0
        one.settle()
        assert stored(api, OUT) is not None


def test_a_crowd_of_one_tenant() -> None:
    crowd = pacing.Crowd(lambda: 8)
    found = [crowd.add(("k", f"a{number}"), "a/p") for number in range(6)]
    assert found == [False, False, False, True, True, True]
    assert not crowd.add(("k", "b"), "p")
    assert crowd.add(("k", "a0"), "a/q")
    for number in range(4):
        crowd.drop(("k", f"a{number}"))
    assert not crowd.add(("k", "a5"), "a/p")
