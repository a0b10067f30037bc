"""Calls to transparency logs in policies follow the rules for services."""

import http.server
from collections.abc import Iterator
from typing import ClassVar

import pytest

from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.logs import open_logs, tenants_rules
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.network import log_sender, mirror_reader
from kyverno_mp.images.sigstore.log_search import search_log
from kyverno_mp.images.sigstore.rekor_entry import Signed
from tests.image_rig import answering
from tests.waiting import far_ns

_SIGNED = Signed("c2ln", b"payload", "pem")
_PATH = "/api/v1/log/entries/retrieve"


def soon_ns() -> int:
    return far_ns()


class _Server(http.server.BaseHTTPRequestHandler):
    paths: ClassVar[list[str]]
    status: ClassVar[int] = 418

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Suppress the server's log."""


@pytest.fixture
def server() -> type[_Server]:
    return type("Server", (_Server,), {"paths": []})


@pytest.fixture
def port(server: type[_Server]) -> Iterator[str]:
    with answering(server) as host:
        yield host.rpartition(":")[2]


def asked(
    url: str,
    *,
    allow: str = "",
    for_namespaced: bool = False,
    is_tenants: bool = False,
    address: str = "127.0.0.1",
) -> str:
    """Return the error text of a failed search, or ""."""
    rules = read_rules(allow, "", for_namespaced=for_namespaced)
    rules = tenants_rules(rules) if is_tenants else rules
    send = log_sender(open_logs(rules, lambda _host: [address]), "t")
    try:
        search_log(url, _SIGNED, send, soon_ns(), is_quiet=is_tenants)
    except Unproved as error:
        return str(error)
    return ""


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("is_tenants", [False, True])
@pytest.mark.parametrize("address", ["10.96.0.77", "127.0.0.1", "fd00::1"])
def test_cluster_service_is_no_transparency_log(
    server: type[_Server],
    port: str,
    scheme: str,
    is_tenants: bool,  # noqa: FBT001 - a parameter
    address: str,
) -> None:
    url = f"{scheme}://admin.other.svc:{port}"
    text = asked(url, is_tenants=is_tenants, address=address)
    assert "calls to admin.other.svc are not allowed" in text
    assert server.paths == []


def test_plain_http_only_for_configured_logs(server: type[_Server], port: str) -> None:
    public = asked(f"http://log.test:{port}", address="93.184.216.34")
    assert public.endswith("calls to log.test are not allowed without TLS")
    server.status = 200
    # An address needs a range; a name never opens loopback.
    url = f"http://127.0.0.1:{port}"
    assert asked(f"{url}/rekor/", allow="127.0.0.0/8") == ""
    assert server.paths == [f"/rekor{_PATH}"]
    refused = asked(url, allow="127.0.0.0/8", is_tenants=True)
    assert "not allowed without TLS" in refused
    tenants = asked(url, allow="127.0.0.0/8", is_tenants=True, for_namespaced=True)
    assert tenants == ""
    assert len(server.paths) == 2


@pytest.mark.parametrize(
    "tail", ["/api/delete?all=1&x=", "?", "/x#", "/#/y", "/%2e%2e?x"]
)
def test_policy_cannot_choose_the_request(
    server: type[_Server], port: str, tail: str
) -> None:
    text = asked(f"http://127.0.0.1:{port}{tail}", allow="127.0.0.0/8")
    assert "has a query, a fragment or a user" in text
    user = asked(f"http://u:p@127.0.0.1:{port}", allow="127.0.0.0/8")
    assert "has a query, a fragment or a user" in user
    assert server.paths == []


def test_tenant_cannot_see_server_answers(server: type[_Server], port: str) -> None:
    url = f"http://127.0.0.1:{port}"
    texts = {
        asked(one, allow="127.0.0.0/8", is_tenants=True, for_namespaced=True).replace(
            one, ""
        )
        for one in (url, "http://127.0.0.1:1")
    }
    assert texts == {f'searching log query: Post "{_PATH}": the log gave no answer'}
    assert len(server.paths) == 1
    path = asked(
        f"{url}/admin", allow="127.0.0.0/8", is_tenants=True, for_namespaced=True
    )
    assert path.endswith("in a namespaced policy, the URL of the log has no path")
    assert len(server.paths) == 1
    assert asked(url, allow="127.0.0.0/8").endswith("status 418")


def test_mirror_follows_the_same_rules() -> None:
    logs = open_logs(read_rules("", ""), lambda _host: ["10.0.0.1"])
    fetch = mirror_reader(logs, "t")
    with pytest.raises(ExpressionFailed, match="mirror"):
        fetch("https://mirror.test/1.root.json", soon_ns())
