"""GeneratingPolicies: the reactions to watch events of generated objects.

A failure means: a policy writes in an endless loop, or clones outlive their source.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kyverno_mp.background.objects.written import Written
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import BACKGROUND_DECISIONS_MAX
from tests.unit.background.generating_world import (
    CEL,
    CLONE,
    CLONES,
    DATA,
    OUT,
    SOURCE,
    content,
    generated,
    held,
    policy,
    request,
    source,
    trigger,
)
from tests.unit.background.world import (
    SECRETS,
    Term,
    new_cluster,
    requests_left,
    stored,
)
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

Json = Any
RANDOM = DATA.replace('annotations["value"]', 'annotations["value"] + random()')
RANDOM_NAMES = DATA.replace('"out"', '"out-" + random("[a-z]{12}")')
ROUNDS = 20
"""More rounds than any change needs; an endless loop is cut off here."""


class LateAnswers(Client):
    """A client whose writes return after the watches have delivered the change."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(Pool(api.access), "late")
        api.clients.append(self)
        self.await_watches: Callable[[], None] = lambda: None

    def call(self, call: Call, deadline_ns: int = 0) -> bytes:
        answer = super().call(call, deadline_ns)
        if call.method in ("POST", "PUT", "PATCH", "DELETE"):
            self.await_watches()
        return answer


class HeldLists(Client):
    """Delays the watch of ConfigMaps until ``opened`` is set, or rejects it."""

    def __init__(self, api: FakeApi, *, refuses: bool = False) -> None:
        super().__init__(Pool(api.access), "held")
        api.clients.append(self)
        self.opened = threading.Event()
        self.refuses = refuses

    def call(self, call: Call, deadline_ns: int = 0) -> bytes:
        if threading.current_thread().name == "informer-configmaps":
            if self.refuses:
                raise DependencyError("kube.forbidden", "not allowed")
            assert self.opened.wait(HANG_S)
        return super().call(call, deadline_ns)


def settled(one: Term, *, is_watching: bool = True) -> bool:
    """Do the pending work for a limited number of rounds; return whether it ended.

    ``is_watching`` says whether the watches of generated objects can list them.
    """
    for _ in range(ROUNDS):
        if is_watching:
            one.catch_up()
        one.background.adopt()
        done = one.background.policy_controllers.work_due()
        if not done + one.background.controllers.work_due():
            return True
    return False


def aged(api: FakeApi, path: str, raw: Json, day: str) -> Json:
    """Set the creation time of an object."""
    metadata = {**raw["metadata"], "creationTimestamp": f"{day}T00:00:00Z"}
    return api.put(path, **{**raw, "metadata": metadata})


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("text", [RANDOM, RANDOM_NAMES], ids=["content", "names"])
def test_nondeterministic_policy(api: FakeApi, text: str, *, is_late: bool) -> None:
    """Otherwise, each write of the pool would look like a change and cause another."""
    aged(api, f"{CEL}/generatingpolicies/p", policy(api, text), "2026-01-01")
    client = LateAnswers(api)
    path = "/api/v1/namespaces/a/pods/t"
    with held(api, client=client) as one:
        if is_late:
            client.await_watches = one.catch_up
        request(api, aged(api, path, trigger(api), "2026-01-02"))
        assert settled(one)
        raw = aged(api, path, trigger(api, value="2"), "2026-01-02")
        request(api, raw, operation="UPDATE")
        assert settled(one)
    made = [key[3] for key in api.objects if key[2] == "configmaps"]
    assert len([name for name in made if name.startswith("out")]) == 1
    assert api.count("PUT .*/a/configmaps/") == (text == RANDOM)
    assert api.count("POST .*/a/configmaps") == 2


def test_concurrent_change_during_a_write_is_processed(api: FakeApi) -> None:
    """Otherwise, another writer's change during a write would remain for an hour."""
    policy(api)
    client = LateAnswers(api)
    with held(api, client=client) as one:
        generated(api, one)

        def change() -> None:
            client.await_watches = lambda: None
            raw = stored(api, OUT)
            assert raw is not None
            api.put(OUT, **{**raw, "data": {"from": "hand"}})
            one.catch_up()

        client.await_watches = change
        request(api, trigger(api, value="2"), operation="UPDATE")
        assert settled(one)
    assert content(api) == "2"


def test_pending_changes_during_a_write_are_bounded() -> None:
    """Otherwise, changes would use up memory while the API server does not answer."""
    written = Written(lambda: 0.0)
    decided: list[int] = []
    maps, key = core("configmaps"), ("a", "out")
    raw = {"metadata": {"namespace": "a", "name": "out"}}
    with written.writing(maps, raw):
        for number in range(BACKGROUND_DECISIONS_MAX + 1):
            written.when_written(maps, key, partial(decided.append, number))
        assert decided == [BACKGROUND_DECISIONS_MAX]
    assert sorted(decided) == list(range(BACKGROUND_DECISIONS_MAX + 1))
    written.when_written(maps, key, partial(decided.append, -1))
    assert decided[-1] == -1


BOTH = CLONES.replace(
    'resource.get("v1", "secrets", "z", "source")',
    'resource.get("v1", "secrets", "z", "source"),'
    ' resource.get("v1", "secrets", "z", "other")',
)
OTHER = f"{SECRETS.format('z')}/other"
OTHER_CLONE = f"{SECRETS.format('a')}/other"


def put_other(api: FakeApi) -> None:
    api.put(OTHER, apiVersion="v1", kind="Secret", data={"from": "1"})


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("gone", [[SOURCE], [SOURCE, OTHER], [OTHER, SOURCE]])
def test_sources_deleted_together(
    api: FakeApi, gone: list[str], *, is_held: bool
) -> None:
    """Otherwise, some or all of the clones would remain for ever."""
    source(api)
    put_other(api)
    policy(api, BOTH)
    with held(api) as one:
        generated(api, one)
        assert content(api, CLONE) == content(api, OTHER_CLONE) == "1"
        if is_held:
            for path in gone:
                api.remove(path)
            one.settle()
    if not is_held:
        # The sources are deleted while no replica holds the lease.
        for path in gone:
            api.remove(path)
        with held(api) as one:
            one.settle()
    assert stored(api, CLONE) is None
    assert content(api, OTHER_CLONE) == (None if OTHER in gone else "1")


def test_deleted_source_and_changed_trigger(api: FakeApi) -> None:
    """Otherwise, the later event would hide the earlier one and keep the clone."""
    source(api)
    policy(api, CLONES, DATA)
    with held(api) as one:
        generated(api, one)
        api.remove(SOURCE)
        raw = stored(api, OUT)
        assert raw is not None
        api.put(OUT, **{**raw, "data": {"from": "hand"}})
        one.settle()
    assert stored(api, CLONE) is None


def test_source_deleted_before_its_clone_is_seen(api: FakeApi) -> None:
    """Otherwise, a clone that was written a moment too late would remain for ever."""
    source(api)
    put_other(api)
    policy(api, CLONES)
    policy(api, CLONES.replace('"source")', '"other")'), name="q")

    def remove(method: str, target: str) -> None:
        if method == "POST" and target.startswith(SECRETS.format("a")):
            api.remove(OTHER)

    with held(api) as one:
        raw = generated(api, one)
        api.on_request = remove
        request(api, raw, name="other", policy_name="q")
        one.settle()
    assert content(api, CLONE) == "1"
    assert stored(api, OTHER_CLONE) is None


def test_a_change_before_the_first_list_of_a_watch_is_reverted(api: FakeApi) -> None:
    """A change between the comparison and the first list must not be lost."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    client = HeldLists(api)
    with held(api, client=client) as one:
        for informer in one.informers:
            wait_for(lambda informer=informer: informer.synced)  # type: ignore[misc]
        assert settled(one, is_watching=False)
        raw = stored(api, OUT)
        assert raw is not None
        api.put(OUT, **{**raw, "data": {"from": "hand"}})
        client.opened.set()
        one.settle()
    assert content(api) == "1"


def test_watch_that_cannot_list_delays_nothing(api: FakeApi) -> None:
    """Otherwise, changes made while no pool was running would remain."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    raw = stored(api, OUT)
    assert raw is not None
    api.put(OUT, **{**raw, "data": {"from": "hand"}})
    with held(api, client=HeldLists(api, refuses=True)) as one:
        one.background.adopt()
        watches = one.background.generating.watches
        wait_for(lambda: any(informer.failures >= 3 for informer in watches.informers))
        one.time.now_s += 10
        assert settled(one, is_watching=False)
    assert content(api) == "1"


def test_clones_stay_with_their_sources(api: FakeApi) -> None:
    """Otherwise, a take-over would delete clones or write them again."""
    source(api)
    put_other(api)
    policy(api, BOTH)
    with held(api) as one:
        generated(api, one)
    before = stored(api, CLONE), stored(api, OTHER_CLONE)
    with held(api) as one:
        one.settle()
        api.drop_watches()
        api.compact()
        one.settle()
    assert (stored(api, CLONE), stored(api, OTHER_CLONE)) == before
    assert requests_left(api) == []
