"""Failures that look like an outage, but concern a single rule or kind.

An outage counts as no attempt and stops all work until it ends. A rule of a tenant must
not be able to have that effect.
"""

import threading
from dataclasses import replace
from typing import Any

import pytest

from kyverno_mp.background import slow as slow_module
from kyverno_mp.background.slow import PAUSE_S, SlowTenants
from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import BACKGROUND_REQUESTS
from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    REQUESTS,
    Term,
    data_of,
    new_cluster,
    of_open,
    open_trigger,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

Json = Any
_URL = "http://slow.example"
_WEBHOOK = (
    'Internal error occurred: failed calling webhook "w.example.io": failed to call'
    ' webhook: Post "https://w.a.svc:443/": no endpoints available'
)
_CONVERSION = (
    "conversion webhook for example.io/v1, Kind=Widget failed: Post"
    ' "https://w.a.svc:443/": no endpoints available'
)
_DATA = {"data": {"a": "b"}}


class _Slow:
    """A service that does not answer within the time of a rule."""

    def call(self, _request: Any, _deadline_ns: int) -> Json:
        raise DeadlinePassed("egress.deadline", "slow.example did not answer in time")

    fetch = call


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def _slow(name: str = "r") -> Json:
    one = of_open(rule(name, data={"data": {"a": "{{slow.a}}"}}))
    call = {"service": {"url": _URL}, "method": "GET"}
    return {**one, "context": [{"name": "slow", "apiCall": call}]}


def _failed(status: int, message: str) -> Json:
    return {"code": status, "reason": "InternalError", "message": message}


def _is_given_up(one: Term) -> bool:
    """Let all attempts pass; return whether the last one was counted."""
    for _ in range(4):
        one.pass_s(300)
    name, labels = BACKGROUND_REQUESTS.name, ("generate", "dropped_failing")
    return one.recorded.counts.get((name, labels)) == 1


def _lost(api: FakeApi) -> None:
    api.put(
        f"{REQUESTS}/lost",
        apiVersion="kyverno.io/v2",
        kind="UpdateRequest",
        metadata={"annotations": {"kyverno-mp.io/lost-since": "1"}},
        spec={"requestType": "generate", "policy": "", "ruleContext": []},
    )


def test_a_rule_that_exceeds_its_time(api: FakeApi) -> None:
    """It fails, and has as many attempts as any other rule."""
    policy(api, _slow())
    with term(api, cluster_data=replace(data_of(api), api_calls=_Slow())) as one:
        one.settle()
        request(api, open_trigger(api))
        one.settle()
        found = stored(api, f"{REQUESTS}/ur")
        assert found is not None
        assert found["status"]["state"] == "Failed"
        assert found["status"]["message"] == "slow.example did not answer in time"
        (note,) = one.recorded.notes()
        assert note == "policy p/r error: slow.example did not answer in time"
        assert _is_given_up(one)
        assert requests_left(api) == []


def test_a_rule_of_others_after_one_that_exceeds_its_time(api: FakeApi) -> None:
    """Lost triggers of other policies are processed."""
    policy(api, _slow(), name="a-slow")
    policy(api, of_open(rule(data=_DATA)), name="fast")
    with term(api, cluster_data=replace(data_of(api), api_calls=_Slow())) as one:
        one.settle()
        open_trigger(api)
        _lost(api)
        one.pass_s(40)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t")


def test_a_rule_of_others_while_many_triggers_wait_for_a_service(api: FakeApi) -> None:
    """One thread is kept free of slow rules."""
    starts, released = threading.Event(), threading.Event()
    waiting: list[Any] = []

    class Blocking(_Slow):
        def call(self, request: Any, deadline_ns: int) -> Json:
            one.time.now_s += 30.0
            if starts.is_set():
                waiting.append(request)
                released.wait(HANG_S)
            return super().call(request, deadline_ns)

    policy(api, _slow(), name="slow")
    policy(api, of_open(rule(data=_DATA)), name="fast")
    settings = Settings(namespace="kyverno", background_workers=3)
    data = replace(data_of(api), api_calls=Blocking())
    with term(api, cluster_data=data, settings=settings) as one:
        one.settle()
        request(api, open_trigger(api), policy="slow")
        one.settle()
        for number in range(8):
            raw = open_trigger(api, f"t{number}")
            request(api, raw, name=f"ur-{number}", policy="slow")
        request(api, open_trigger(api, "late"), name="ur-late", policy="fast")
        one.catch_up()
        starts.set()
        work = one.background.controllers.work
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: stored(api, f"{CONFIG_MAPS.format('a')}/out-late"))
        wait_for(lambda: len(waiting) >= 2)
        assert len(waiting) == 2
        released.set()
        one.background.queue.shut_down(drain=False)
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


def test_slow_tenants() -> None:
    now_s = [0.0]
    woken: list[str] = []
    slow = SlowTenants(lambda: now_s[0], 3, woken.append)

    def run(policy: str, seconds: float = 0.0, key: str = "") -> bool:
        with slow.turn(policy, key) as has_turn:
            now_s[0] += seconds
        return has_turn

    def fail_late(policy: str) -> None:
        with slow.turn(policy, ""):
            now_s[0] += 30.0
            raise DeadlinePassed("kube.deadline", "an outage")

    assert run("a/p", 3.0)
    with pytest.raises(DeadlinePassed):
        fail_late("q")
    with slow.turn("a/p", "1"):
        with slow.turn("a/other", "2"):
            # Two of three threads are taken.
            assert not run("a/p", key="3")
            assert run("q")
            assert run("b/p", 3.0)
            assert not run("b/p", key="4")
            assert woken == []
        assert woken == ["3"]
    assert woken == ["3", "4"]
    assert run("a/p")
    assert run("b/p")
    with slow.turn("a/p", ""), slow.turn("a/p", ""):
        now_s[0] += 301.0
        assert run("a/p")


def test_slow_tenants_of_a_pool_with_one_thread() -> None:
    """Others have their turn after each piece of slow work, not after all of it."""
    now_s = [0.0]
    woken: list[str] = []
    slow = SlowTenants(lambda: now_s[0], 1, woken.append)

    def run(policy: str, seconds: float = 0.0, key: str = "") -> bool:
        with slow.turn(policy, key) as has_turn:
            now_s[0] += seconds * has_turn
        return has_turn

    assert run("a/p", 30.0, "1")
    for _ in range(3):
        assert not run("a/p", 30.0, "2")
        assert not run("a/other", 30.0, "3")
        # More than one piece of work that is not slow fits in.
        assert run("b/p", 1.0)
        assert run("q", 1.0)
        now_s[0] += PAUSE_S
        assert run("a/other", 30.0, "3")
    assert woken == []
    # Fast work of a slow tenant causes no pause.
    now_s[0] += PAUSE_S
    assert run("a/p")
    assert run("a/p")


def test_key_that_had_its_turn_is_not_woken() -> None:
    """Otherwise, the keys that wait would be woken later, or only after their pause."""
    woken: list[str] = []
    slow = SlowTenants(lambda: now_s[0], 2, woken.append)
    now_s = [0.0]
    with slow.turn("a/p", "0"):
        now_s[0] += 3.0
    with slow.turn("a/p", "0"):
        for key in ("1", "2"):
            with slow.turn("a/p", key) as has_turn:
                assert not has_turn
    assert woken == ["1"]
    with slow.turn("a/p", "2"), slow.turn("a/p", "3") as has_turn:
        assert not has_turn
    assert woken == ["1", "3"]


def test_slow_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each slow policy that is deleted would stay in memory."""
    now_s = [0.0]
    slow = SlowTenants(lambda: now_s[0], 3, lambda _key: None)

    def run(policy: str) -> None:
        with slow.turn(policy, ""):
            now_s[0] += 3.0

    for number in range(200):
        run(f"p{number}")
        assert len(slow) <= 100
    now_s[0] += 300.0
    run("last")
    assert len(slow) == 1
    monkeypatch.setattr(slow_module, "BACKGROUND_SLOW_TENANTS_MAX", 3)
    for number in range(5):
        run(f"p{number}")
    assert len(slow) == 3


def test_triggers_of_a_rule_that_was_slow_once(api: FakeApi) -> None:
    """One slow call, e.g. after an outage, does not make the others wait for pauses."""
    first: list[Any] = []

    class SlowOnce:
        def call(self, request: Any, _deadline_ns: int) -> Json:
            if not first:
                one.time.now_s += 5.0
            first.append(request)
            return {"a": "b"}

    policy(api, _slow(), name="slow")
    settings = Settings(namespace="kyverno", background_workers=3)
    data = replace(data_of(api), api_calls=SlowOnce())
    with term(api, cluster_data=data, settings=settings) as one:
        one.settle()
        request(api, open_trigger(api), policy="slow")
        one.settle()
        for number in range(60):
            raw = open_trigger(api, f"t{number}")
            request(api, raw, name=f"ur-{number}", policy="slow")
        one.catch_up()
        work = one.background.controllers.work
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        wanted = [f"{CONFIG_MAPS.format('a')}/out-t{number}" for number in range(60)]
        # The clock stands still, so no pause ends.
        wait_for(lambda: all(stored(api, path) for path in wanted))
        one.background.queue.shut_down(drain=False)
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("message", [_WEBHOOK, _CONVERSION])
def test_a_webhook_that_fails(api: FakeApi, message: str) -> None:
    """It concerns one kind: the request fails, and is not repeated for ever."""
    policy(api, of_open(rule(data=_DATA)))
    api.fault("POST .*/configmaps", *[_failed(500, message)] * 1000)
    with term(api) as one:
        one.settle()
        request(api, open_trigger(api))
        one.settle()
        found = stored(api, f"{REQUESTS}/ur")
        assert found is not None
        assert message in found["status"]["message"]
        assert _is_given_up(one)
        assert requests_left(api) == []


@pytest.mark.parametrize(
    "message", ["etcdserver: request timed out", "failed: " + _WEBHOOK]
)
def test_another_error_of_the_server(api: FakeApi, message: str) -> None:
    """It may concern everything, so it uses up no attempt."""
    policy(api, of_open(rule(data=_DATA)))
    api.fault("POST .*/configmaps", *[_failed(500, message)] * 1000)
    with term(api) as one:
        one.settle()
        request(api, open_trigger(api))
        assert not _is_given_up(one)
        assert requests_left(api) == ["ur"]
        api.faults.clear()
        one.pass_s(40)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t")


def test_other_objects_of_a_rule_whose_webhook_fails(api: FakeApi) -> None:
    """They are written."""
    entry = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a", "data": _DATA}
    made = of_open(rule())
    made["generate"] = {
        "synchronize": True,
        "foreach": [{**entry, "list": "['one', 'two']", "name": "{{element}}"}],
    }
    policy(api, made, useServerSideApply=True)
    api.fault("PATCH .*/configmaps/one", *[_failed(500, _WEBHOOK)] * 1000)
    with term(api) as one:
        one.settle()
        request(api, open_trigger(api))
        one.settle()
        assert stored(api, f"{CONFIG_MAPS.format('a')}/two")
        api.faults.clear()
        one.pass_s(10)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/one")


def test_a_deleted_policy_with_objects_that_cannot_be_converted(api: FakeApi) -> None:
    """The objects are deleted when they can be listed again."""
    of_any = of_open(rule(data=_DATA))
    of_any["generate"]["kind"] = (
        "{{request.object.metadata.labels.kind || 'ConfigMap'}}"
    )
    policy(api, of_any)
    with term(api) as one:
        one.settle()
        request(api, open_trigger(api))
        one.settle()
        path = f"{CONFIG_MAPS.format('a')}/out-t"
        assert stored(api, path)
        api.fault(r"GET /api/v1/configmaps\?", *[_failed(500, _CONVERSION)] * 1000)
        api.remove(f"{POLICIES}/p")
        one.settle()
        assert stored(api, path)
        api.faults.clear()
        one.pass_s(120)
        assert stored(api, path) is None
