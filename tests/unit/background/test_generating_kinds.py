"""GeneratingPolicies: which kinds of generated objects are recorded and watched.

A failure means: one namespace's policies keep others from noticing changes, or a policy
that never generated anything uses up slots for watches.
"""

from typing import Any

import pytest

from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generating.events import GeneratingEvents
from kyverno_mp.background.generating.quota import chosen
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.update_request import Task
from kyverno_mp.limits import GENERATED_KINDS_MAX, GENERATED_KINDS_OF_NAMESPACE_MAX
from kyverno_mp.telemetry.families import BACKGROUND_UNWATCHED
from tests.unit.background.generating_world import (
    CEL,
    OUT,
    content,
    generated,
    held,
    policy,
    request,
    trigger,
)
from tests.unit.background.world import CONFIG_MAPS, Term, new_cluster, stored
from tests.unit.cleanup.cluster import held_for, resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

Json = Any
RECORD = f"{CONFIG_MAPS.format('kyverno')}/kyverno-mp-background"
BEYOND = GENERATED_KINDS_OF_NAMESPACE_MAX
FORBIDDEN = {"code": 403, "reason": "Forbidden", "message": "may not do that"}


def places(name: str, count: int) -> list[tuple[str, str]]:
    return [(name, f"k{number:03}") for number in range(count)]


WANTED: list[tuple[str, Json, dict[str, int]]] = [
    ("one namespace", {"a/p": places("a", 100)}, {"a": BEYOND}),
    (
        "two policies of a namespace",
        {"a/p": places("a", 5), "a/q": places("b", 5)},
        {"a": 5, "b": BEYOND - 5},
    ),
    (
        "cluster policies first",
        {"a/p": places("a", 3), "p": places("z", GENERATED_KINDS_MAX)},
        {"z": GENERATED_KINDS_MAX},
    ),
    (
        "cluster policies beyond the bound",
        {"p": places("y", GENERATED_KINDS_MAX), "q": places("z", 3)},
        {"y": GENERATED_KINDS_MAX},
    ),
    (
        "namespaces in turn",
        {f"n{one:02}/p": places(f"n{one:02}", BEYOND) for one in range(32)},
        {f"n{one:02}": GENERATED_KINDS_MAX // 32 for one in range(32)},
    ),
    (
        "what cluster policies generate costs a namespace nothing",
        {"p": places("z", 20), "a/p": [*places("z", 20), *places("zz", BEYOND)]},
        {"z": 20, "zz": BEYOND},
    ),
]


@pytest.mark.parametrize(
    ("_name", "wanted", "counts"), WANTED, ids=[one[0] for one in WANTED]
)
def test_watched_kinds(_name: str, wanted: Json, counts: dict[str, int]) -> None:
    """Otherwise, one author could use up the watches that others need."""
    found = chosen(wanted)
    groups = [group for group, _ in found]
    assert {group: groups.count(group) for group in set(groups)} == counts
    assert len(found) <= GENERATED_KINDS_MAX


def kind_policy(api: FakeApi, count: int, **changes: Any) -> None:
    """Store a policy that generates one object each of ``count`` kinds."""
    objects = ", ".join(
        f'{{"apiVersion": dyn("example.com/v1"), "kind": dyn("K{number}"),'
        ' "metadata": dyn({"name": "out"})}'
        for number in range(count)
    )
    policy(api, f'generator.apply("a", [{objects}])', **changes)


def path(number: int) -> str:
    return f"/apis/example.com/v1/namespaces/a/k{number}s/out"


def watched(one: Term) -> set[str]:
    informers = one.background.generating.watches.informers
    return {each.scope.resource.plural for each in informers}


def recorded(api: FakeApi) -> set[str]:
    """Return the kinds that are recorded for policies."""
    text = str((stored(api, RECORD) or {}).get("data"))
    return {kind for kind in ("ConfigMap", "K0", "K1") if f'"{kind}"' in text}


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)
    kinds = [resource(f"k{one}s", f"K{one}") for one in range(BEYOND + 1)]
    for one, each in enumerate(kinds):
        each["responseKind"].update(group="example.com", kind=f"K{one}")
    serve_kinds(api, ("example.com", "v1", kinds))


def test_namespace_limit_is_reported(api: FakeApi) -> None:
    """Otherwise, one namespace could use up all slots without a message."""
    kind_policy(api, BEYOND + 1, namespace="a")
    policy(api)
    with held(api) as one:
        raw = generated(api, one, policy_name="a/p")
        request(api, raw, name="cluster")
        one.settle()
        wanted = {f"k{number}s" for number in range(BEYOND)}
        assert watched(one) == wanted | {"configmaps"}
        for _ in range(2):
            one.background.report()
        (event,) = [each for each in one.recorded.events if "not watched" in each.note]
        assert event.reason == "PolicyError"
        assert event.regarding.kind == "NamespacedGeneratingPolicy"
        assert f"k{BEYOND}s.example.com (more than" in event.note
        assert one.recorded.counts[BACKGROUND_UNWATCHED.name, ()] == 1
        assert any("are not watched" in text for text in one.background.problems())
        # The change goes unnoticed until the next scan reverts it.
        made = stored(api, path(BEYOND))
        assert made is not None
        api.put(path(BEYOND), **{**made, "data": "hand"})
        one.settle()
        assert (stored(api, path(BEYOND)) or {}).get("data") == "hand"
        one.pass_s(3700)
        assert "data" not in (stored(api, path(BEYOND)) or {"data": ""})
        one.background.report()
        notes = [note for note in one.recorded.notes() if "not watched" in note]
        assert len(notes) == 2
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
        assert "configmaps" not in watched(one)


def test_unwatchable_kind_is_reported(api: FakeApi) -> None:
    """Otherwise, users would not learn that changes go unnoticed."""
    for _ in range(20):
        api.fault("GET .*/k0s[?].*watch=1", FORBIDDEN)
    kind_policy(api, 1)
    with held(api) as one:
        raw = trigger(api)
        request(api, raw)
        one.background.adopt()
        for informer in one.informers:
            wait_for(lambda each=informer: one._is_current(each, api.version))  # type: ignore[misc]
        one.background.controllers.work_due()
        wait_for(one.background.generating.watches.unwatched)
        one.background.report()
        (note,) = [each for each in one.recorded.notes() if "not watched" in each]
        assert "k0s.example.com (" in note
        assert "may not do that" in note
        assert one.recorded.counts[BACKGROUND_UNWATCHED.name, ()] == 1


@pytest.mark.parametrize("count", [1, 2])
def test_kind_never_written_takes_no_slot(api: FakeApi, count: int) -> None:
    """Otherwise, a policy without permissions would use up slots for ever."""
    for _ in range(1000):
        api.fault("POST .*/k0s", FORBIDDEN)
    kind_policy(api, count)
    with held(api) as one:
        generated(api, one)
        assert recorded(api) == {"K0", "K1"} - {f"K{count}"}
        assert watched(one) == {"K0": set(), "K1": {"k1s"}}[f"K{count - 1}"]
        # All attempts fail until the next scan.
        one.pass_s(3700)
        if count == 1:
            assert recorded(api) == set()
        with api.lock:
            api.faults.clear()
        request(api, trigger(api), name="again")
        one.settle()
        assert watched(one) == {f"k{number}s" for number in range(count)}
        assert recorded(api) == {f"K{number}" for number in range(count)}


def test_unmanaged_object_takes_no_slot(api: FakeApi) -> None:
    """Otherwise, another writer's object would be watched for a policy."""
    api.put(OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
    policy(api)
    with held(api) as one:
        generated(api, one)
        assert watched(one) == set()
        one.pass_s(3700)
    assert recorded(api) == set()
    assert content(api) == "hand"


@pytest.mark.parametrize("writes", range(8))
def test_holder_that_ends_between_record_and_write(api: FakeApi, writes: int) -> None:
    """Otherwise, an object would have no record, or a record would have no objects."""
    kind_policy(api, 1)
    request(api, trigger(api))
    with held(api, holds_lease=held_for(writes)) as one:
        one.settle()
    if stored(api, path(0)) is not None:
        assert recorded(api) == {"K0"}
    with held(api) as one:
        one.settle()
        assert watched(one) == {"k0s"}
        api.remove(path(0))
        one.settle()
        assert stored(api, path(0)) is not None
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
        assert watched(one) == set()
    assert stored(api, path(0)) is None
    assert recorded(api) == set()


def test_kind_that_is_served_again_is_watched(api: FakeApi) -> None:
    """Otherwise, a pool that starts while a CRD is replaced would never watch it."""
    kind_policy(api, 1)
    with held(api) as one:
        generated(api, one)
    served = dict(api.answers)
    serve_kinds(api)
    with held(api) as one:
        one.settle()
        assert watched(one) == set()
        made = stored(api, path(0))
        assert made is not None
        api.put(path(0), **{**made, "data": "hand"})
        api.answers.update(served)
        one.pass_s(60)
        assert watched(one) == {"k0s"}
        assert "data" not in (stored(api, path(0)) or {"data": ""})
        api.remove(path(0))
        one.settle()
        assert stored(api, path(0)) is not None


def test_task_dropped_during_a_sync_is_not_lost(api: FakeApi) -> None:
    """Otherwise, a change that the full queue rejected stays until the next scan."""
    policy(api)
    with held(api) as one:
        generated(api, one)
        parts, kinds = one.background.generating, Kinds(api.client(), one.time)
        tasks: list[Task] = []

        def submit(task: Task) -> bool:
            tasks.append(task)
            if len(tasks) == 1:
                # What a watch does whose task was dropped.
                events.forget_sync("p")
            return True

        events = GeneratingEvents(
            one.dependencies,
            parts.policies,
            Existing(one.dependencies, kinds),
            Downstream(api.client(), kinds, lambda: True, one.time),
            parts.register,
            submit=submit,
            awaits_watches=lambda _policy: False,
        )
        for wanted in (1, 2, 2):
            events.reconcile("p")
            assert len(tasks) == wanted
