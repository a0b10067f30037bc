"""Objects of results are found with few reads, and none while nothing is due.

A failure means: a Pod that is denied after a mutation costs reads for minutes, a kind
that may not be read is asked for each result, or a report lacks results.
"""

from collections.abc import Callable

import msgspec
import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import RESULTS_READ_AGES_S, RESULTS_WATCHED_S_MAX
from kyverno_mp.reports.claims import FORBIDDEN, UNCLAIMED, Claimed, Claims
from kyverno_mp.results.entries import Subject
from tests.unit.kube.fake_api import FakeApi
from tests.unit.results.world import START_NS, pod
from tests.waiting import HANG_S

PODS = Resource(group="", version="v1", plural="pods", namespaced=True)
READS = "^GET .*/pods"


def _unwatched(_resource: Resource, key: Key) -> str | None:
    raise KeyError(key)


def _kind(_version: str, kind: str) -> Resource | None:
    return PODS if kind == "Pod" else None


class Search:
    """Claims with a manual clock."""

    def __init__(
        self,
        api: FakeApi,
        uid_of: Callable[[Resource, Key], str | None] = _unwatched,
        resource_of: Callable[[str, str], Resource | None] = _kind,
    ) -> None:
        self.now_ns = START_NS
        self.failed: list[Subject] = []
        self.claims = Claims(
            api.client().within(HANG_S),
            resource_of,
            uid_of,
            lambda: self.now_ns,
            self.failed.append,
        )

    def pass_s(self, *subjects: Subject, seconds: int) -> list[Claimed]:
        """Claim subjects of reviews at the start twice a second."""
        claimed = []
        newest = dict.fromkeys(subjects, START_NS)
        for _ in range(2 * seconds):
            claimed.append(self.claims(newest))
            self.now_ns += 500_000_000
            for subject in claimed[-1].dropped:
                newest.pop(subject, None)
        return claimed


def outcomes(claimed: list[Claimed]) -> list[tuple[Subject, str]]:
    return [row for one in claimed for row in one.dropped.items()]


@pytest.mark.parametrize("number", [1, 300])
def test_an_object_that_never_appears_is_read_three_times(
    api: FakeApi, number: int
) -> None:
    search = Search(api)
    pods = [pod(f"x{index}") for index in range(number)]
    claimed = search.pass_s(*pods, seconds=100)
    assert api.count(READS) == len(RESULTS_READ_AGES_S) == 3
    assert sorted(outcomes(claimed), key=str) == sorted(
        [(one, UNCLAIMED) for one in pods], key=str
    )


def test_many_objects_are_found_with_one_list(api: FakeApi) -> None:
    pods = [pod(f"x{index}") for index in range(300)]
    for one in pods:
        api.put(f"/api/v1/namespaces/a/pods/{one.name}", metadata={"uid": one.uid})
    search = Search(api)
    (claimed,) = search.pass_s(*pods, seconds=1)[:1]
    assert claimed.stored == {one: one for one in pods}
    assert api.count(READS) == 1
    # They are not looked for again.
    assert search.pass_s(*pods, seconds=1)[-1].stored == claimed.stored
    assert api.count(READS) == 1


def test_many_namespaces_are_found_with_one_list(api: FakeApi) -> None:
    pods = [
        msgspec.structs.replace(pod("x", uid=""), namespace=f"n{index}")
        for index in range(30)
    ]
    for one in pods:
        api.put(
            f"/api/v1/namespaces/{one.namespace}/pods/x",
            metadata={"uid": f"uid-{one.namespace}"},
        )
    claimed = Search(api).pass_s(*pods, seconds=1)[0]
    assert {one.uid for one in claimed.stored.values()} == {
        f"uid-n{index}" for index in range(30)
    }
    assert api.count(READS) == 1


def test_a_stream_of_rejected_objects_is_read_together(api: FakeApi) -> None:
    """Ten objects a second for a minute: a read in two seconds, not 28 for each."""
    search = Search(api)
    newest: dict[Subject, int] = {}
    for number in range(600):
        newest[pod(f"x{number}")] = search.now_ns
        if number % 5 == 0:
            for subject in search.claims(newest).dropped:
                del newest[subject]
        search.now_ns += 10**8
    assert api.count(READS) <= 31


def test_an_object_that_is_stored_late_is_found(api: FakeApi) -> None:
    search = Search(api)
    assert search.pass_s(pod("x"), seconds=5)[-1] == Claimed({}, {})
    api.put("/api/v1/namespaces/a/pods/x", metadata={"uid": "uid-x"})
    assert search.pass_s(pod("x"), seconds=10)[-1].stored == {pod("x"): pod("x")}


def test_an_object_that_was_created_again_is_another_one(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a/pods/x", metadata={"uid": "uid-x"})
    search = Search(api)
    assert search.pass_s(pod("x", uid="other"), seconds=1)[0] == Claimed({}, {})
    nameless, unknown = pod("x", uid=""), pod("y", uid="")
    found = search.pass_s(nameless, unknown, seconds=3)[-1].stored
    assert found == {nameless: pod("x")}


def test_a_watched_object_is_not_read(api: FakeApi) -> None:
    known: dict[Key, str] = {}
    search = Search(api, lambda _resource, key: known.get(key))
    search.pass_s(pod("x"), seconds=RESULTS_WATCHED_S_MAX - 1)
    assert api.count(READS) == 0
    known["a", "x"] = "uid-x"
    assert search.pass_s(pod("x"), seconds=1)[0].stored == {pod("x"): pod("x")}
    assert api.count(READS) == 0


def test_a_kind_that_may_not_be_read_is_not_asked_for_each_result(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    search = Search(api)
    api.fault(READS, *[403] * 40)
    pods = [pod(f"x{index}") for index in range(300)]
    for index, one in enumerate(pods):
        claimed = search.pass_s(one, seconds=1)
        assert outcomes(claimed) == [(one, FORBIDDEN)], index
    assert api.count(READS) <= 300 / 15 + 1
    assert len(caplog.records) <= 300 / 15 + 1


def test_a_granted_kind_is_read_within_seconds(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a/pods/y", metadata={"uid": "uid-y"})
    search = Search(api)
    api.fault(READS, 403)
    search.pass_s(pod("x"), seconds=16)
    assert search.pass_s(pod("y"), seconds=1)[0].stored == {pod("y"): pod("y")}


def test_permissions_in_some_namespaces_are_used(api: FakeApi) -> None:
    pods = [
        msgspec.structs.replace(pod("x", uid=""), namespace=f"n{index}")
        for index in range(10)
    ]
    api.put("/api/v1/namespaces/n3/pods/x", metadata={"uid": "u"})
    api.fault("^GET /api/v1/pods", 403)
    api.fault("^GET /api/v1/namespaces/n[^3]/", *[403] * 9)
    search = Search(api)
    claimed = search.pass_s(*pods, seconds=2)
    assert claimed[-1].stored == {pods[3]: msgspec.structs.replace(pods[3], uid="u")}
    assert {one for one, _ in outcomes(claimed)} == {*pods} - {pods[3]}


def test_results_wait_while_the_api_server_fails(api: FakeApi) -> None:
    search = Search(api)
    api.fault(READS, *[500] * 1000)
    claimed = search.pass_s(pod("x"), seconds=100)
    assert outcomes(claimed) == []
    api.faults.clear()
    assert outcomes(search.pass_s(pod("x"), seconds=3)) == [(pod("x"), UNCLAIMED)]


def test_an_unknown_kind_is_dropped_without_a_read(api: FakeApi) -> None:
    unknown = msgspec.structs.replace(pod("x"), kind="Unknown")
    claimed = Search(api).pass_s(unknown, seconds=100)
    assert outcomes(claimed) == [(unknown, UNCLAIMED)]
    assert api.count(".") == 0


def test_an_unexpected_error_concerns_one_object(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a/pods/y", metadata={"uid": "uid-y"})

    def fails(_resource: Resource, key: Key) -> str | None:
        if key[1] == "x":
            raise RuntimeError
        raise KeyError(key)

    search = Search(api, fails)
    claimed = search.pass_s(pod("x"), pod("y"), seconds=100)
    assert claimed[0].stored == {pod("y"): pod("y")}
    assert outcomes(claimed) == [(pod("x"), UNCLAIMED)]
    assert search.failed


def test_failing_discovery_keeps_the_results(api: FakeApi) -> None:
    def away(_version: str, _kind: str) -> Resource | None:
        raise KubeUnavailable("kube.server", "away")

    search = Search(api, resource_of=away)
    with pytest.raises(KubeUnavailable):
        search.claims({pod("x"): START_NS})


def test_clocks_of_replicas_differ(api: FakeApi) -> None:
    """A result from the future is dropped after the usual time, too."""
    search = Search(api)
    newest = {pod("x"): START_NS + 3600 * 10**9}
    dropped: dict[Subject, str] = {}
    for _ in range(70):
        dropped.update(search.claims(newest).dropped)
        search.now_ns += 10**9
    assert dropped == {pod("x"): UNCLAIMED}
