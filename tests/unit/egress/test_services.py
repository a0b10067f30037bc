"""Service calls: closed by default, resolved once, bounded, without our token."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kyverno_mp.egress.addresses import UrlRules, allowed, read_rules, target_of
from kyverno_mp.egress.api_calls import LiveCalls
from kyverno_mp.egress.config_maps import LiveConfigMaps
from kyverno_mp.egress.services import ServiceRules, Services
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed, SettingInvalid
from kyverno_mp.kube.access import Access
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.jsonvalue import Json
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, drip, far_ns, receive_message, soon_ns

CLOSED = UrlRules()
LOCAL = read_rules("127.0.0.0/8", "", for_namespaced=True)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "::10.0.0.1",
    ],
)
def test_ghsa_459x_q9hg_4gpq_ssrf(address: str) -> None:
    """Rows 13, 22, 23: internal addresses are unreachable in any notation."""
    target = target_of("http://example.com/")
    with pytest.raises(ExpressionFailed) as raised:
        allowed(target, [address], CLOSED)
    assert raised.value.code == "egress.denied"


def test_public_addresses_are_open() -> None:
    target = target_of("https://example.com/a?b=c")
    (address,) = allowed(target, ["93.184.216.34"], CLOSED)
    assert str(address) == "93.184.216.34"
    assert (target.port, target.path) == (443, "/a?b=c")


def test_one_denied_address_denies_all() -> None:
    """A resolver that mixes addresses could otherwise lead us to the denied one."""
    with pytest.raises(ExpressionFailed):
        allowed(target_of("http://x.test"), ["93.184.216.34", "127.0.0.1"], CLOSED)


def test_names_open_private_ranges_but_never_loopback() -> None:
    rules = read_rules("*.svc, *.svc.cluster.local", "")
    target = target_of("http://echo.default.svc:8080")
    assert allowed(target, ["10.96.0.10"], rules)
    for address in ("127.0.0.1", "169.254.169.254", "::1"):
        with pytest.raises(ExpressionFailed):
            allowed(target, [address], rules)
    with pytest.raises(ExpressionFailed):
        allowed(target_of("http://other.test"), ["10.96.0.10"], rules)


def test_ranges_can_be_opened_and_closed() -> None:
    rules = read_rules("10.0.0.0/8", "10.1.0.0/16, evil.test")
    assert allowed(target_of("http://x.test"), ["10.2.0.1"], rules)
    for host, address in (("x.test", "10.1.0.1"), ("evil.test", "93.184.216.34")):
        with pytest.raises(ExpressionFailed):
            allowed(target_of(f"http://{host}"), [address], rules)


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "10.0.0.999", "[[", "a b", "x:80"])
def test_invalid_hosts_and_ranges_are_rejected(entry: str) -> None:
    with pytest.raises(SettingInvalid, match="neither a host nor a range"):
        read_rules(f"10.0.0.0/8, {entry}", "")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/",
        "file:///etc/passwd",
        "http://",
        "//x/",
        "http://user:password@x/",
        "http://x\\@127.0.0.1/",
        "http://x y/",
        "http://x/\r\nHost: y",
        "http://x:99999/",
        "",
    ],
)
def test_invalid_urls_are_not_called(url: str) -> None:
    with pytest.raises(ExpressionFailed) as raised:
        target_of(url)
    assert raised.value.code == "egress.url"


@contextmanager
def answering(
    answer: Callable[[socket.socket], None],
) -> Iterator[tuple[int, list[bytes]]]:
    """Serve one connection at a time; yield the port and the received requests."""
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                seen.append(receive_message(peer))
                try:
                    answer(peer)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], seen
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def reply(text: str) -> Callable[[socket.socket], None]:
    return lambda peer: peer.sendall(text.encode())


OK = 'HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n{"a": 1}'


def call(
    port: int,
    *,
    host: str = "svc.test",
    rules: UrlRules = LOCAL,
    seconds: float = 5,
    **fields: object,
) -> bytes:
    options = {
        name: fields.pop(name)
        for name in ("token_file", "answer_bytes_max", "timeout_s")
        if name in fields
    }
    services = Services(
        ServiceRules(urls=rules, **options),  # type: ignore[arg-type] # options of a test
        lambda _: ["127.0.0.1"],
        "test",
    )
    request = ApiRequest(method="GET", url=f"http://{host}:{port}/p", **fields)  # type: ignore[arg-type] # as above
    return services.call(request, soon_ns(seconds))


def test_checked_address_is_called_with_the_services_name() -> None:
    """Row 13: resolve once, and connect to that address."""
    with answering(reply(OK)) as (port, seen):
        assert call(port) == b'{"a": 1}'
        assert f"Host: svc.test:{port}\r\n".encode() in seen[0]


def test_cve_2026_41323_and_40868_services_get_no_token(tmp_path: object) -> None:
    """Rows 19-21: our token is never sent, and a service token needs TLS."""
    token = f"{tmp_path}/token"
    with open(token, "w") as file:  # noqa: PTH123 - a test's file
        file.write("s3cret")
    with answering(reply(OK)) as (port, seen):
        call(port, token_file=token)
        assert b"uthorization" not in seen[0]
        call(
            port, headers=(("Authorization", "Basic x"), ("Host", "evil"), ("X-A", "1"))
        )
        assert b"Authorization: Basic x" in seen[1]
        assert b"X-A: 1" in seen[1]
        assert b"evil" not in seen[1]


def test_redirects_are_not_followed() -> None:
    text = (
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    with answering(reply(text)) as (port, seen):
        with pytest.raises(ExpressionFailed) as raised:
            call(port)
        assert raised.value.message.startswith("HTTP 302 Found")
        assert len(seen) == 1


def test_endless_answer_is_cut_off() -> None:
    def flood(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.sendall(b"x" * 65536)

    with answering(flood) as (port, _), pytest.raises(ExpressionFailed) as raised:
        call(port, answer_bytes_max=1000)
    assert raised.value.message == (
        "response length must be less than max allowed response length of 1000"
    )


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"x: y\r\n",
        ),
    ],
)
def test_an_answer_without_a_body_has_an_end(begin: bytes, again: bytes) -> None:
    ended = []

    def endless(peer: socket.socket) -> None:
        peer.sendall(begin)
        for _ in range(64):
            peer.sendall(again * (1024 * 1024 // len(again)))
        ended.append(True)

    with (
        answering(endless) as (port, _),
        pytest.raises(ExpressionFailed, match="ResponseTooLong"),
    ):
        call(port, seconds=600, timeout_s=600)
    assert not ended


def test_a_service_may_send_each_token_in_a_chunk() -> None:
    def tokens(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        peer.sendall(b"1\r\n[\r\n" + b"2\r\n1,\r\n" * 20_000)
        peer.sendall(b"2\r\n1]\r\n0\r\n\r\n")

    with answering(tokens) as (port, _):
        assert (
            call(port, seconds=HANG_S, timeout_s=HANG_S)
            == b"[" + b"1," * 20_000 + b"1]"
        )


def test_a_slow_answer_ends_at_its_deadline() -> None:
    # The call's own time is over, but the entry's default may still be used.
    with (
        answering(drip) as (port, _),
        pytest.raises(ExpressionFailed, match="did not answer in time"),
    ):
        call(port, seconds=HANG_S, timeout_s=0.2)
    with answering(drip) as (port, _), pytest.raises(DeadlinePassed):
        call(port, seconds=0.2)


@pytest.mark.parametrize("of_service", [True, False])
def test_a_slow_name_server_ends_at_the_deadline(
    of_service: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The resolver of the C library has no deadline."""
    gate = threading.Event()

    def resolve(_name: str) -> list[str]:
        gate.wait(HANG_S)
        return ["127.0.0.1"]

    rules = ServiceRules(urls=LOCAL, timeout_s=0.05 if of_service else HANG_S)
    services = Services(rules, resolve, "test")
    request = ApiRequest(method="GET", url="http://svc.test/p")
    until_ns = far_ns() if of_service else soon_ns()
    expected = ExpressionFailed if of_service else DeadlinePassed
    with pytest.raises(expected, match="no answer in time"):
        services.call(request, until_ns)
    gate.set()


def test_ghsa_fmqp_4wfc_w3v7_namespaced_policies_call_no_services() -> None:
    """Rows 22, 24: closed unless the operator opens them."""
    with pytest.raises(ExpressionFailed) as raised:
        call(1, rules=read_rules("127.0.0.0/8", ""), policy_namespace="own")
    assert raised.value.code == "egress.denied"


class _Nothing:
    def config_map(self, namespace: str, name: str, deadline_ns: int) -> object:
        del deadline_ns
        raise ExpressionFailed("context.configmap_not_found", f"{namespace}/{name}")


def live(api: FakeApi) -> LiveCalls:
    services = Services(ServiceRules(urls=CLOSED), lambda _: ["127.0.0.1"], "test")
    return LiveCalls(api.client(), services)


def test_live_calls_use_the_normalized_path() -> None:
    with running() as api:
        api.put("/api/v1/namespaces/own/configmaps/m", data={"a": "b"})
        path = "/api/v1/namespaces/other/../own/configmaps/m"
        request = ApiRequest(method="GET", path=path, policy_namespace="own")
        assert live(api).call(request, far_ns())["data"] == {"a": "b"}
        assert api.requests[0][1] == "/api/v1/namespaces/own/configmaps/m"
        foreign = ApiRequest(
            method="GET", path="/api/v1/namespaces/x/pods", policy_namespace="own"
        )
        with pytest.raises(ExpressionFailed):
            live(api).call(foreign, far_ns())
        assert len(api.requests) == 1


def test_denials_have_upstreams_texts() -> None:
    with running() as api:
        request = ApiRequest(method="GET", path="/api/v1/pods")
        for code, words in (
            (403, "permission denied: unknown"),
            (
                404,
                "the server could not find the requested resource",
            ),
            (409, "the server reported a conflict"),
        ):
            api.fault("GET", code)
            with pytest.raises(ExpressionFailed) as raised:
                live(api).call(request, far_ns())
            assert raised.value.message == (
                f"failed to GET resource with raw url: /api/v1/pods: {words}"
            )


def test_post_sends_its_data() -> None:
    with running() as api:
        body = {"metadata": {"name": "m"}, "data": {"a": "b"}}
        path = "/api/v1/namespaces/own/configmaps"
        request = ApiRequest(method="POST", path=path, body=body)
        assert live(api).call(request, far_ns())["data"] == {"a": "b"}
        assert api.count("POST") == 1


def test_query_is_sent_unchanged() -> None:
    with running() as api:
        path = "/api/v1/pods?labelSelector=a%3Db,c!=d&limit=1&continue=0"
        live(api).call(ApiRequest(method="GET", path=path), far_ns())
        assert api.requests[0][1] == path
        odd = ApiRequest(method="GET", path="/api/v1/pods?labelSelector=a in (\u00e9)")
        live(api).call(odd, far_ns())
        assert api.requests[1][1] == "/api/v1/pods?labelSelector=a%20in%20(%C3%A9)"


def test_api_server_receives_our_token() -> None:
    with running() as api:
        api.token = "ours"
        api.put("/api/v1/namespaces/own/configmaps/m")
        access = Access(
            scheme="http", host=api.access.host, port=api.access.port, token="ours"
        )
        services = Services(ServiceRules(urls=CLOSED), lambda _: [], "test")
        calls = LiveCalls(api.client(access), services)
        request = ApiRequest(method="GET", path="/api/v1/namespaces/own/configmaps/m")
        assert calls.call(request, far_ns())["metadata"]["name"] == "m"


class _Stale:
    """A segment that contains every ConfigMap."""

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        del deadline_ns
        return {"metadata": {"namespace": namespace, "name": name}, "data": {}}


def test_config_maps_are_read_live_if_configured() -> None:
    """enableConfigMapCaching=false (docs/behaviour/controllers 11.5)."""
    with running() as api:
        api.put("/api/v1/namespaces/own/configmaps/m", data={"a": "b"})
        client = api.client()
        assert (
            LiveConfigMaps(_Stale(), client).config_map("own", "m", far_ns())["data"]
            == {}
        )
        assert not api.requests
        for count in (1, 2):
            found = LiveConfigMaps(None, client).config_map("own", "m", far_ns())
            assert found["data"] == {"a": "b"}
            assert len(api.requests) == count


def test_config_maps_fall_back_to_the_live_client() -> None:
    with running() as api:
        api.put("/api/v1/namespaces/own/configmaps/m", data={"a": "b"})
        maps = LiveConfigMaps(_Nothing(), api.client())
        assert maps.config_map("own", "m", far_ns())["data"] == {"a": "b"}
        with pytest.raises(ExpressionFailed) as raised:
            maps.config_map("own", "none", far_ns())
        assert raised.value.message == 'configmaps "none" not found'


def test_config_map_read_ends_at_the_deadline() -> None:
    """A live read ends with its review instead of a separate time-out."""
    with running() as api:
        api.faults.append(("GET .*configmaps", "hang"))
        maps = LiveConfigMaps(None, api.client())
        with pytest.raises(DeadlinePassed):
            maps.config_map("own", "m", soon_ns())
