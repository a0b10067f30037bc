"""A worker of a standalone service evaluates the policies in CEL of its folder.

A failure means: workers do not follow a segment that the leader publishes, or a worker
answers before it has the policies.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.leader.loop import PAGES, SNAPSHOT, Leader
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import HTTP, RESULTS, VALIDATING_RESULTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.route import route_of
from kyverno_mp.webhook.start import make_start
from kyverno_mp.webhook.worker import Served
from tests.unit.webhook.cel.test_cel_policies import policy, review
from tests.waiting import HANG_S


class Service:
    """A leader of a folder of policies, and one worker."""

    def __init__(self, folder: Path) -> None:
        self.policies = folder / "policies"
        for name in (self.policies, folder / SNAPSHOT, folder / PAGES, folder / "tls"):
            name.mkdir(mode=0o700)
        self.given = Settings(standalone=True, policies_dir=str(self.policies))
        self.snapshot = folder / SNAPSHOT
        recorder = Recorder(Page.claim(folder / PAGES, "leader"), 100)
        publisher = Publisher(self.snapshot)
        self.leader = Leader(self.given, folder, publisher, recorder)
        files = make(folder / "tls", "kyverno")
        self.places = Places(self.snapshot, folder / PAGES, files.cert, files.key)
        self.loop = asyncio.new_event_loop()
        self.served: Served | None = None

    def put(self, *documents: dict[str, Any]) -> None:
        text = "\n---\n".join(map(json.dumps, documents))
        (self.policies / "p.yaml").write_text(text)
        self.leader.step(force=True)
        while self.leader.has_pending:
            self.leader.step()
        if self.served is not None:
            newest = self.leader.generation
            self.until(lambda: self.generations()[POLICIES] == newest)

    def turn(self) -> None:
        """Let the worker notice what has changed."""
        self.loop.run_until_complete(asyncio.sleep(0.25))

    def until(self, is_so: Callable[[], bool]) -> None:
        """Run the worker's loop until something is so."""
        end_s = self.loop.time() + 120
        while not is_so():
            assert self.loop.time() < end_s
            self.loop.run_until_complete(asyncio.sleep(0.01))

    def start(self) -> None:
        self.served = make_start(self.given, self.places)(self.loop)

    def allows(self, path: str, **changes: Any) -> bool:
        return bool(self.answer(path, **changes)["allowed"])

    def answer(self, path: str, **changes: Any) -> dict[str, Any]:
        assert self.served is not None
        route = route_of(path.encode())
        assert route is not None
        service = self.served.connections.service
        answer = service.answer(route, b"", review(**changes))
        if not isinstance(answer, bytes):
            answer = self.loop.run_until_complete(asyncio.wait_for(answer, HANG_S))
        decoded: dict[str, Any] = json.loads(answer)["response"]
        return decoded

    def generations(self) -> dict[str, int]:
        (worker,) = ControlPage.open(self.snapshot).workers()
        return worker.generations

    def close(self) -> None:
        if self.served is not None:
            self.served.stop(1.0)
        self.loop.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.close()


def test_policies_in_a_folder_are_enforced(service: Service) -> None:
    service.put(policy())
    service.start()
    assert not service.allows("/vpol/team")
    service.put(policy(validationActions=["Audit"]))
    assert service.allows("/vpol/team")
    service.put(policy("other"))
    # The policy existed at the last request, so its webhook may still be registered.
    assert service.allows("/vpol/team")
    assert not service.allows("/vpol/other")


def test_change_creates_a_generation_of_all_policies(service: Service) -> None:
    """Ready on a policy means that each worker serves that generation."""
    service.put(policy())
    service.start()
    before = service.generations()
    service.put(policy(validationActions=["Audit"]))
    assert service.leader.generation == before[POLICIES] + 1
    service.put(policy(validationActions=["Audit"]))
    assert service.leader.generation == before[POLICIES] + 1


def test_worker_without_its_segment_does_not_answer(service: Service) -> None:
    service.put(policy())
    file = service.snapshot / segment_file(VALIDATING_POLICY.segment)
    file.write_bytes(file.read_bytes()[:-8])
    service.start()
    with pytest.raises(HttpError) as refused:
        service.allows("/vpol/team")
    assert refused.value.status == 503
    # The other policies do not need it, and the leader repairs it.
    assert service.allows("/validate/fail")
    service.leader.step()
    assert not service.allows("/vpol/team")


def test_results_are_counted_by_upstreams_name(service: Service) -> None:
    service.put(policy(), policy("audits", validationActions=["Audit"]))
    service.start()
    service.allows("/vpol")
    service.loop.run_until_complete(asyncio.sleep(0))
    found = merge(views(service.snapshot.parent / PAGES))
    series = found[VALIDATING_RESULTS]
    where = ("Pod", "a", "create", "admission_request", "fail")
    assert set(series) == {
        ("Kubernetes", "true", "-", "audits", *where),
        ("Kubernetes", "true", "-", "team", *where),
    }
    assert all(sum(cells[:-1]) == 1.0 for cells in series.values())
    assert not found.get(RESULTS)
    assert set(found[HTTP]) == {("POST", "/vpol")}


def test_namespace_selector_reads_the_namespace(service: Service) -> None:
    selector = {"matchLabels": {"team": "x"}}
    given = policy()
    given["spec"]["matchConstraints"]["namespaceSelector"] = selector
    service.put(given)
    service.start()
    # Without a cluster, nobody knows the labels, so the request is denied.
    assert not service.allows("/vpol/team")
