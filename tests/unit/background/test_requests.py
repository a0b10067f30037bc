"""UpdateRequests: retries, marks, absent triggers, permissions, number of calls."""

import threading
from typing import Any

import pytest

from kyverno_mp.background import start
from kyverno_mp.background.update_request import GENERATE, Task, Trigger
from kyverno_mp.limits import BACKGROUND_ATTEMPTS_MAX
from kyverno_mp.queues.update_requests import SEEN_VERSION
from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    PREFIX,
    REQUESTS,
    SECRETS,
    Term,
    identity,
    new_cluster,
    of_open,
    open_trigger,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

Json = Any
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_DATA = {"data": {"from": "rule"}}
_TOTAL = "kyverno_mp_background_requests_total"
_STORED = ("kyverno_updaterequest_total", ("kyverno",))
_WRITES = "kyverno_mp_background_writes_total"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def _done(one: Term, outcome: str) -> float:
    return one.recorded.counts.get((_TOTAL, ("generate", outcome)), 0)


def _request(api: FakeApi, name: str = "ur") -> Json:
    found = stored(api, f"{REQUESTS}/{name}")
    assert found is not None
    return found


def test_calls_per_object(api: FakeApi) -> None:
    """A generated object costs three calls of the pool: read, create, remove."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        request(api, trigger(api, "first"), name="first")
        one.settle()
        before = api.calls()
        for number in range(20):
            raw = trigger(api, f"t{number}")
            request(api, raw, name=f"ur{number}")
        one.settle()
        assert api.calls() - before == 3 * 20
        assert requests_left(api) == []


def test_request_that_arrives_while_the_queue_is_full(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is processed as soon as there is room, because nothing submits it again."""
    monkeypatch.setattr(start, "BACKGROUND_TRIGGERS_MAX", 3)
    for number in range(3):
        trigger(api, f"t{number}")
    policy(api, rule(data=_DATA, generateExisting=True))
    with term(api) as one:
        one.catch_up()
        one.background.policy_controllers.work_due()
        assert one.background.queue.known_count == 3
        request(api, trigger(api))
        one.settle()
        assert stored(api, _OUT)
        assert requests_left(api) == []


def test_failure_is_reported_and_retried(api: FakeApi) -> None:
    """A rejected write records state, reason and count; a later retry succeeds."""
    policy(api, of_open(rule(data=_DATA)))
    with term(api) as one:
        one.settle()
        made = open_trigger(api)
        api.fault(r"POST /api/v1/namespaces/a/configmaps", 403, 403)
        request(api, made)
        one.settle()
        status = _request(api)["status"]
        assert (status["state"], status["retryCount"]) == ("Failed", 1)
        assert "HTTP 403" in status["message"]
        assert any("HTTP 403" in note for note in one.recorded.notes())
        one.background.report()
        assert one.recorded.counts[_STORED] == 1
        one.pass_s(2)
        assert _request(api)["status"]["retryCount"] == 2
        one.pass_s(4)
        assert stored(api, _OUT) is not None
        assert requests_left(api) == []
        assert _done(one, "done") == 1
        one.background.report()
        assert one.recorded.counts[_STORED] == 0


def test_request_deleted_while_it_is_processed(api: FakeApi) -> None:
    """It must not count as failing for ever."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()

        def delete(method: str, path: str) -> None:
            if method == "POST" and path.startswith("/api/v1/namespaces/a/configmaps"):
                api.on_request = lambda _method, _path: None
                api.remove(f"{REQUESTS}/ur")
                one.catch_up()

        api.on_request = delete
        api.fault("POST /api/v1/namespaces/a/configmaps", *[403] * 1000)
        request(api, trigger(api))
        one.settle()
        assert requests_left(api) == []
        requests = one.background.requests
        for known in (requests._crowd._of, requests._progress, requests._lanes):
            assert not known


def test_request_deleted_before_its_turn(api: FakeApi) -> None:
    """It would be processed once more, because its progress is forgotten."""
    late = rule("late", data=_DATA)
    late["generate"]["name"] = "late"
    policy(api, rule(data=_DATA), late)
    with term(api) as one:
        one.settle()

        def delete(method: str, path: str) -> None:
            if method == "POST" and path.startswith("/api/v1/namespaces/a/configmaps"):
                api.on_request = lambda _method, _path: None
                api.remove(f"{REQUESTS}/late")
                one.catch_up()

        api.on_request = delete
        secret = trigger(api)
        request(api, secret)
        request(api, secret, name="late", rules=("late",))
        one.settle()
        assert stored(api, _OUT)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/late") is None
        assert not one.background.requests._progress


def test_last_attempt(api: FakeApi) -> None:
    """A request that always fails is retried at growing intervals, then deleted."""
    policy(api, rule(clone={"namespace": "b", "name": "absent"}))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.pass_s(900)
        assert requests_left(api) == []
        assert _done(one, "failed") == BACKGROUND_ATTEMPTS_MAX - 1
        assert _done(one, "dropped_failing") == 1


def test_outage_counts_as_no_attempt(api: FakeApi) -> None:
    """While the API server does not answer, no attempt is used up."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        api.fault(r"POST /api/v1/namespaces/a/configmaps", *[500] * 6)
        request(api, trigger(api))
        one.pass_s(60)
        assert stored(api, _OUT) is not None
        assert _done(one, "failed") == 0


def test_absent_trigger_is_dropped(api: FakeApi) -> None:
    """A request whose trigger was denied by another webhook is dropped after 30 s."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        api.remove(f"{SECRETS.format('a')}/t")
        request(api, raw)
        one.pass_s(26)
        assert requests_left(api) == ["ur"]
        one.pass_s(8)
        assert requests_left(api) == []
        assert _done(one, "dropped_absent") == 1
        assert stored(api, _OUT) is None


def test_trigger_stored_late(api: FakeApi) -> None:
    """A request may arrive before its trigger is stored."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        api.remove(f"{SECRETS.format('a')}/t")
        request(api, raw)
        one.pass_s(4)
        path = f"{SECRETS.format('a')}/t"
        api.put(path, **raw)
        one.pass_s(4)
        assert stored(api, _OUT) is not None


def test_update_stored_late(api: FakeApi) -> None:
    """The pool waits until the trigger has a newer version than before the request."""
    value = "{{request.object.metadata.annotations.value}}"
    policy(api, rule(data={"data": {"from": value}}))
    with term(api) as one:
        one.settle()
        old = trigger(api)
        version = old["metadata"]["resourceVersion"]
        metadata = {"annotations": {SEEN_VERSION: version}}
        request(api, old, operation="UPDATE", metadata=metadata)
        one.pass_s(2)
        assert stored(api, _OUT) is None
        trigger(api, value="2")
        one.pass_s(4)
        found = stored(api, _OUT)
        assert found is not None
        assert found["data"] == {"from": "2"}


def test_update_that_changes_nothing(api: FakeApi) -> None:
    """A trigger whose version does not change is processed after 30 s."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        metadata = {"annotations": {SEEN_VERSION: raw["metadata"]["resourceVersion"]}}
        request(api, raw, operation="UPDATE", metadata=metadata)
        one.pass_s(20)
        assert stored(api, _OUT) is None
        one.pass_s(20)
        assert stored(api, _OUT) is not None
        assert requests_left(api) == []


def test_other_object_with_the_same_name(api: FakeApi) -> None:
    """A trigger that was recreated under its name is a different object."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        gone = trigger(api)
        request(api, gone)
        one.settle()
        api.remove(f"{SECRETS.format('a')}/t")
        trigger(api)
        request(api, gone, operation="DELETE", deletes=True)
        one.settle()
        assert stored(api, _OUT) is None


def test_label_survives(api: FakeApi) -> None:
    """A request that is marked during its processing is processed again."""
    value = "{{request.object.metadata.annotations.value}}"
    policy(api, rule(data={"data": {"from": value}}))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        once = threading.Event()

        def mark(method: str, target: str) -> None:
            # The mark is set after the trigger was read and before the request is
            # deleted.
            if method == "DELETE" and "updaterequests" in target and not once.is_set():
                once.set()
                trigger(api, value="2")
                api.put(f"{REQUESTS}/ur", **_request(api))

        api.on_request = mark
        one.settle()
        assert once.is_set()
        found = stored(api, _OUT)
        assert found is not None
        assert found["data"] == {"from": "2"}
        assert requests_left(api) == []


def test_label_of_a_failing_request(api: FakeApi) -> None:
    """A mark makes a request due that is waiting for its next attempt."""
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        assert _request(api)["status"]["state"] == "Failed"
        api.put(f"{CONFIG_MAPS.format('b')}/source", apiVersion="v1", kind="ConfigMap")
        one.settle()
        assert stored(api, _OUT) is None
        api.put(f"{REQUESTS}/ur", **_request(api))
        one.settle()
        assert stored(api, _OUT) is not None


@pytest.mark.parametrize(
    ("state", "left"), [("", []), ("Pending", []), ("Completed", []), ("Skip", ["ur"])]
)
def test_states(api: FakeApi, state: str, left: list[str]) -> None:
    """Other programs' requests are processed in the states that upstream processes."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        request(api, trigger(api), status={"state": state} if state else {})
        one.settle()
        assert requests_left(api) == left
        made = stored(api, _OUT) is not None
        assert made == (state in ("", "Pending"))


def test_policy_not_yet_in_the_cache(api: FakeApi) -> None:
    """A request for a policy that is not in the cache yet is not lost."""
    with term(api) as one:
        _generate_unwatched(one)
        assert stored(api, _OUT) is not None


@pytest.mark.parametrize("stays", [False, True])
def test_policy_created_and_deleted_while_unwatched(
    api: FakeApi, *, stays: bool
) -> None:
    """The next holder deletes the policy's objects unless the rule keeps them."""
    with term(api) as one:
        _generate_unwatched(one, orphanDownstreamOnPolicyDelete=stays)
    api.remove(f"{POLICIES}/p")
    with term(api) as one:
        one.settle()
        assert (stored(api, _OUT) is not None) == stays


def test_policy_deleted_while_its_rule_runs(api: FakeApi) -> None:
    """An object that is written after the policy was deleted is deleted as well."""
    with term(api) as one:
        one.settle()
        policy(api, rule(data=_DATA))
        one.catch_up()
        ready = one.background.policies.newest("p")
        assert ready is not None
        api.remove(f"{POLICIES}/p")
        one.settle()
        raw = trigger(api)
        kind, name = raw["kind"], raw["metadata"]["name"]
        of = Trigger(raw["apiVersion"], kind, "a", name, raw["metadata"]["uid"])
        one.background.generator.run(Task(GENERATE, "p", "r", of), ready)
        assert stored(api, _OUT) is not None
        one.settle()
        assert stored(api, _OUT) is None


def _generate_unwatched(one: Term, **fields: Json) -> None:
    """Generate by a policy that the watch does not deliver."""
    one.settle()
    for informer in one.background.policies.informers:
        informer.stop()
    policy(one.api, rule(data=_DATA, **fields))
    request(one.api, trigger(one.api))
    with one.api.lock:
        newest = one.api.version
    wait_for(lambda: int(one.background.informer.notified_version or 0) >= newest)
    one.background.controllers.work_due()


def test_request_without_a_policy(api: FakeApi) -> None:
    """A request that names a deleted policy or rule is completed."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        request(api, raw, name="a", policy="absent")
        request(api, raw, name="b", rules=("absent",))
        one.settle()
        assert requests_left(api) == []


def test_upstreams_resource_names(api: FakeApi) -> None:
    """Of the objects that an upstream request names, only the rule's are deleted."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        request(api, raw)
        one.settle()
        alien = api.put(
            f"{CONFIG_MAPS.format('a')}/alien", apiVersion="v1", kind="ConfigMap"
        )
        made = stored(api, _OUT) or {}
        named = [
            identity({**each, "apiVersion": "v1", "kind": "ConfigMap"})
            for each in (made, alien)
        ]
        status = {"state": "Pending", "generatedResources": named}
        api.remove(f"{POLICIES}/p")
        request(api, raw, deletes=True, status=status)
        one.settle()
        assert stored(api, _OUT) is None
        assert stored(api, f"{CONFIG_MAPS.format('a')}/alien") is not None


def test_policy_with_300_objects(api: FakeApi) -> None:
    """Deleting a policy costs one call for each object, and a few lists."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        for number in range(300):
            raw = trigger(api, f"t{number}")
            request(api, raw, name=f"ur{number}")
        one.settle()
        before = api.calls()
        deletes = api.count("DELETE /api/v1/namespaces/a/configmaps/")
        api.remove(f"{POLICIES}/p")
        one.settle()
        done = api.count("DELETE /api/v1/namespaces/a/configmaps/") - deletes
        assert done == 300
        assert api.calls() - before <= 300 + 10


def test_deletions_have_a_resource_version_precondition(api: FakeApi) -> None:
    """Each deletion has the uid and the version that were read."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        api.remove(f"{POLICIES}/p")
        one.settle()
        for _, options in api.deletions:
            assert set(options["preconditions"]) == {"uid", "resourceVersion"}


def test_deleted_objects_are_counted(api: FakeApi) -> None:
    """Otherwise, the metric would miss objects that are deleted with their trigger."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        request(api, raw := trigger(api))
        one.settle()
        assert stored(api, _OUT)
        api.remove(f"{SECRETS.format('a')}/t")
        request(api, raw, deletes=True, operation="DELETE")
        one.settle()
        assert stored(api, _OUT) is None
        assert one.recorded.counts[_WRITES, ("created",)] == 1
        assert one.recorded.counts[_WRITES, ("deleted",)] == 1


def test_labels_that_change_during_the_deletion(api: FakeApi) -> None:
    """An object that lost its labels after the list was read is not deleted."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        api.remove(f"{POLICIES}/p")

        def strip(method: str, target: str) -> None:
            if method == "DELETE" and "/configmaps/out-t" in target:
                found = stored(api, _OUT)
                assert found is not None
                metadata = {**found["metadata"], "labels": {}}
                api.put(_OUT, **{**found, "metadata": metadata})

        api.on_request = strip
        one.settle()
        assert stored(api, _OUT) is not None


def test_lost_lease(api: FakeApi) -> None:
    """Without the lease nothing is written."""
    policy(api, rule(data=_DATA))
    with term(api, holds_lease=lambda: False) as one:
        request(api, trigger(api))
        one.catch_up()
        one.background.controllers.work_due()
        one.background.policy_controllers.work_due()
        assert api.count("POST|PUT|PATCH|DELETE") == 0


def test_generate_existing(api: FakeApi) -> None:
    """A rule with generateExisting generates objects for all existing triggers."""
    trigger(api)
    trigger(api, "other", labels={"team": "red"})
    policy(api, rule(data=_DATA, generateExisting=True))
    with term(api) as one:
        one.settle()
        assert stored(api, _OUT) is not None
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-other") is None


def test_defaults_of_the_server(api: FakeApi) -> None:
    """Defaults set by the API server are ignored: the second run writes nothing."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        request(api, raw)
        one.settle()
        puts = api.count("PUT /api/v1/namespaces/a/configmaps")
        request(api, raw)
        one.settle()
        assert api.count("PUT /api/v1/namespaces/a/configmaps") == puts


def test_finalizers_stay(api: FakeApi) -> None:
    """An update keeps the finalizers of other controllers."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        request(api, raw)
        one.settle()
        made = stored(api, _OUT)
        assert made is not None
        metadata = {**made["metadata"], "finalizers": ["example.com/keep"]}
        api.put(_OUT, **{**made, "metadata": metadata, "data": {}})
        request(api, raw)
        one.settle()
        after = stored(api, _OUT)
        assert after is not None
        assert after["metadata"]["finalizers"] == ["example.com/keep"]
        assert after["data"] == {"from": "rule"}


def test_source_is_labelled(api: FakeApi) -> None:
    """The source of a synchronised clone gets the label by which it is watched."""
    path = f"{CONFIG_MAPS.format('b')}/source"
    api.put(path, apiVersion="v1", kind="ConfigMap")
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        found = stored(api, path)
        assert found is not None
        assert f"{PREFIX}clone-source" in found["metadata"]["labels"]


def test_source_that_cannot_be_labelled_during_an_outage(api: FakeApi) -> None:
    """Otherwise, admission would never notice that the source changes."""
    source = f"{CONFIG_MAPS.format('b')}/source"
    api.put(source, apiVersion="v1", kind="ConfigMap", data={"from": "1"})
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    with term(api) as one:
        one.settle()
        api.fault("PATCH .*/configmaps/source", *[503] * 3)
        request(api, trigger(api))
        one.pass_s(60)
        assert stored(api, _OUT)
        found = stored(api, source)
        assert found is not None
        assert f"{PREFIX}clone-source" in found["metadata"]["labels"]
        assert requests_left(api) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_source_changes_before_it_is_labelled(api: FakeApi, *, is_gone: bool) -> None:
    """Without the label, admission does not record changes, so the data is stale."""
    path = f"{CONFIG_MAPS.format('b')}/source"
    api.put(path, apiVersion="v1", kind="ConfigMap", data={"from": "first"})
    policy(api, rule(clone={"namespace": "b", "name": "source"}))

    def change(method: str, target: str) -> None:
        if (method, target.partition("?")[0]) != ("PATCH", path):
            return
        api.on_request = lambda _method, _target: None
        if is_gone:
            api.remove(path)
        else:
            api.put(path, apiVersion="v1", kind="ConfigMap", data={"from": "second"})

    with term(api) as one:
        one.settle()
        api.on_request = change
        request(api, trigger(api))
        one.settle()
        made = stored(api, _OUT)
        if is_gone:
            assert made is None
        else:
            assert made is not None
            assert made["data"] == {"from": "second"}


@pytest.mark.parametrize("synchronize", [True, False])
def test_rule_gets_another_target(api: FakeApi, *, synchronize: bool) -> None:
    """Triggers get the new object, although the old object no longer names them."""
    policy(api, rule(data=_DATA, synchronize=synchronize))
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        moved = rule(data=_DATA, synchronize=synchronize)
        moved["generate"]["name"] = "moved"
        policy(api, moved, generation=2)
        one.settle()
        old = stored(api, _OUT)
        assert old is not None
        assert f"{PREFIX}rule-name" not in old["metadata"]["labels"]
        new = stored(api, _OUT.rpartition("/")[0] + "/moved")
        if synchronize:
            assert new is not None
            assert f"{PREFIX}rule-name" in new["metadata"]["labels"]
        else:
            assert new is None


def test_clone_list(api: FakeApi) -> None:
    """When a source of a cloneList is deleted, only its own clone is deleted."""
    for name in ("one", "two"):
        api.put(
            f"{CONFIG_MAPS.format('b')}/{name}",
            apiVersion="v1",
            kind="ConfigMap",
            metadata={"labels": {"copy": "yes"}},
        )
    made = rule()
    made["generate"] = {
        "namespace": "a",
        "synchronize": True,
        "cloneList": {
            "namespace": "b",
            "kinds": ["v1/ConfigMap"],
            "selector": {"matchLabels": {"copy": "yes"}},
        },
    }
    policy(api, made)
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        request(api, raw)
        one.settle()
        copies = [f"{CONFIG_MAPS.format('a')}/{name}" for name in ("one", "two")]
        assert all(stored(api, path) is not None for path in copies)
        api.remove(f"{CONFIG_MAPS.format('b')}/one")
        request(api, raw, operation="DELETE", deletes=True)
        one.settle()
        assert stored(api, copies[0]) is None
        assert stored(api, copies[1]) is not None


def test_foreach(api: FakeApi) -> None:
    """Each element generates an object; deleting the policy deletes all of them."""
    made = rule()
    made["generate"] = {
        "synchronize": True,
        "foreach": [
            {
                "list": "['x', 'y']",
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "out-{{element}}",
                "namespace": "a",
                "data": {"data": {"of": "{{element}}"}},
            }
        ],
    }
    policy(api, made)
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        paths = [f"{CONFIG_MAPS.format('a')}/out-{name}" for name in "xy"]
        assert [(stored(api, path) or {})["data"] for path in paths] == [
            {"of": "x"},
            {"of": "y"},
        ]
        api.remove(f"{POLICIES}/p")
        one.settle()
        assert [stored(api, path) for path in paths] == [None, None]


def test_objects_of_other_triggers(api: FakeApi) -> None:
    """When a trigger is deleted, only its own object is deleted."""
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        gone = trigger(api)
        request(api, gone, name="ur1")
        request(api, trigger(api, "other"), name="ur2")
        one.settle()
        api.remove(f"{SECRETS.format('a')}/t")
        request(api, gone, operation="DELETE", deletes=True)
        one.settle()
        assert stored(api, _OUT) is None
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-other") is not None


def test_clones_of_a_rule_with_data(api: FakeApi) -> None:
    """When the policy is deleted, objects from data are deleted, and clones remain."""
    source = f"{CONFIG_MAPS.format('b')}/source"
    api.put(source, apiVersion="v1", kind="ConfigMap")
    target = {"list": "['x']", "apiVersion": "v1", "kind": "ConfigMap"}
    target["namespace"] = "a"
    data = {**target, "name": "data", "data": _DATA}
    clone = {"namespace": "b", "name": "source"}
    made = rule()
    made["generate"] = {
        "synchronize": True,
        "foreach": [data, {**target, "name": "clone", "clone": clone}],
    }
    policy(api, made)
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        paths = [f"{CONFIG_MAPS.format('a')}/{name}" for name in ("data", "clone")]
        assert all(stored(api, path) is not None for path in paths)
        api.remove(f"{POLICIES}/p")
        one.settle()
        assert stored(api, paths[0]) is None
        assert stored(api, paths[1]) is not None


def test_deletion_that_generates(api: FakeApi) -> None:
    """A rule that lists DELETE generates from the object in the request."""
    made = rule(data=_DATA)
    made["match"]["any"][0]["resources"]["operations"] = ["DELETE"]
    made["generate"]["name"] = "out-{{request.oldObject.metadata.name}}"
    made["generate"]["namespace"] = "a"
    policy(api, made)
    with term(api) as one:
        one.settle()
        raw = trigger(api)
        api.remove(f"{SECRETS.format('a')}/t")
        info = {
            "operation": "DELETE",
            "admissionRequest": {"operation": "DELETE", "oldObject": raw},
        }
        spec = {"context": {"admissionRequestInfo": info}}
        request(api, raw, operation="DELETE", spec=spec)
        one.settle()
        assert stored(api, _OUT) is not None


def test_the_review_of_a_namespace_has_its_name(api: FakeApi) -> None:
    """As the API server writes it: the object itself has no namespace."""
    made = rule(data=_DATA)
    made["match"]["any"][0]["resources"] = {"kinds": ["Namespace"]}
    made["generate"]["name"] = "out-{{request.namespace}}"
    made["generate"]["namespace"] = "{{request.object.metadata.name}}"
    policy(api, made)
    with term(api) as one:
        one.settle()
        raw = api.put(
            "/api/v1/namespaces/fresh", apiVersion="v1", kind="Namespace", metadata={}
        )
        review = {"operation": "CREATE", "namespace": "fresh", "object": raw}
        info = {"operation": "CREATE", "admissionRequest": review}
        request(api, raw, spec={"context": {"admissionRequestInfo": info}})
        one.settle()
        assert stored(api, f"{CONFIG_MAPS.format('fresh')}/out-fresh") is not None


def test_server_side_apply(api: FakeApi) -> None:
    """With useServerSideApply, objects are applied, with upstream's field manager."""
    policy(api, rule(data=_DATA), useServerSideApply=True)
    with term(api) as one:
        one.settle()
        request(api, trigger(api))
        one.settle()
        assert stored(api, _OUT) is not None
        assert (
            api.count(r"PATCH .*/configmaps/out-t\?fieldManager=kyverno-generate") == 1
        )
        assert api.count("POST /api/v1/namespaces/a/configmaps") == 0


def test_a_namespaced_policy_creates_nothing_for_the_whole_cluster(
    api: FakeApi,
) -> None:
    """The kind is a variable, so the policy's admission could not reject it."""
    kind = "{{request.object.data.kind}}"
    api.put(
        "/apis/kyverno.io/v1/namespaces/a/policies/p",
        apiVersion="kyverno.io/v1",
        kind="Policy",
        metadata={"generation": 1},
        spec={"rules": [rule(kind=kind, data={})]},
    )
    with term(api) as one:
        one.settle()
        made = trigger(api)
        made["data"] = {"kind": "Namespace"}
        api.put(f"{SECRETS.format('a')}/t", **made)
        request(api, stored(api, f"{SECRETS.format('a')}/t"), policy="a/p")
        one.settle()
        status = _request(api)["status"]
        assert status["state"] == "Failed"
        # The kind is the value of a Secret, so messages must not contain it.
        assert status["message"].startswith("background.scope: ")
        assert "Namespace" not in status["message"]
        assert not api.count("POST /api/v1/namespaces$")
        assert not api.count("POST .*out-t")


def test_last_attempt_after_a_policy_change(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """The last failure is counted and logged; the next scan tries again."""
    trigger(api)
    existing = {**rule(clone={"namespace": "b", "name": "absent"})}
    policy(api, existing, generateExisting=True)
    with term(api) as one:
        one.settle()
        one.pass_s(900)
        assert _done(one, "dropped_failing") == 1
        assert "dropped_failing" in caplog.text
