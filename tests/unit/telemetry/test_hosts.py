"""Labels of calls to hosts: a few hosts have names, and others cannot take them.

A failure means: tenants fill the metrics of registries, or the alert on a registry is
silent because other hosts have taken all names.
"""

import pytest

from kyverno_mp.limits import REGISTRY_HOSTS_NAMED_IDLE_S, REGISTRY_HOSTS_NAMED_MAX
from kyverno_mp.telemetry import hosts as module
from kyverno_mp.telemetry.hosts import OTHER, HostLabels


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the clock, in seconds."""
    clock = [1]
    monkeypatch.setattr(module, "monotonic_ns", lambda: clock[0] * 10**9)
    return clock


def name_of(hosts: HostLabels, host: str, outcome: str = "200") -> str:
    return hosts.labels(host, outcome)[0]


@pytest.mark.parametrize(
    "outcome", ["network", "deadline", "refused", "302", "401", "404", "500", "2", "2x"]
)
def test_host_gets_a_label_after_its_first_success(outcome: str) -> None:
    hosts = HostLabels()
    assert name_of(hosts, "r.example", outcome) == OTHER
    assert name_of(hosts, "R.example.") == "r.example"
    assert name_of(hosts, "r.example", outcome) == "r.example"
    assert name_of(hosts, "") == OTHER


def test_hosts_in_the_settings_always_have_a_label() -> None:
    number = 2 * REGISTRY_HOSTS_NAMED_MAX
    hosts = HostLabels(f"Named{at}" for at in range(number))
    for at in range(number):
        name_of(hosts, f"r{at}")
    for at in range(number):
        assert name_of(hosts, f"named{at}", "network") == f"named{at}"


def test_other_labelled_hosts_are_bounded() -> None:
    """Those that never succeed take no place, however many they are."""
    hosts = HostLabels(["first", ""])
    for at in range(2 * REGISTRY_HOSTS_NAMED_MAX):
        name_of(hosts, f"away{at}", "network")
        name_of(hosts, f"failing{at}", "500")
    found = {name_of(hosts, f"r{at}") for at in range(2 * REGISTRY_HOSTS_NAMED_MAX)}
    assert len(found - {OTHER}) == REGISTRY_HOSTS_NAMED_MAX
    assert OTHER in found
    assert name_of(hosts, "first", "network") == "first"
    assert name_of(hosts, "", "network") == OTHER


def test_idle_host_is_replaced_by_another(now: list[int]) -> None:
    hosts = HostLabels()
    names = [f"r{at}" for at in range(REGISTRY_HOSTS_NAMED_MAX)]
    for name in names:
        name_of(hosts, name)
    now[0] += REGISTRY_HOSTS_NAMED_IDLE_S - 1
    # A failed call is a call: a registry in an outage keeps its name for the alert.
    assert name_of(hosts, names[0], "network") == names[0]
    assert name_of(hosts, "late") == OTHER
    now[0] += 1
    assert name_of(hosts, "late", "500") == OTHER
    assert name_of(hosts, names[1], "500") == names[1]
    assert name_of(hosts, "late") == "late"
    assert [name for name in names if name_of(hosts, name, "network") == OTHER] == [
        names[2]
    ]
    # All hosts were called now.
    assert name_of(hosts, names[2]) == OTHER


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        ("200", "200"),
        ("404", "404"),
        ("503", "503"),
        ("299", "2xx"),
        ("399", "3xx"),
        ("418", "4xx"),
        ("599", "5xx"),
        ("199", "1xx"),
        ("987", OTHER),
        ("099", OTHER),
        ("5", OTHER),
        ("5000", OTHER),
        ("network", "network"),
        ("deadline", "deadline"),
        ("refused", "refused"),
    ],
)
def test_server_cannot_choose_label_values(outcome: str, label: str) -> None:
    assert HostLabels().labels("r.example", outcome)[1] == label
