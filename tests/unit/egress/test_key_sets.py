"""Key sets of token issuers are fetched rarely, and within limits.

Expected: the limits' reasons, docs/differences.md.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kyverno_mp.egress.key_sets import KeySets
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed
from kyverno_mp.expr.cel.outside import HttpRequest
from kyverno_mp.limits import (
    JWKS_BYTES_MAX,
    JWKS_FAILURE_KEPT_S,
    JWKS_KEPT_MAX,
    JWKS_KEPT_S,
    JWKS_TIMEOUT_S,
)
from tests.waiting import HANG_S

URL = "https://issuer/keys"
KEYS = json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).encode()
SECOND = 10**9


class Issuer:
    """A service that answers, or raises an error; it records the calls."""

    def __init__(self, answer: Any = (200, KEYS)) -> None:
        self.answer = answer
        self.calls: list[tuple[HttpRequest, int]] = []

    def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
        self.calls.append((request, deadline_ns))
        if isinstance(self.answer, Exception):
            raise self.answer
        status, data = self.answer
        return status, data


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND


def test_a_set_is_kept() -> None:
    issuer, clock = Issuer(), Clock()
    key_sets = KeySets(issuer, clock)
    first = key_sets.fetch(URL, 0)
    assert len(first.keys) == 1
    clock.pass_s(JWKS_KEPT_S - 1)
    assert key_sets.fetch(URL, 0) is first
    clock.pass_s(1)
    assert key_sets.fetch(URL, 0) is not first
    assert len(issuer.calls) == 2
    ((request, limit_ns), _) = issuer.calls
    assert (request.method, request.url, request.body) == ("GET", URL, None)
    assert limit_ns == 1_000 * SECOND + JWKS_TIMEOUT_S * SECOND


def test_old_keys_are_not_used_when_the_issuer_is_down() -> None:
    """Otherwise a revoked key would be valid for as long as the issuer is down."""
    issuer, clock = Issuer(), Clock()
    key_sets = KeySets(issuer, clock)
    key_sets.fetch(URL, 0)
    issuer.answer = ExpressionFailed("egress.dns", "no such host")
    clock.pass_s(JWKS_KEPT_S)
    for _ in range(3):
        with pytest.raises(ExpressionFailed, match="no such host"):
            key_sets.fetch(URL, 0)
    assert len(issuer.calls) == 2
    issuer.answer = (200, KEYS)
    clock.pass_s(JWKS_FAILURE_KEPT_S)
    assert key_sets.fetch(URL, 0).keys


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, KEYS), "status 404"),
        ((302, KEYS), "status 302"),
        ((200, b"x"), "jwk.Parse"),
        ((200, b" " * JWKS_BYTES_MAX + KEYS), "too large"),
        (DeadlinePassed("egress.deadline", "no answer in time"), "in time"),
    ],
)
def test_answers_that_have_no_keys(answer: Any, message: str) -> None:
    with pytest.raises(ExpressionFailed, match=message):
        KeySets(Issuer(answer), Clock()).fetch(URL, 0)


def test_the_requests_own_deadline_ends_it() -> None:
    clock = Clock()
    issuer = Issuer(DeadlinePassed("egress.deadline", "late"))
    with pytest.raises(DeadlinePassed):
        KeySets(issuer, clock).fetch(URL, clock() + SECOND)
    assert issuer.calls[0][1] == clock() + SECOND


def test_the_number_of_sets_is_bounded() -> None:
    issuer = Issuer()
    key_sets = KeySets(issuer, Clock())
    for index in range(JWKS_KEPT_MAX + 1):
        key_sets.fetch(f"{URL}/{index}", 0)
    key_sets.fetch(f"{URL}/{JWKS_KEPT_MAX}", 0)
    assert len(issuer.calls) == JWKS_KEPT_MAX + 1
    key_sets.fetch(f"{URL}/0", 0)
    assert len(issuer.calls) == JWKS_KEPT_MAX + 2


def test_one_of_many_threads_calls() -> None:
    issuer = Issuer()
    key_sets = KeySets(issuer, Clock())
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: key_sets.fetch(URL, 0), range(64)))
    assert len(found) == len(issuer.calls) == 1


def test_a_request_waits_for_another_ones_call_until_its_deadline() -> None:
    began, ends = threading.Event(), threading.Event()

    class Slow(Issuer):
        def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
            began.set()
            assert ends.wait(HANG_S)
            return super().exchange(request, deadline_ns)

    clock = Clock()
    key_sets = KeySets(Slow(), clock)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(key_sets.fetch, URL, 0)
        assert began.wait(HANG_S)
        with pytest.raises(DeadlinePassed):
            key_sets.fetch(URL, clock.now_ns)
        ends.set()
        assert first.result().keys
