"""Tokens of other accounts: renewed in time, rarely requested, never lost early."""

from collections.abc import Iterator

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.access import Access
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.tokens import LIFETIME_S, RequestedToken
from tests.unit.kube.fake_api import FakeApi, running

PATH = "/api/v1/namespaces/kyverno/serviceaccounts/worker/token"
ASKED = f"POST {PATH}"
S = 1_000_000_000


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


class Bench:
    """One account's tokens, and a clock that a test sets."""

    def __init__(self, api: FakeApi, granted_s: int = LIFETIME_S) -> None:
        self.api = api
        self.now_s = 1000.0
        self.made = 0
        self.granted_s = granted_s
        self.tokens = RequestedToken(
            api.client(), "kyverno", "worker", lambda: int(self.now_s * S)
        )
        self.grant()

    def grant(self) -> None:
        """Let the API server issue another token from now on."""
        self.made += 1
        self.api.answers[PATH] = {
            "spec": {"expirationSeconds": self.granted_s},
            "status": {"token": f"token-{self.made}"},
        }

    def asked(self) -> int:
        return self.api.count(ASKED)


def test_token_is_requested_once_and_renewed_before_it_expires(api: FakeApi) -> None:
    bench = Bench(api)
    for bench.now_s in (1000.0, 1001.0, 1359.0):
        assert bench.tokens.token() == "token-1"
    assert bench.asked() == 1
    bench.grant()
    bench.now_s = 1361.0
    assert bench.tokens.token() == "token-2"
    assert bench.asked() == 2


def test_granted_lifetime_is_used(api: FakeApi) -> None:
    """The granted lifetime may be shorter or longer than requested."""
    bench = Bench(api, granted_s=3600)
    bench.tokens.token()
    bench.now_s = 1000.0 + 3600 * 0.6 - 1
    bench.tokens.token()
    assert bench.asked() == 1
    bench.now_s += 2
    bench.tokens.token()
    assert bench.asked() == 2


def test_last_token_is_used_until_it_expires(
    api: FakeApi,
) -> None:
    bench = Bench(api)
    assert bench.tokens.token() == "token-1"
    for bench.now_s in (1400.0, 1500.0, 1590.0):
        api.faults.append((ASKED, 403))
        assert bench.tokens.token() == "token-1"
    bench.now_s = 1601.0
    api.faults.append((ASKED, 403))
    with pytest.raises(KubeUnavailable) as caught:
        bench.tokens.token()
    assert caught.value.code == "kube.token"
    assert "no token for ServiceAccount worker" in caught.value.message


def test_failed_requests_are_retried_with_backoff(api: FakeApi) -> None:
    bench = Bench(api)
    asked_at = []
    for second in range(120):
        bench.now_s = 1000.0 + second
        api.faults[:] = [(ASKED, 403)]
        before = bench.asked()
        with pytest.raises(KubeUnavailable):
            bench.tokens.token()
        if bench.asked() > before:
            asked_at.append(second)
    assert asked_at == [0, 1, 3, 7, 15, 31, 61, 91]
    api.faults.clear()
    bench.now_s = 1121.0
    assert bench.tokens.token() == "token-1"


def test_rejected_token_is_replaced_but_not_at_each_call(api: FakeApi) -> None:
    """After 401, the connection pool requests a new token, once for each call."""
    bench = Bench(api)
    assert bench.tokens.token() == "token-1"
    bench.now_s = 1002.0
    bench.grant()
    assert bench.tokens.token(renew=True) == "token-2"
    for _ in range(5):
        bench.tokens.token(renew=True)
    assert bench.asked() == 2


def test_calls_use_only_the_token(
    api: FakeApi,
) -> None:
    bench = Bench(api)
    access = Access(scheme="http", host="127.0.0.1", port=api.access.port, token="own")
    client = Client(Pool(access, bench.tokens), "test")
    try:
        client.get("/api/v1/namespaces")
    finally:
        client.close()
    assert api.requests[-1][2]["authorization"] == "Bearer token-1"
