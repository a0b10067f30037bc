"""Attack with registries that answer no call, and measure a neighbour's image reviews.

Used by perf/neighbours.py. Each attacker has a namespace and a registry of its own; the
neighbour's registry answers. Verified images are not cached, so each of its reviews
calls the registry.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.service import Service, pod, review_of
from tests.image_rig import Contents, Signer, serving
from tests.unit.webhook.images.test_images import block, policy, signed

_JSON = {"Content-Type": "application/json"}
_VARIABLES = {"KYVERNO_MP_REGISTRY_ALLOWLIST": "*,127.0.0.0/8"}
_NEIGHBOUR = "neighbour"
_CONNECTIONS = 2
"""Of the neighbour."""


class Rates(NamedTuple):
    """The neighbour's reviews per second, without and with the attack."""

    quiet: float
    attacked: float


def measured(folder: Path, attackers: int, connections: int, seconds: float) -> Rates:
    """Measure both with one service of one worker."""
    contents, signer = Contents(), Signer()
    signed(contents, signer)
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(serving(contents, is_canned=False))
        dead = [stack.enter_context(_silent(number)) for number in range(attackers)]
        blocks = [block(host, signer, useCache=False) for host in (good, *dead)]
        service = stack.enter_context(_service(folder, policy("p", *blocks), attackers))
        ask = _Client(service, _NEIGHBOUR, f"{good}/app:v1")
        assert ask.once()["allowed"]
        ask.close()
        quiet = _rate(service, f"{good}/app:v1", seconds)
        with _attack(service, dead, connections):
            # The first calls must have failed, or hang.
            time.sleep(seconds / 3)
            return Rates(quiet, _rate(service, f"{good}/app:v1", seconds))


@contextlib.contextmanager
def _service(folder: Path, policies: str, attackers: int) -> Iterator[Service]:
    (folder / "policies").mkdir()
    (folder / "policies" / "p.yaml").write_text(policies)
    (folder / "resources").mkdir()
    names = (_NEIGHBOUR, *map(_tenant, range(attackers)))
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in names
    ]
    text = "\n---\n".join(map(json.dumps, namespaces))
    (folder / "resources" / "n.yaml").write_text(text)
    flags = ("--resources", str(folder / "resources"))
    service = Service(folder, *flags, workers=1, variables=_VARIABLES)
    with contextlib.closing(service):
        service.wait(service.ready)
        yield service


@contextlib.contextmanager
def _silent(number: int) -> Iterator[str]:
    """Accept connections at an address of its own, and send nothing."""
    with socket.create_server((f"127.0.0.{number + 2}", 0)) as server:
        yield f"127.0.0.{number + 2}:{server.getsockname()[1]}"


class _Client:
    """One connection that asks for reviews of one image, one after another."""

    def __init__(self, service: Service, namespace: str, image: str) -> None:
        review = review_of(pod())
        review["request"]["namespace"] = namespace
        given = review["request"]["object"]
        given["metadata"]["namespace"] = namespace
        given["spec"]["containers"][0]["image"] = image
        self._body = json.dumps(review)
        self._link = service.connect()

    def once(self) -> dict[str, Any]:
        self._link.request("POST", "/mutate/fail?timeout=10s", self._body, _JSON)
        found: dict[str, Any] = json.loads(self._link.getresponse().read())["response"]
        return found

    def close(self) -> None:
        self._link.close()


def _rate(service: Service, image: str, seconds: float) -> float:
    """Return the neighbour's admitted reviews per second."""
    until = time.monotonic() + seconds
    counts = [0] * _CONNECTIONS

    def ask(number: int) -> None:
        client = _Client(service, _NEIGHBOUR, image)
        with contextlib.closing(client):
            while time.monotonic() < until:
                counts[number] += bool(client.once()["allowed"])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


@contextlib.contextmanager
def _attack(service: Service, hosts: list[str], connections: int) -> Iterator[None]:
    ending = threading.Event()

    def ask(number: int, host: str) -> None:
        client = _Client(service, _tenant(number), f"{host}/app:v1")
        with contextlib.closing(client):
            while not ending.is_set():
                client.once()

    threads = [
        threading.Thread(target=ask, args=(number, host))
        for number, host in enumerate(hosts)
        for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _tenant(number: int) -> str:
    return f"attacker-{number}"
