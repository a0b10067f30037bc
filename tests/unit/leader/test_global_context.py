"""Global context entries are isolated: one entry does not affect the others."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader.context import calls as global_context_calls
from kyverno_mp.leader.context import cluster as global_context_cluster
from kyverno_mp.leader.context import resources as global_context_resources
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.policy.documents.global_context_entry import OPENED_TO
from kyverno_mp.program.ports import ApiRequest
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, real_ns, wait_for

ENTRIES = "/apis/kyverno.io/v2beta1/globalcontextentries"
PODS = {"kubernetesResource": {"version": "v1", "resource": "pods"}}
VERSION = {"apiCall": {"urlPath": "/version", "refreshInterval": "1h"}}
CORE = {
    "resources": [
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "pods/status", "kind": "Pod", "namespaced": True},
    ]
}
NO_DATA = {"error": "no data available"}


class Services:
    """Services that return JSON by path, errors, or no answer before ``go``."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {"/version": b'{"major":"1"}'}
        self.asked: list[ApiRequest] = []
        self.go = threading.Event()

    def fetch(self, request: ApiRequest, deadline_ns: int) -> bytes:
        assert deadline_ns > real_ns()
        self.asked.append(request)
        target = request.path or request.url
        if target == "/hangs":
            self.go.wait(HANG_S)
        if target in self.answers:
            return self.answers[target]
        raise ExpressionFailed("context.apicall", f"failed to GET {target}")

    def count(self, path: str) -> int:
        return sum(one.path == path for one in self.asked)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        server.answers["/api/v1"] = CORE
        yield server


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services()
    yield made
    made.go.set()


@contextmanager
def kept(
    client: Client, services: Services, entries_max: int = 256
) -> Iterator[ClusterGlobalContext]:
    context = ClusterGlobalContext(client, services.fetch, entries_max)
    context.informer.start()
    try:
        wait_for(lambda: context.informer.synced)
        yield context
    finally:
        context.stop()


def put(api: FakeApi, name: str, spec: Any, **projections: str) -> None:
    listed = [{"name": key, "jmesPath": text} for key, text in projections.items()]
    api.put(f"{ENTRIES}/{name}", spec={**spec, "projections": listed})


def call(path: str, **fields: Any) -> dict[str, Any]:
    return {"apiCall": {"urlPath": path, "refreshInterval": "1h", **fields}}


def decoded(context: ClusterGlobalContext) -> dict[str, Any]:
    context.poll()
    values = context.values()
    return {name: msgspec.json.decode(value) for name, value in values.items()}


def test_resource_is_listed_watched_and_projected(
    api: FakeApi, services: Services
) -> None:
    metadata = {"managedFields": [{"manager": "m"}]}
    api.put("/api/v1/namespaces/a/pods/one", metadata=metadata)
    put(api, "pods", PODS, names="[].metadata.name", bad="abs([0].metadata.name)")
    with kept(api.client(), services) as context:
        wait_for(lambda: "pods" in decoded(context))
        (one,) = decoded(context)["pods"]["data"]
        assert (one["apiVersion"], one["kind"]) == ("v1", "Pod")
        assert "managedFields" not in one["metadata"]
        assert decoded(context)["pods/names"] == {"data": ["one"]}
        api.put("/api/v1/namespaces/b/pods/two")
        wait_for(lambda: decoded(context)["pods/names"] == {"data": ["one", "two"]})
        api.remove("/api/v1/namespaces/a/pods/one")
        wait_for(lambda: decoded(context)["pods/names"] == {"data": ["two"]})
        # A failed projection is absent, and the entry gives the reason.
        assert "pods/bad" not in decoded(context)
        ready, message, _ = context.states()["pods"]
        assert not ready
        assert message.startswith('failed to apply projection "bad": ')


def test_empty_resource_is_an_empty_list(api: FakeApi, services: Services) -> None:
    put(api, "pods", PODS)
    with kept(api.client(), services) as context:
        wait_for(lambda: decoded(context) == {"pods": {"data": []}})
        assert context.states() == {"pods": (True, "", None)}


def test_call_returns_data_and_projections(api: FakeApi, services: Services) -> None:
    put(api, "version", VERSION, major="major", none="`null`")
    with kept(api.client(), services) as context:
        wait_for(lambda: "version/major" in decoded(context))
        assert decoded(context) == {
            "version": {"data": {"major": "1"}},
            "version/major": {"data": "1"},
            "version/": NO_DATA,
        }
        ready, message, refreshed = context.states()["version"]
        assert ready
        assert (message, refreshed is not None) == ("", True)
        assert services.count("/version") == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"no JSON", "the answer is not JSON"),
        (b"null", "no data available"),
    ],
)
def test_invalid_data_cannot_be_read(
    answer: bytes, error: str, api: FakeApi, services: Services
) -> None:
    services.answers["/version"] = answer
    put(api, "version", VERSION)
    with kept(api.client(), services) as context:
        wait_for(lambda: bool(context.poll()) or bool(context.states()))
        wait_for(lambda: decoded(context)["version"] == {"error": error})


def test_failing_projection_fails_every_read(api: FakeApi, services: Services) -> None:
    put(api, "version", VERSION, bad="abs(major)")
    with kept(api.client(), services) as context:
        wait_for(lambda: bool(context.poll() and context.states()))
        values = decoded(context)
        assert set(values) == {"version", "version/"}
        assert "Invalid type" in values["version"]["error"]


def test_calls_are_retried_and_stale_data_is_not_served(
    api: FakeApi, services: Services
) -> None:
    spec = call("/version", refreshInterval="1s", retryLimit=2)
    put(api, "version", spec)
    with kept(api.client(), services) as context:
        wait_for(lambda: "data" in decoded(context).get("version", {}))
        before, good = services.count("/version"), services.answers.pop("/version")
        failed = {"error": "failed to GET /version"}
        wait_for(lambda: decoded(context)["version"] == failed)
        assert services.count("/version") == before + 2
        services.answers["/version"] = good
        wait_for(lambda: "data" in decoded(context)["version"])


def test_post_sends_its_data_unchanged(api: FakeApi, services: Services) -> None:
    data = [{"key": "a", "value": "{{ request.object }}"}]
    headers = [{"key": "x", "value": "y"}]
    service = {"url": "https://s.example", "headers": headers, "caBundle": "pem"}
    spec = {"apiCall": {"service": service, "method": "POST", "data": data}}
    put(api, "posted", spec)
    with kept(api.client(), services) as context:
        wait_for(lambda: bool(context.poll() or services.asked))
        assert services.asked[0] == ApiRequest(
            method="POST",
            url="https://s.example",
            headers=(("x", "y"),),
            body={"a": "{{ request.object }}"},
            ca_bundle="pem",
        )


def test_slow_entry_delays_no_other(api: FakeApi, services: Services) -> None:
    """K#15856: a missing kind, a silent peer or a bad spec delays no other entry."""
    put(api, "a-hangs", call("/hangs"))
    resource = {"group": "example.com", "version": "v1", "resource": "foos"}
    put(api, "b-missing", {"kubernetesResource": resource})
    put(api, "c-bad", {})
    put(api, "d-fails", call("/fails", retryLimit=100))
    put(api, "e-version", VERSION)
    put(api, "f-pods", PODS)
    with kept(api.client(), services) as context:
        assert not context.is_settled
        wait_for(lambda: {"e-version", "f-pods"} <= decoded(context).keys())
        wait_for(lambda: "data" in decoded(context)["e-version"])
        values = decoded(context)
        assert values["f-pods"] == {"data": []}
        assert values["a-hangs"] == NO_DATA
        assert "b-missing" not in values
        assert "should either have" in values["c-bad"]["error"]
        wait_for(lambda: "b-missing" in context.states())
        assert context.states()["b-missing"][0] is False
        # The silent service delays policies only for a limited time.
        wait_for(lambda: context.is_settled)
        services.answers["/hangs"] = b"1"
        services.go.set()
        wait_for(lambda: decoded(context)["a-hangs"] == {"data": 1})


def test_resource_served_later_is_found(api: FakeApi, services: Services) -> None:
    resource = {"group": "example.com", "version": "v1", "resource": "foos"}
    put(api, "foos", {"kubernetesResource": resource})
    with kept(api.client(), services) as context:
        wait_for(lambda: bool(context.poll() and context.states()))
        listing = {"resources": [{"name": "foos", "kind": "Foo", "namespaced": True}]}
        api.answers["/apis/example.com/v1"] = listing
        wait_for(lambda: decoded(context).get("foos") == {"data": []})


def test_new_kinds_trigger_an_immediate_retry(
    api: FakeApi, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_context_resources, "_SETTLE_S", 30.0)
    monkeypatch.setattr(global_context_resources, "_AGAIN_S_MAX", 60.0)
    resource = {"group": "example.com", "version": "v1", "resource": "foos"}
    put(api, "foos", {"kubernetesResource": resource})
    with kept(api.client(), services) as context:
        wait_for(lambda: bool(context.poll() and context.states()))
        listing = {"resources": [{"name": "foos", "kind": "Foo", "namespaced": True}]}
        api.answers["/apis/example.com/v1"] = listing
        context.retry_now()
        wait_for(lambda: api.count("GET /apis/example.com/v1/foos") > 0)


def test_state_changes_are_reported_and_data_is_not(
    api: FakeApi, services: Services
) -> None:
    put(api, "pods", PODS)
    with kept(api.client(), services) as context:
        told: list[str] = []
        context.on_state(lambda: told.append(context.states()["pods"][1]))
        wait_for(lambda: "pods" in decoded(context))
        wait_for(lambda: told == [""])
        api.put("/api/v1/namespaces/b/pods/two")
        wait_for(lambda: len(decoded(context)["pods"]["data"]) == 1)
        assert told == [""]


def test_oversized_entry_fails_alone(
    api: FakeApi, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (global_context_calls, global_context_resources):
        monkeypatch.setattr(module, "GLOBAL_CONTEXT_ENTRY_BYTES_MAX", 2000)
    services.answers["/big"] = msgspec.json.encode("x" * 3000)
    for number in range(30):
        api.put(f"/api/v1/namespaces/a/pods/p{number}", spec={"x": "y" * 50})
    put(api, "big", call("/big"))
    put(api, "pods", PODS)
    put(api, "version", VERSION)
    with kept(api.client(), services) as context:
        wait_for(lambda: "pods" in decoded(context) and len(context.states()) == 3)
        values = decoded(context)
        for name in ("big", "pods", "big/", "pods/"):
            assert "the data has more than" in values[name]["error"]
        assert values["version"] == {"data": {"major": "1"}}
        lists = api.count("GET /api/v1/pods")
        time.sleep(0.5)
        assert api.count("GET /api/v1/pods") == lists, "listed again and again"


def test_resource_that_grows_too_large_is_stopped(
    api: FakeApi, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (global_context_calls, global_context_resources):
        monkeypatch.setattr(module, "GLOBAL_CONTEXT_ENTRY_BYTES_MAX", 2000)
    put(api, "pods", PODS)
    with kept(api.client(), services) as context:
        wait_for(lambda: "data" in decoded(context).get("pods", {}))
        for number in range(30):
            api.put(f"/api/v1/namespaces/a/pods/p{number}", spec={"x": "y" * 50})
        wait_for(lambda: "error" in decoded(context)["pods"])


def test_total_size_is_bounded(
    api: FakeApi, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_context_cluster, "GLOBAL_CONTEXT_BYTES_MAX", 900)
    services.answers["/large"] = msgspec.json.encode("x" * 900)
    put(api, "a-large", call("/large"))
    put(api, "b-version", VERSION)
    with kept(api.client(), services) as context:
        wait_for(lambda: "data" in decoded(context).get("b-version", {}))
        wait_for(lambda: "left out" in str(decoded(context)["a-large"]))
        ready, message, _ = context.states()["a-large"]
        assert not ready
        assert "left out" in message


def test_entry_count_is_bounded(api: FakeApi, services: Services) -> None:
    put(api, "a", VERSION)
    put(api, "b", VERSION)
    with kept(api.client(), services, entries_max=1) as context:
        wait_for(lambda: "data" in decoded(context).get("a", {}))
        assert "more than 1 entries" in decoded(context)["b"]["error"]
        api.remove(f"{ENTRIES}/a")
        wait_for(lambda: "a" not in decoded(context))
        wait_for(lambda: "data" in decoded(context)["b"])


def test_only_a_new_spec_restarts_an_entry(api: FakeApi, services: Services) -> None:
    put(api, "version", VERSION)
    with kept(api.client(), services) as context:
        wait_for(lambda: "data" in decoded(context).get("version", {}))
        api.put(f"{ENTRIES}/version", spec={**VERSION, "projections": []}, status={})
        wait_for(lambda: context.informer._version == str(api.version))
        assert not context.poll()
        assert services.count("/version") == 1
        services.answers["/other"] = b"2"
        put(api, "version", call("/other"))
        wait_for(lambda: decoded(context)["version"] == {"data": 2})


def test_unchanged_data_is_not_published_again(
    api: FakeApi, services: Services
) -> None:
    put(api, "version", call("/version", refreshInterval="1s"))
    with kept(api.client(), services) as context:
        wait_for(lambda: "data" in decoded(context).get("version", {}))
        wait_for(lambda: services.count("/version") >= 2)
        assert not context.poll()
        services.answers["/version"] = b"{}"
        wait_for(context.poll)


def test_opened_namespaces_follow_the_annotation(
    api: FakeApi, services: Services
) -> None:
    """The data stays; only who may read it changes."""
    path = f"{ENTRIES}/version"
    api.put(path, spec=VERSION, metadata={"annotations": {OPENED_TO: "team, other"}})
    with kept(api.client(), services) as context:
        wait_for(lambda: decoded(context).get("@team/version") is True)
        assert decoded(context)["@other/version"] is True
        api.put(path, spec=VERSION, metadata={"annotations": {OPENED_TO: "other"}})
        wait_for(lambda: "@team/version" not in decoded(context))
        assert decoded(context)["@other/version"] is True
        api.put(path, spec=VERSION, metadata={"annotations": {OPENED_TO: "o*"}})
        wait_for(lambda: "@other/version" not in decoded(context))
        api.put(path, spec=VERSION)
        wait_for(lambda: decoded(context)["version"] == {"data": {"major": "1"}})
        api.remove(path)
        wait_for(lambda: decoded(context) == {})


def test_leader_polls_often_only_while_there_are_entries(
    api: FakeApi, services: Services
) -> None:
    """Their data changes without a wake; otherwise an idle pod would poll in vain."""
    with kept(api.client(), services) as context:
        wait_for(lambda: not context.has_entries)
        put(api, "version", call("/version"))
        wait_for(lambda: context.has_entries)
        wait_for(lambda: "version" in decoded(context) and context.has_entries)
        api.remove(f"{ENTRIES}/version")

        def is_gone() -> bool:
            context.poll()
            return not context.has_entries

        wait_for(is_gone)
