"""An informer has every object despite failures of its lists and watches."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube import cache as cache_module
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.resource import Key, Resource, core
from kyverno_mp.kube.watch import WatchScope, list_all, list_pages
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

PODS = core("pods")
NAMESPACES = core("namespaces", namespaced=False)


class Labels(msgspec.Struct):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Labelled(msgspec.Struct):
    metadata: Labels


def labels_of(raw: msgspec.Raw) -> dict[str, str]:
    return msgspec.json.decode(raw, type=Labelled).metadata.labels


@contextmanager
def informing(
    api: FakeApi, resource: Resource = PODS, silence_s: float = 90.0
) -> Iterator[tuple[Informer[dict[str, str]], list[Key]]]:
    scope = WatchScope(resource=resource)
    informer = Informer(api.client(), scope, labels_of, silence_s=silence_s)
    keys: list[Key] = []
    informer.on_change(keys.append)
    informer.start()
    try:
        assert informer.wait_synced(60)
        yield informer, keys
    finally:
        informer.stop()


def pod(api: FakeApi, name: str, **labels: str) -> None:
    path = f"/api/v1/namespaces/a/pods/{name}"
    api.put(path, metadata={"labels": labels}, spec={"big": "x" * 100})


def test_changes_arrive_as_keys_and_projections(api: FakeApi) -> None:
    pod(api, "one", app="1")
    with informing(api) as (informer, keys):
        assert informer.snapshot() == {("a", "one"): {"app": "1"}}
        pod(api, "two", app="2")
        wait_for(lambda: len(informer) == 2)
        pod(api, "one", app="3")
        wait_for(lambda: informer.get(("a", "one")) == {"app": "3"})
        api.remove("/api/v1/namespaces/a/pods/two")
        wait_for(lambda: len(informer) == 1)
        assert keys == [("a", name) for name in ("one", "two", "one", "two")]


def test_expired_page_restarts_the_list(api: FakeApi) -> None:
    for number in range(1201):
        pod(api, f"p{number}")
    api.fault("continue=500", "expire")
    seen: set[bytes] = set()
    version = list_all(
        api.client(),
        WatchScope(resource=PODS),
        lambda r: seen.add(bytes(r)),
        restart=seen.clear,
    )
    assert len(seen) == 1201
    assert version == str(api.version)
    assert api.count("GET .*limit=500") == 5


def test_oversized_page_is_halved(api: FakeApi) -> None:
    for number in range(40):
        path = f"/api/v1/namespaces/a/pods/p{number}"
        api.put(path, data="x" * (1024 * 1024))
    count: list[int] = []
    list_all(
        api.client(),
        WatchScope(resource=PODS),
        lambda raw: count.append(len(raw)),
        restart=count.clear,
    )
    assert len(count) == 40


def test_gone_causes_a_new_list_and_reports_the_difference(api: FakeApi) -> None:
    pod(api, "stays")
    pod(api, "goes")
    with informing(api) as (informer, keys):
        wait_for(lambda: api.watching == 1)
        keys.clear()
        api.bookmarks = False
        with api.lock:
            api.silent = True
        api.remove("/api/v1/namespaces/a/pods/goes")
        pod(api, "comes")
        api.compact()
        api.drop_watches()
        api.silent = False
        wait_for(lambda: informer.lists == 2)
        assert set(informer.snapshot()) == {("a", "stays"), ("a", "comes")}
        wait_for(lambda: sorted(keys) == [("a", "comes"), ("a", "goes")])


def test_dropped_watch_resumes_where_it_stopped(api: FakeApi) -> None:
    with informing(api) as (informer, _):
        wait_for(lambda: api.watching == 1)
        pod(api, "one")
        wait_for(lambda: len(informer) == 1)
        api.drop_watches()
        pod(api, "two")
        wait_for(lambda: len(informer) == 2)
        assert informer.lists == 1


def test_throttled_watch_honours_retry_after(api: FakeApi) -> None:
    pod(api, "one")
    api.fault("watch=1", ("retry", 429, 1))
    with informing(api) as (informer, _):
        wait_for(lambda: api.watching > 0)
        assert informer.lists == 1


def test_silent_watch_is_replaced(api: FakeApi) -> None:
    """A server that is silent without closing must not freeze the cache."""
    with informing(api, silence_s=0.2) as (informer, _):
        wait_for(lambda: api.watching >= 1)
        with api.lock:
            api.silent = True
        pod(api, "unheard")
        wait_for(lambda: api.count("watch=1") >= 2)
        api.silent = False
        wait_for(lambda: informer.get(("a", "unheard")) == {})
        assert informer.lists == 1


def test_internal_error_causes_a_new_list(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    with informing(api) as (informer, keys):
        failing = [True]

        def fail(_key: Key) -> None:
            if failing.pop() if failing else False:
                raise KeyError("a defect")

        informer.on_change(fail)
        pod(api, "one", app="1")
        wait_for(lambda: informer.lists == 2)
        pod(api, "two", app="2")
        wait_for(lambda: informer.get(("a", "two")) == {"app": "2"})
        assert ("a", "two") in keys
    assert "unexpected error, listing again" in caplog.text


def test_expired_list_forgets_objects_that_are_gone(api: FakeApi) -> None:
    """Otherwise, the cache has an object that no watch will ever report as deleted."""
    for number in range(600):
        pod(api, f"p{number:03}")
    pod(api, "gone")
    api.fault("continue=500", "expire")

    def on_request(_method: str, target: str) -> None:
        if "continue=500" in target:
            api.on_request = lambda _method, _target: None
            api.remove("/api/v1/namespaces/a/pods/gone")
            pod(api, "p000", app="new")

    api.on_request = on_request
    with informing(api) as (informer, keys):
        assert len(informer) == 600
        assert informer.get(("a", "gone")) is None
        assert informer.get(("a", "p000")) == {"app": "new"}
        wait_for(lambda: len(keys) == 600)


@pytest.mark.parametrize(
    "error", [KeyError("a defect"), KubeUnavailable("kube.network", "an outage")]
)
def test_failed_handler_gets_the_keys_again(api: FakeApi, error: Exception) -> None:
    """Otherwise, a change is lost until the next one, or the rest of a list."""
    for name in ("one", "two", "three"):
        pod(api, name)
    informer = Informer(api.client(), WatchScope(resource=PODS), labels_of)
    errors = [error]
    keys: list[Key] = []

    def note(key: Key) -> None:
        if errors:
            raise errors.pop()
        keys.append(key)

    informer.on_change(note)
    informer.start()
    try:
        wait_for(lambda: len(keys) == 3)
        assert {name for _, name in keys} == {"one", "two", "three"}
        wait_for(lambda: api.watching == 1)
        errors.append(error)
        pod(api, "one", app="2")
        wait_for(lambda: len(keys) == 4)
        assert keys[-1] == ("a", "one")
    finally:
        informer.stop()


def test_handler_that_always_fails_causes_no_further_lists(api: FakeApi) -> None:
    pod(api, "one")
    pod(api, "two")
    calls: list[Key] = []

    def fail(key: Key) -> None:
        calls.append(key)
        if key == ("a", "one"):
            raise KeyError("a defect")

    informer = Informer(api.client(), WatchScope(resource=PODS), labels_of)
    informer.on_change(fail)
    informer.start()
    try:
        wait_for(lambda: api.watching == 1)
        assert calls.count(("a", "two")) == 1
        assert calls.count(("a", "one")) == 2
        assert informer.lists == 3
        pod(api, "two", app="2")
        wait_for(lambda: calls.count(("a", "two")) == 2)
    finally:
        informer.stop()


def test_failures_at_the_start_only_cause_a_delay(api: FakeApi) -> None:
    pod(api, "one")
    api.fault("GET", 500, "cut", ("retry", 429, 0), 503)
    with informing(api) as (informer, _):
        assert len(informer) == 1


def test_failures_are_reset_after_a_success(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing changes for minutes, no event shows that the server has recovered."""
    monkeypatch.setattr(cache_module, "_PAUSE_S", 0.001)
    api.bookmarks = False
    api.fault("GET", *([403] * 5))
    with informing(api) as (informer, _):
        wait_for(lambda: api.watching == 1)
        wait_for(lambda: informer.failures == 0)
        api.fault("watch=1", *([403] * 5))
        api.drop_watches()
        wait_for(lambda: informer.failures > 0)
        wait_for(lambda: api.watching == 1)
        wait_for(lambda: informer.failures == 0)


def test_silent_server_is_unhealthy(api: FakeApi) -> None:
    api.bookmarks = False
    with informing(api, silence_s=0.05) as (informer, _):
        wait_for(lambda: informer.failures > 3)
        pod(api, "one")
        wait_for(lambda: informer.failures == 0)


def test_retry_now_ends_a_pause(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_PAUSE_S", 60.0)
    with informing(api) as (informer, _):
        wait_for(lambda: api.watching == 1)
        # A watch that ends at once without an event counts as failed.
        api.drop_watches()
        wait_for(lambda: informer.failures == 1)
        assert api.watching == 0
        informer.retry_now()
        wait_for(lambda: api.watching == 1)


def test_resource_version_in_the_future_is_dropped(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore from a backup, the server rejects our version for ever."""
    pod(api, "one")
    monkeypatch.setattr(cache_module, "_PAUSE_S", 0.001)
    with informing(api) as (informer, _):
        wait_for(lambda: api.watching == 1)
        api.fault("watch=1", *([504] * cache_module._RELIST_AFTER))
        api.drop_watches()
        wait_for(lambda: informer.lists == 2)


def test_cluster_scoped_objects_have_no_namespace(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a", metadata={"labels": {"team": "x"}})
    with informing(api, NAMESPACES) as (informer, _):
        assert informer.get(("", "a")) == {"team": "x"}


def test_malformed_object_is_skipped(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a/pods/odd", metadata={"labels": {"n": 1}})
    pod(api, "even")
    with informing(api) as (informer, _):
        assert set(informer.snapshot()) == {("a", "even")}
        assert informer.malformed == 1


def test_whole_projection_keeps_the_text() -> None:
    assert whole(msgspec.Raw(b'{"a": 1}')) == b'{"a": 1}'


def test_pages_are_passed_on_and_announce_a_restart(api: FakeApi) -> None:
    """A caller that forwards pages has to know which pages to discard."""
    for number in range(5):
        api.put(f"/api/v1/namespaces/default/pods/p{number}")
    api.faults.append((r"pods\?.*continue=2", "expire"))
    pages = list(
        list_pages(api.client(), WatchScope(resource=core("pods")), page_objects=2)
    )
    assert [(one.number, len(one.items), one.is_last) for one in pages] == [
        *((0, 2, False), (0, 2, False), (1, 2, False), (2, 1, True)),
    ]
    last = json.loads(pages[-1].body)
    assert [one["metadata"]["name"] for one in last["items"]] == ["p4"]
    assert [json.loads(bytes(one))["metadata"]["name"] for one in pages[-1].items] == [
        "p4"
    ]
    assert pages[-1].resource_version == str(api.version)
