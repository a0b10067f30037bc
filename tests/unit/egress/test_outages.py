"""Scans do not call an unresponsive registry again for a short time.

A failure means: a dead registry delays a scan for each object.
"""

import socket
import threading

import pytest

from kyverno_mp.egress.outages import RememberedOutages
from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable
from kyverno_mp.limits import REGISTRY_HOSTS_MAX, REGISTRY_OUTAGE_S
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse, exchange
from tests.waiting import far_ns

FAR_NS = 2**62


class Registries:
    """A registry that counts calls; ``error`` is raised by each call."""

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

    def get(
        self,
        url: str,
        deadline_ns: int = FAR_NS,
        *,
        is_verified: bool = True,
        is_redirected: bool = False,
    ) -> None:
        call = RegistryCall(
            method="GET",
            url=url,
            headers={},
            bytes_max=1,
            is_verified=is_verified,
            is_redirected=is_redirected,
        )
        self.send(call, deadline_ns)

    def fail(self, error: Exception, url: str) -> None:
        """Let only one call fail."""
        self.error = error
        with pytest.raises(RegistryUnavailable):
            self.get(url)
        self.error = None


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
def test_outage_is_remembered_briefly(registries: Registries, error: Exception) -> None:
    """The times are REGISTRY_OUTAGE_S and REGISTRY_SCAN_CALL_S."""
    registries.error = error
    with pytest.raises(RegistryUnavailable):
        registries.get("https://a.example/v2/")
    registries.error = None
    with pytest.raises(RegistryUnavailable):
        registries.get("https://a.example/v2/x")
    assert len(registries.calls) == 1
    # Other registries, and this registry without TLS, are called.
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
def test_unrelated_errors_are_not_remembered(
    registries: Registries, error: Exception, deadline_ns: int
) -> None:
    registries.error = error
    with pytest.raises(type(error)):
        registries.get("https://a.example/v2/", deadline_ns)
    registries.error = None
    registries.get("https://a.example/v2/")


@pytest.mark.parametrize(
    ("path", "same", "other"),
    [
        ("v2/evil/x/manifests/v1", "v2/evil/x/blobs/sha256:0", "v2/good/manifests/v1"),
        ("v2/evil/tags/list", "v2/evil/manifests/v2", "v2/evil/x/manifests/v1"),
        ("token?scope=a", "token?scope=a", "token?scope=b"),
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        RegistryUnavailable("registry.network", "reset"),
        DeadlinePassed("registry.deadline", "slow"),
    ],
)
def test_hanging_calls_are_remembered_per_repository(
    registries: Registries,
    error: DeadlinePassed | RegistryUnavailable,
    path: str,
    same: str,
    other: str,
) -> None:
    """A connected registry may be a proxy cache of several others."""
    error.is_connected = True
    registries.fail(error, f"https://a.example/{path}")
    with pytest.raises(RegistryUnavailable):
        registries.get(f"https://a.example/{same}")
    registries.get(f"https://a.example/{other}")


@pytest.mark.parametrize("how", [{"is_verified": False}, {"is_redirected": True}])
def test_outage_applies_to_calls_with_the_same_tls_settings(
    registries: Registries, how: dict[str, bool]
) -> None:
    """An untrusted certificate is no outage for callers that do not verify it."""
    error = RegistryUnavailable("registry.network", "self-signed certificate")
    registries.fail(error, "https://a.example/v2/")
    registries.get("https://a.example/v2/", **how)
    with pytest.raises(RegistryUnavailable):
        registries.get("https://a.example/v2/")


def _hang_up(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.close()


@pytest.mark.parametrize("takes", [False, True])
def test_error_states_whether_a_connection_was_made(*, takes: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if takes:
            server.listen()
            hang_up = threading.Thread(target=_hang_up, args=(server,))
            hang_up.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v2/"
        call = RegistryCall(method="GET", url=url, headers={}, bytes_max=1)
        with pytest.raises(RegistryUnavailable) as raised:
            exchange(call, far_ns())
        if takes:
            hang_up.join()
    assert raised.value.is_connected is takes


def test_memory_is_bounded(registries: Registries) -> None:
    """The limit is REGISTRY_HOSTS_MAX."""
    registries.error = RegistryUnavailable("registry.network", "refused")
    for number in range(REGISTRY_HOSTS_MAX + 1):
        with pytest.raises(RegistryUnavailable):
            registries.get(f"https://r{number}.example/v2/")
    registries.error = None
    registries.get("https://r0.example/v2/")
    with pytest.raises(RegistryUnavailable):
        registries.get(f"https://r{REGISTRY_HOSTS_MAX}.example/v2/")
