"""Registries that give no answer are not called again for a moment by scans.

A failure means: a dead registry costs a scan its time for each object.
"""

import pytest

from kyverno_mp.egress.outages import RememberedOutages
from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable
from kyverno_mp.limits import REGISTRY_HOSTS_MAX, REGISTRY_OUTAGE_S
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse

FAR_NS = 2**62


class Registries:
    """Counts calls; ``error`` is what they end with."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.calls: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.send = RememberedOutages(self._answer, lambda: self.now_ns)

    def _answer(self, call: RegistryCall, deadline_ns: int) -> RegistryResponse:
        self.calls.append((call.url, deadline_ns))
        if self.error is not None:
            raise self.error
        return RegistryResponse(200, {}, b"")

    def get(self, url: str, deadline_ns: int = FAR_NS) -> None:
        call = RegistryCall(method="GET", url=url, headers={}, bytes_max=1)
        self.send(call, deadline_ns)


@pytest.fixture(name="registries")
def fixture_registries() -> Registries:
    return Registries()


@pytest.mark.parametrize(
    "error",
    [
        RegistryUnavailable("registry.network", "refused"),
        DeadlinePassed("registry.deadline", "slow"),
    ],
)
def test_an_outage_is_remembered_for_a_moment(
    registries: Registries, error: Exception
) -> None:
    """REGISTRY_OUTAGE_S, REGISTRY_SCAN_CALL_S."""
    registries.error = error
    with pytest.raises(RegistryUnavailable):
        registries.get("https://a.example/v2/")
    registries.error = None
    with pytest.raises(RegistryUnavailable):
        registries.get("https://a.example/v2/x")
    assert len(registries.calls) == 1
    # Others, and the same one without TLS, are called.
    registries.get("https://b.example/v2/")
    registries.get("http://a.example/v2/")
    registries.now_ns += REGISTRY_OUTAGE_S * 10**9
    registries.get("https://a.example/v2/")
    assert len(registries.calls) == 4
    assert registries.calls[-1][1] < FAR_NS


@pytest.mark.parametrize(
    ("error", "deadline_ns"),
    [
        (RegistryUnavailable("registry.busy", "too many"), FAR_NS),
        (DeadlinePassed("registry.deadline", "the object's"), 2),
    ],
)
def test_what_says_nothing_about_the_registry_is_forgotten(
    registries: Registries, error: Exception, deadline_ns: int
) -> None:
    registries.error = error
    with pytest.raises(type(error)):
        registries.get("https://a.example/v2/", deadline_ns)
    registries.error = None
    registries.get("https://a.example/v2/")


def test_the_memory_is_bounded(registries: Registries) -> None:
    """REGISTRY_HOSTS_MAX."""
    registries.error = RegistryUnavailable("registry.network", "refused")
    for number in range(REGISTRY_HOSTS_MAX + 1):
        with pytest.raises(RegistryUnavailable):
            registries.get(f"https://r{number}.example/v2/")
    registries.error = None
    registries.get("https://r0.example/v2/")
    with pytest.raises(RegistryUnavailable):
        registries.get(f"https://r{REGISTRY_HOSTS_MAX}.example/v2/")
