"""Hosts in labels of metrics: a few have names, and nobody else takes their places."""

from kyverno_mp.limits import REGISTRY_HOSTS_NAMED_MAX
from kyverno_mp.telemetry.hosts import OTHER, HostLabels


def test_a_host_has_a_name_when_it_has_answered() -> None:
    hosts = HostLabels()
    assert hosts.label("r.example", has_answered=False) == OTHER
    assert hosts.label("R.example.", has_answered=True) == "r.example"
    assert hosts.label("r.example", has_answered=False) == "r.example"
    assert hosts.label("", has_answered=True) == OTHER


def test_hosts_that_the_operator_names_need_no_answer() -> None:
    hosts = HostLabels(["r.example"])
    assert hosts.label("r.example", has_answered=False) == "r.example"


def test_the_named_hosts_are_bounded() -> None:
    """Those that never answer take no place, however many they are."""
    hosts = HostLabels(f"named{at}" for at in range(2 * REGISTRY_HOSTS_NAMED_MAX))
    assert hosts.label("named0", has_answered=False) == "named0"
    assert hosts.label("r.example", has_answered=True) == OTHER
    hosts = HostLabels(["first"])
    for at in range(2 * REGISTRY_HOSTS_NAMED_MAX):
        hosts.label(f"away{at}", has_answered=False)
    found = {
        hosts.label(f"r{at}", has_answered=True)
        for at in range(2 * REGISTRY_HOSTS_NAMED_MAX)
    }
    assert len(found - {OTHER}) == REGISTRY_HOSTS_NAMED_MAX - 1
    assert OTHER in found
    assert hosts.label("first", has_answered=False) == "first"
