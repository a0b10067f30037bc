"""A standalone service's worker mutates by the MutatingPolicies of its folder.

A failure means: workers do not follow a segment that the leader publishes, or the
leader counts it under another name.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.leader.loop import PAGES
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import HTTP, MUTATING_RESULTS, RESULTS
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY, VALIDATING_POLICY
from kyverno_mp.webhook.http_errors import HttpError
from tests.unit.webhook.cel import test_cel_policies
from tests.unit.webhook.cel.test_cel_worker import Service
from tests.unit.webhook.cel.test_mutating_policies import BROKEN, policy
from tests.waiting import wait_on_loop


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.close()


def finish(service: Service) -> None:
    """Let the leader compile deferred policies, because one step has little time."""
    while service.leader.has_pending:
        service.leader.step()


def await_count(service: Service) -> None:
    """Run the loop until the review is counted: a thread may hand over the count."""

    def is_counted() -> bool:
        return bool(merge(views(service.snapshot.parent / PAGES)).get(MUTATING_RESULTS))

    service.loop.run_until_complete(wait_on_loop(is_counted))


def test_change_creates_a_generation_of_all_policies(service: Service) -> None:
    """Ready on a policy means that each worker serves that generation."""
    service.put(policy(), test_cel_policies.policy("v"))
    finish(service)
    service.start()
    assert service.allows("/mpol/team")
    assert not service.allows("/vpol/v")
    page = ControlPage.open(service.snapshot)
    names = (POLICIES, MUTATING_POLICY.segment, VALIDATING_POLICY.segment)
    before = [page.generation(name) for name in names]
    service.put(policy("team", BROKEN), test_cel_policies.policy("v"))
    assert not service.allows("/mpol/team")
    # An unchanged kind is not published again.
    after = [page.generation(name) for name in names]
    assert after == [before[0] + 1, before[1] + 1, before[2]]


def test_worker_without_its_segment_does_not_answer(service: Service) -> None:
    service.put(policy())
    file = service.snapshot / segment_file(MUTATING_POLICY.segment)
    file.write_bytes(file.read_bytes()[:-8])
    service.start()
    with pytest.raises(HttpError) as refused:
        service.allows("/mpol/team")
    assert refused.value.status == 503
    # The other policies do not need it, and the leader repairs it.
    assert service.allows("/vpol")
    service.leader.step()
    assert service.allows("/mpol/team")


def test_results_are_counted_by_upstreams_name(service: Service) -> None:
    service.put(policy("a"), policy("b", BROKEN))
    finish(service)
    service.start()
    service.allows("/mpol")
    await_count(service)
    found = merge(views(service.snapshot.parent / PAGES))
    where = ("Pod", "a", "create", "admission_request")
    assert set(found[MUTATING_RESULTS]) == {
        ("true", "-", "a", *where, "pass"),
        ("true", "-", "b", *where, "error"),
    }
    assert not found.get(RESULTS)
    assert set(found[HTTP]) == {("POST", "/mpol")}


def test_no_existing_object_is_mutated_without_a_pool(service: Service) -> None:
    """The policy is rejected, because no pool would run it."""
    service.put(policy(evaluation={"mutateExisting": {"enabled": True}}))
    (status,) = service.leader._status.policies
    assert not status.ready
    assert status.code == "leader.unsupported"
    assert "no background pool" in status.message
