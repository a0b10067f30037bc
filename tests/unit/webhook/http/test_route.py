"""Paths and timeouts are read as Kyverno registers them (controllers 2.1, 3.4)."""

import pytest

from kyverno_mp.webhook.route import route_of, timeout_ns


@pytest.mark.parametrize(
    ("path", "webhook", "policies", "key"),
    [
        ("/validate", "validate", {"Fail", "Ignore"}, ""),
        ("/validate/fail", "validate", {"Fail"}, ""),
        ("/validate/ignore", "validate", {"Ignore"}, ""),
        ("/mutate", "mutate", {"Fail", "Ignore"}, ""),
        ("/mutate/ignore", "mutate", {"Ignore"}, ""),
        ("/validate/fail/finegrained/pol", "validate", {"Fail"}, "pol"),
        ("/validate/ignore/finegrained/ns/pol", "validate", {"Ignore"}, "ns/pol"),
        ("/mutate/fail/finegrained/ns/pol", "mutate", {"Fail"}, "ns/pol"),
        ("/vpol/a/b", "vpol", {"Fail", "Ignore"}, "a/b"),
        ("/nvpol//a/b", "nvpol", {"Fail", "Ignore"}, "a/b"),
        ("/ivpol/validate/a/b", "ivpol", {"Fail", "Ignore"}, "a/b"),
        ("/ivpol/validate", "ivpol", {"Fail", "Ignore"}, ""),
        ("/nivpol/validate/a", "nivpol", {"Fail", "Ignore"}, "a"),
        ("/ivpol/mutate/a/b", "ivpol/mutate", {"Fail", "Ignore"}, "a/b"),
        ("/ivpol/mutate", "ivpol/mutate", {"Fail", "Ignore"}, ""),
        ("/nivpol/mutate/a", "nivpol/mutate", {"Fail", "Ignore"}, "a"),
        ("/nivpol-mutate-keys/a/p", "nivpol/mutate", {"Fail", "Ignore"}, "/a/p"),
        ("/nivpol-keys/ns/pol", "nivpol", {"Fail", "Ignore"}, "/ns/pol"),
        ("/nvpol-keys/ns/pol", "nvpol", {"Fail", "Ignore"}, "/ns/pol"),
    ],
)
def test_paths(path: str, webhook: str, policies: set[str], key: str) -> None:
    route = route_of(path.encode())
    assert route is not None
    assert (route.path, route.webhook) == (path, webhook)
    assert (route.failure_policies, route.policy_key) == (frozenset(policies), key)


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"",
        b"/validate/",
        b"/validate/other",
        b"/ivpol",
        b"/ivpol/other/a",
        b"//ivpol/mutate/a",
        b"/nivpol-keys/ns",
        b"/validate/finegrained/pol",
        b"/validate/fail/finegrained",
        b"/validate/fail/finegrained/",
        b"/validate/fail/finegrained/a/b/c",
        b"/validate/fail/finegrained//b",
        b"/VALIDATE",
        b"/nvpol-keys",
        b"/nvpol-keys/ns",
        b"/nvpol-keys//pol",
        b"/nvpol-keys/ns/pol/other",
        b"/validate/fail/finegrained/\xff",
        b"/health/liveness",
    ],
)
def test_other_paths_are_no_webhook(path: bytes) -> None:
    assert route_of(path) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"timeout=10s", 10_000_000_000),
        (b"timeout=1m40s", 30_000_000_000),
        (b"timeout=250ms", 250_000_000),
        (b"a=b&timeout=5s", 5_000_000_000),
        (b"", 7),
        (b"timeout=", 7),
        (b"timeout=-5s", 7),
        (b"timeout=0", 7),
        (b"timeout=10", 7),
        (b"timeout=\xff", 7),
        (b"timeout=" + b"9" * 5000 + b"s", 7),
    ],
)
def test_timeouts(query: bytes, expected: int) -> None:
    assert expected == timeout_ns(query, 7, 30_000_000_000)
