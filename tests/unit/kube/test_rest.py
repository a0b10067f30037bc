"""Calls end in time, are repeated only when that is safe, and reveal no secrets."""

import socket
import threading
from pathlib import Path

import pytest

from kyverno_mp.controllers.caller_path.controller import new_segment
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    KubeConflict,
    KubeExpired,
    KubeNotFound,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.kube.access import Access, at_url
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Call, Client
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, drip, soon_ns, wait_for

PODS = "/api/v1/namespaces/a/pods"


def test_one_connection_serves_many_calls(api: FakeApi) -> None:
    api.put(f"{PODS}/p", kind="Pod")
    pool = Pool(api.access)
    client = Client(pool, "test")
    for _ in range(3):
        assert client.get(f"{PODS}/p")["kind"] == "Pod"
    assert api.connections == 1
    assert pool.idle_count == 1
    client.close()


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (400, KubeRefused, "kube.refused"),
        (403, KubeRefused, "kube.forbidden"),
        (404, KubeNotFound, "kube.not_found"),
        (409, KubeConflict, "kube.conflict"),
        (410, KubeExpired, "kube.expired"),
        (422, KubeRefused, "kube.invalid"),
    ],
)
def test_errors_are_classified_and_not_retried(
    api: FakeApi, code: int, kind: type[DependencyError], name: str
) -> None:
    api.fault("GET", code)
    with pytest.raises(kind) as raised:
        api.client().get(f"{PODS}/p")
    assert raised.value.code == name
    assert len(api.requests) == 1


def test_reads_are_retried_after_server_errors_and_cut_connections(
    api: FakeApi,
) -> None:
    api.put(f"{PODS}/p")
    api.fault("GET", 500, "cut", 503)
    assert api.client().get(f"{PODS}/p")["metadata"]["name"] == "p"
    assert len(api.requests) == 4


def test_creation_is_retried_only_if_it_was_not_sent(api: FakeApi) -> None:
    """A broken POST may have been executed; a throttled one was not."""
    body = b'{"metadata": {"name": "p"}}'
    call = Call(method="POST", path=PODS, body=body)
    api.fault("POST", 500)
    with pytest.raises(KubeUnavailable):
        api.client().send(call)
    assert len(api.requests) == 1
    api.fault("POST", ("retry", 429, 0))
    assert api.client().send(call)["metadata"]["name"] == "p"


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_honoured_within_the_deadline(
    api: FakeApi, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(f"{PODS}/p")
    api.fault("GET", ("retry", code, 1))
    paused_s: list[float] = []
    monkeypatch.setattr("kyverno_mp.kube.rest.time.sleep", paused_s.append)
    api.client().get(f"{PODS}/p")
    assert [pause_s >= 1.0 for pause_s in paused_s] == [True]
    api.fault("GET", ("retry", code, 50))
    with pytest.raises(KubeUnavailable) as raised:
        api.client().get(f"{PODS}/p", deadline_ns=soon_ns())
    assert raised.value.code == {429: "kube.throttled", 503: "kube.server"}[code]
    assert raised.value.retry_after_s == 50


def test_slow_peer_cannot_exceed_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                drip(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = Client(Pool(at_url(url)), "test")
        with pytest.raises(DeadlinePassed):
            client.get("/api", deadline_ns=soon_ns())
        thread.join(HANG_S)


def test_connection_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    client = Client(Pool(at_url(f"http://127.0.0.1:{port}")), "test")
    with pytest.raises(KubeUnavailable) as raised:
        client.call(Call(method="GET", path="/api", repeatable=False))
    assert raised.value.code == "kube.connection"


def test_answer_above_its_limit_is_rejected(api: FakeApi) -> None:
    api.put(f"{PODS}/p", data="x" * 1000)
    call = Call(method="GET", path=f"{PODS}/p", bytes_max=500)
    with pytest.raises(KubeRefused) as raised:
        api.client().call(call)
    assert raised.value.code == "kube.too_large"


def test_rotated_token_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    api.put(f"{PODS}/p")
    file = tmp_path / "token"
    file.write_text("old\n")
    api.token = "old"
    access = Access(
        scheme="http", host=api.access.host, port=api.access.port, token_file=str(file)
    )
    client = api.client(access)
    client.get(f"{PODS}/p")
    api.token = "new"
    file.write_text("newer")
    file.write_text("new\n")
    client.get(f"{PODS}/p")
    api.token = "other"
    with pytest.raises(KubeRefused) as raised:
        client.get(f"{PODS}/p")
    assert raised.value.code == "kube.unauthorized"


def test_messages_contain_no_secrets(api: FakeApi) -> None:
    access = Access(
        scheme="http", host=api.access.host, port=api.access.port, token="s3cret"
    )
    assert "s3cret" not in repr(access)
    api.fault("GET", 500, 500, 500, 500, 500)
    with pytest.raises(KubeUnavailable) as raised:
        api.client(access).get("/api/v1/pods", [("password", "s3cret")])
    assert "s3cret" not in raised.value.message.replace("password=s3cret", "")
    assert len(raised.value.message) < 700


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410, 422, 500, 503, 504])
def test_no_error_names_the_secret_path_of_our_webhook(api: FakeApi, code: int) -> None:
    """Errors of writes stand in Events and statuses that tenants read."""
    segment = new_segment()
    message = (
        'failed calling webhook "validate.kyverno.svc-fail": failed to call webhook:'
        f' Post "https://kyverno-svc.kyverno.svc:443/{segment}/validate/fail": EOF'
    )
    api.fault("POST", {"code": code, "message": message})
    with pytest.raises(DependencyError) as raised:
        api.client().send(Call(method="POST", path=PODS, body=b"{}"))
    assert "failed calling webhook" in raised.value.message
    assert "/validate/fail" in raised.value.message
    assert segment not in raised.value.message


def test_silent_reused_connection_takes_only_part_of_the_time(
    api: FakeApi,
) -> None:
    """Other old connections are closed too; unsafe calls are not repeated."""
    api.put(f"{PODS}/p")
    client = api.client().within(6.0)
    client.get(f"{PODS}/p")
    api.fault("GET", "hang")
    # The answer arrives, so the call waits only for a part of the time.
    assert client.get(f"{PODS}/p")["metadata"]["name"] == "p"
    api.fault("POST", "hang")
    with pytest.raises(DeadlinePassed):
        client.within(0.3).call(Call(method="POST", path=PODS, body=b"{}"))
    wait_for(lambda: api.count("POST") == 1)


def test_dead_reused_connection_is_replaced(api: FakeApi) -> None:
    api.put(f"{PODS}/p")
    client = api.client()
    client.get(f"{PODS}/p")
    api.fault("GET", "cut")
    assert client.get(f"{PODS}/p")["metadata"]["name"] == "p"
