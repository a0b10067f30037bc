"""The secret path segment: made once, known to all before use, replaced without a gap.

A replica that does not know a segment answers 404 to its path, and a configuration
without the segment sends reviews without proof.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.controllers.caller_path.controller import (
    LOOK,
    CallerPathController,
    Inputs,
    Rules,
    new_segment,
)
from kyverno_mp.controllers.caller_path.known import Known
from kyverno_mp.controllers.caller_path.plan import Facts, Paths, plan
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.rights import ADMISSION_ACCOUNT, MissingRights
from kyverno_mp.queues.clock import Clock
from kyverno_mp.snapshot.callers import Callers, is_segment
from tests.unit.kube.fake_api import FakeApi, running

Json = Any
SECRET = "/api/v1/namespaces/kyverno/secrets/caller"
DEPLOYMENT = "/apis/apps/v1/namespaces/kyverno/deployments/d"
OVERLAP_S, ROTATE_S = 60.0, 3600.0


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


class Read(Objects):
    """Objects whose changes are reported, as by the leader's watches."""

    @property
    def is_followed(self) -> bool:
        return True


class Cluster:
    """The replicas of a Deployment, and the API server's webhook configurations."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.replicas: dict[str, Replica] = {}
        self.foreign: dict[str, Known] = {}
        """Replicas of other versions that report."""
        self.silent: frozenset[str] = frozenset()
        self.written: frozenset[str] = frozenset({""})
        """The segments in the webhook configurations."""

    def now_s(self) -> float:
        return self.now.timestamp()

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def join(self, name: str, *, is_on: bool = True) -> "Replica":
        self.replicas[name] = Replica(self, name, is_on=is_on)
        return self.replicas[name]

    def step(self) -> None:
        """Reconcile every replica once; the workers attach; the leader registers."""
        for replica in self.replicas.values():
            replica.controller.reconcile("all")
        for replica in self.replicas.values():
            replica.known = replica.callers.serial

    def settle(self, seconds: float = 4.0) -> None:
        for _ in range(round(seconds / 2)):
            self.step()
            self.pass_s(2)


class Replica:
    def __init__(self, cluster: Cluster, name: str, *, is_on: bool = True) -> None:
        self.cluster = cluster
        self.callers = Callers()
        self.known = 0
        self.exposures = 0
        self.registers = True
        client = cluster.api.client()
        self.rights = client.rights = MissingRights(ADMISSION_ACCOUNT)
        objects = Read(client)
        terms = Terms(namespace="kyverno", name="kyverno", identity=name)
        self.published = 0
        self.election = Election(objects, terms, clock_ns=lambda: 1)
        self.election.step()
        self.controller = CallerPathController(
            objects,
            self.election,
            Rules(
                secret=("kyverno", "caller"),
                deployment="d",
                overlap_s=OVERLAP_S,
                rotate_s=ROTATE_S,
            ),
            Inputs(
                own=lambda: Known(self.known, self.exposures),
                others=lambda: (
                    {
                        other: Known(one.known, one.exposures)
                        for other, one in cluster.replicas.items()
                        if one is not self
                    }
                    | cluster.foreign
                ),
                silent=lambda: cluster.silent,
                registered=lambda: cluster.written,
                publish=self.take,
                on_registered=self.register,
                lacks=partial(self.rights.hold, "caller"),
            ),
            Clock(
                now=lambda: cluster.now,
                monotonic_s=cluster.now_s,
            ),
            is_on=is_on,
        )

    def take(self, callers: Callers) -> None:
        self.callers = callers
        self.published += 1

    def register(self) -> None:
        if self.registers and self.election.holds():
            self.cluster.written = frozenset({self.controller.segment()})


def deployment(
    api: FakeApi,
    *,
    replicas: int,
    updated: int | None = None,
    known: bool = True,
    generation: int = 1,
) -> None:
    """Store the Deployment; its controller has seen the first generation."""
    labels = {"kyverno-mp.io/caller-path": "known"} if known else {}
    api.put(
        DEPLOYMENT,
        metadata={"generation": generation},
        spec={"template": {"metadata": {"labels": labels}}},
        status={
            "observedGeneration": 1,
            "replicas": replicas,
            "updatedReplicas": replicas if updated is None else updated,
        },
    )


def segment_of(cluster: Cluster) -> str:
    (found,) = cluster.written
    return found


def test_registered_only_after_every_replica_knows_it(api: FakeApi) -> None:
    cluster = Cluster(api)
    one, two = cluster.join("one"), cluster.join("two")
    one.controller.reconcile("all")
    two.controller.reconcile("all")
    assert one.callers.segments == two.callers.segments
    assert is_segment(one.callers.segments[0])
    one.known = one.callers.serial
    one.controller.reconcile("all")
    assert cluster.written == {""}, "the other replica would answer 404"
    two.known = two.callers.serial
    one.controller.reconcile("all")
    assert segment_of(cluster) == one.callers.segments[0]


def test_required_only_after_the_overlap(api: FakeApi) -> None:
    cluster = Cluster(api)
    one, two = cluster.join("one"), cluster.join("two")
    cluster.settle()
    assert segment_of(cluster)
    assert {one.callers.required, two.callers.required} == {False}
    cluster.settle(OVERLAP_S + 4)
    assert {one.callers.required, two.callers.required} == {True}


def settled(api: FakeApi) -> tuple[Cluster, Replica, Replica]:
    deployment(api, replicas=2)
    cluster = Cluster(api)
    one, two = cluster.join("one"), cluster.join("two")
    cluster.settle(OVERLAP_S + 8)
    assert one.callers.required
    assert two.callers.required
    return cluster, one, two


def test_configuration_without_segment_ends_the_requirement_at_once(
    api: FakeApi,
) -> None:
    """Kyverno took the lease and wrote its own paths."""
    cluster, one, two = settled(api)
    cluster.written |= {""}
    cluster.step()
    assert [one.callers.required, two.callers.required] == [False, False]
    assert one.callers.segments, "calls with the segment are still proved"


def test_replica_of_an_old_version_gets_paths_without_segment(api: FakeApi) -> None:
    cluster, one, _ = settled(api)
    cluster.foreign = {"old": Known(None)}
    cluster.step()
    assert segment_of(cluster) == ""
    assert not one.callers.required
    cluster.foreign = {}
    cluster.settle()
    assert segment_of(cluster) == one.callers.segments[-1]


def test_way_back_to_kyverno_gets_paths_without_segment(api: FakeApi) -> None:
    """Its pods report nothing; the pod template has no label."""
    cluster, one, _ = settled(api)
    deployment(api, replicas=3, updated=1, known=False)
    cluster.step()
    assert segment_of(cluster) == ""
    assert not one.callers.required


def test_way_back_to_kyverno_is_noticed_before_its_first_pod(api: FakeApi) -> None:
    """The API server would call that pod with a segment until the paths are written."""
    cluster, one, two = settled(api)
    deployment(api, replicas=2, known=False, generation=2)
    cluster.step()
    assert segment_of(cluster) == ""
    assert not one.callers.required
    assert one.controller.needs_upstream_paths
    assert two.controller.needs_upstream_paths


def test_replicas_without_the_label_report_for_themselves(api: FakeApi) -> None:
    """A manifest of the user's own has no label; nothing is rolled out."""
    cluster, one, _ = settled(api)
    deployment(api, replicas=2, known=False)
    cluster.settle()
    assert segment_of(cluster) == one.callers.segments[-1]


def test_takeover_waits_for_the_last_pod_of_kyverno(api: FakeApi) -> None:
    deployment(api, replicas=3, updated=1)
    cluster = Cluster(api)
    one = cluster.join("one")
    cluster.settle(OVERLAP_S * 2)
    assert segment_of(cluster) == ""
    assert not one.callers.required
    assert one.controller.needs_upstream_paths
    deployment(api, replicas=1)
    cluster.settle()
    assert segment_of(cluster) == one.callers.segments[0]
    assert not one.controller.needs_upstream_paths


def test_without_segments_kyverno_gets_its_own_paths(api: FakeApi) -> None:
    """With KYVERNO_MP_CALLER_PATH=false, in a take-over and on the way back."""
    cluster, needs = Cluster(api), []
    one = cluster.join("one", is_on=False)
    for replicas, updated, known in ((3, 1, True), (1, 1, True), (1, 1, False)):
        # On the way back, the first pod of Kyverno does not exist yet.
        generation = 1 if known else 2
        deployment(
            api, replicas=replicas, updated=updated, known=known, generation=generation
        )
        cluster.step()
        needs.append(one.controller.needs_upstream_paths)
    assert needs == [True, False, True]
    assert segment_of(cluster) == ""
    assert one.callers == Callers()


def test_rollout_of_the_same_version_keeps_the_segment(api: FakeApi) -> None:
    """New pods read the Secret before they are ready."""
    cluster, one, two = settled(api)
    before = segment_of(cluster)
    deployment(api, replicas=3, updated=1)
    cluster.settle()
    assert segment_of(cluster) == before
    assert one.callers.required
    assert two.callers.required
    cluster.join("three")
    cluster.settle()
    assert not one.controller.needs_upstream_paths


def test_rotation_by_age_is_valid_without_a_gap(api: FakeApi) -> None:
    cluster, one, two = settled(api)
    seen = {segment_of(cluster)}
    for _ in range(round((ROTATE_S + 5 * OVERLAP_S) / 10)):
        cluster.step()
        cluster.pass_s(10)
        for replica in (one, two):
            assert cluster.written <= set(replica.callers.segments)
            assert len(replica.callers.segments) <= 2
        seen |= cluster.written
    assert len(seen) == 2
    assert one.callers.segments == (segment_of(cluster),)


def test_old_segment_outlives_a_configuration_that_is_not_rewritten(
    api: FakeApi,
) -> None:
    cluster, one, two = settled(api)
    before = segment_of(cluster)
    one.registers = two.registers = False
    cluster.pass_s(ROTATE_S)
    cluster.settle(OVERLAP_S * 3)
    assert before in one.callers.segments
    assert len(one.callers.segments) == 2


@pytest.mark.parametrize("whose", ["own", "other", "killed"])
def test_failed_call_replaces_the_segment_soon(api: FakeApi, whose: str) -> None:
    cluster, one, two = settled(api)
    before = segment_of(cluster)
    cluster.settle(300)
    assert segment_of(cluster) == before
    if whose == "own":
        one.exposures += 1
    elif whose == "other":
        two.exposures += 1
    else:
        cluster.silent = frozenset({"two"})
        del cluster.replicas["two"]
        deployment(api, replicas=1)
    cluster.settle(10)
    assert segment_of(cluster) != before
    cluster.settle(300)
    assert before not in one.callers.segments


def test_failed_call_is_not_forgotten_if_it_cannot_be_stored(api: FakeApi) -> None:
    """An outage of the API server fails calls and writes alike."""
    cluster, one, _ = settled(api)
    before = segment_of(cluster)
    cluster.pass_s(300)
    one.exposures += 1
    api.fault("PUT .*secrets", 409)
    cluster.step()
    assert not api.faults
    cluster.settle(10)
    assert segment_of(cluster) != before


def test_failed_call_is_not_forgotten_if_the_holder_ends(api: FakeApi) -> None:
    cluster, one, two = settled(api)
    before = segment_of(cluster)
    cluster.pass_s(300)
    cluster.step()
    two.exposures += 1
    one.election.release()
    two.election.step()
    assert two.election.holds()
    cluster.settle(10)
    assert segment_of(cluster) != before


def test_restarted_replica_may_have_failed_calls(api: FakeApi) -> None:
    """It counts from zero again."""
    cluster, _, two = settled(api)
    two.exposures = 5
    cluster.settle(300)
    before = segment_of(cluster)
    two.exposures = 1
    cluster.settle(10)
    assert segment_of(cluster) != before


def test_many_failed_calls_do_not_replace_it_endlessly(api: FakeApi) -> None:
    cluster, one, _ = settled(api)
    seen: set[str] = set()
    for _ in range(300):
        one.exposures += 1
        cluster.step()
        cluster.pass_s(2)
        seen |= cluster.written
    assert 1 < len(seen) <= 600 / 120 + 1


def test_looks_are_cheap_until_something_changes(api: FakeApi) -> None:
    """PERF: a reconcile each second took 0.2 % of a core of an idle pod."""
    cluster = Cluster(api)
    one, two = cluster.join("one"), cluster.join("two")
    deployment(api, replicas=2)
    cluster.settle(OVERLAP_S * 3)
    assert one.callers.required
    before = one.published
    for _ in range(60):
        one.controller.reconcile(LOOK)
    assert one.published == before
    segment = one.controller.segment()
    two.exposures += 1
    one.controller.reconcile(LOOK)
    assert one.published == before + 1, "a failed call is seen at the next look"
    for _ in range(round(ROTATE_S)):
        cluster.pass_s(1)
        for replica in cluster.replicas.values():
            replica.controller.reconcile(LOOK)
            replica.known = replica.callers.serial
        if one.controller.segment() != segment:
            break
    assert one.controller.segment() != segment, "looks alone replace it"


def test_secret_that_may_not_be_read_hinders_nothing(api: FakeApi) -> None:
    cluster = Cluster(api)
    one = cluster.join("one")
    api.fault("secrets", *([403] * 10))
    cluster.step()
    assert one.controller.is_read
    assert one.callers == Callers()
    assert cluster.written == {""}


@pytest.mark.parametrize("is_on", [True, False])
def test_deployment_that_may_not_be_read_is_reported(
    api: FakeApi, *, is_on: bool
) -> None:
    """Otherwise, Kyverno's paths would stay for ever without a word."""
    deployment(api, replicas=1)
    cluster = Cluster(api)
    one = cluster.join("one", is_on=is_on)
    api.fault("GET .*/deployments/d", *[403] * 10)
    for _ in range(3):
        cluster.step()
    assert one.controller.needs_upstream_paths
    (problem,) = one.rights.problems()
    assert "may not get deployments.apps in kyverno" in problem
    assert "namespaced policies in CEL keep Kyverno's paths" in problem
    api.faults.clear()
    cluster.step()
    assert not one.rights.problems()
    assert not one.controller.needs_upstream_paths


def test_deleted_secret_is_restored_and_soon_replaced(api: FakeApi) -> None:
    cluster, one, two = settled(api)
    before = segment_of(cluster)
    api.remove(SECRET)
    for _ in range(20):
        cluster.step()
        cluster.pass_s(2)
        for replica in (one, two):
            assert cluster.written <= set(replica.callers.segments)
    cluster.settle(300)
    assert segment_of(cluster) != before


def test_lost_permission_registers_paths_without_segment(api: FakeApi) -> None:
    """The next version, which may not know segments, has its own permissions."""
    cluster, one, _ = settled(api)
    api.fault("secrets", *([403] * 10))
    cluster.step()
    assert segment_of(cluster) == ""
    assert one.callers.segments, "calls in flight are still proved"


@pytest.mark.parametrize(
    "content", [{}, {"paths": "x"}, {"paths": "e30="}, {"paths": "eyJrbm93biI6MX0="}]
)
def test_damaged_secret_is_replaced(api: FakeApi, content: dict[str, str]) -> None:
    api.put(SECRET, data=content)
    cluster = Cluster(api)
    one = cluster.join("one")
    cluster.settle()
    assert segment_of(cluster) == one.callers.segments[0]


def test_new_segments_are_long_and_differ() -> None:
    found = {new_segment() for _ in range(100)}
    assert len(found) == 100
    # Hexadecimal: four bits each.
    assert all(4 * len(one.removeprefix("caller-")) >= 128 for one in found)


def facts_of(now: float, *, knows: bool, keeps: bool, exposed: bool) -> Facts:
    def all_know(_serial: int) -> bool:
        return knows

    def is_written(_segment: str) -> bool:
        return True

    return Facts(now, keeps, all_know, is_written, exposed)


@given(
    st.lists(
        st.tuples(st.floats(-50, 4000), st.booleans(), st.booleans(), st.booleans()),
        max_size=40,
    )
)
def test_registered_segment_is_always_valid(
    turns: list[tuple[float, bool, bool, bool]],
) -> None:
    """So is the one that was registered before, until the overlap has passed."""
    paths, now = Paths(), 1e9
    left: tuple[str, float] = ("", 0.0)
    for passed_s, knows, keeps, exposed in turns:
        now += passed_s
        facts = facts_of(now, knows=knows, keeps=keeps, exposed=exposed)
        after = plan(paths, facts, new_segment, overlap_s=OVERLAP_S, rotate_s=ROTATE_S)
        valid = [one.segment for one in after.known]
        assert after.is_sound()
        assert after.segment() in (*valid, "")
        if after.registered and after.registered != paths.registered:
            assert knows
        if paths.segment() and after.segment() != paths.segment():
            left = paths.segment(), now
        if left[0] and 0 <= now - left[1] < OVERLAP_S and paths.segment():
            assert left[0] in valid
        paths = after
