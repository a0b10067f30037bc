"""Rules that mutate existing objects: targets, conflicts, policy updates."""

import threading
from typing import Any

import pytest

from kyverno_mp.background.start import run
from kyverno_mp.settings.settings import Settings
from tests.unit.background.world import (
    CONFIG_MAPS,
    REQUESTS,
    SECRETS,
    Term,
    new_cluster,
    of_open,
    open_trigger,
    policy,
    request,
    requests_left,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

Json = Any
_TARGET = f"{CONFIG_MAPS.format('b')}/target"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)
    _target(api)


def _target(api: FakeApi, name: str = "target", **labels: str) -> Json:
    return api.put(
        f"{CONFIG_MAPS.format('b')}/{name}",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"labels": labels},
        data={"kept": "yes"},
    )


def _rule(patch: Json = None, **body: Json) -> Json:
    given: Json = {"data": {"from": "{{request.object.metadata.name}}"}}
    selected = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "b"}
    return {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
        "mutate": {
            "targets": [{**selected, "name": "target"}],
            "patchStrategicMerge": patch or given,
            **body,
        },
    }


def _data(api: FakeApi, name: str = "target") -> Json:
    found = stored(api, f"{CONFIG_MAPS.format('b')}/{name}")
    return (found or {}).get("data")


def _run(api: FakeApi, one: Term, **fields: Json) -> None:
    request(api, trigger(api), kind="mutate", **fields)
    one.settle()


def test_target_is_patched(api: FakeApi) -> None:
    """The patch is merged into the target, and the request is completed."""
    policy(api, _rule())
    with term(api) as one:
        _run(api, one)
        assert _data(api) == {"kept": "yes", "from": "t"}
        assert requests_left(api) == []
        assert "resource mutated" in one.recorded.notes()


def test_nothing_to_change(api: FakeApi) -> None:
    """A target that is already in the desired state is not written."""
    policy(api, _rule({"data": {"kept": "yes"}}))
    with term(api) as one:
        _run(api, one)
        assert api.count("PUT /api/v1/namespaces/b/configmaps") == 0
        assert requests_left(api) == []


def test_selector(api: FakeApi) -> None:
    """Only targets that have the label are changed."""
    _target(api, "one", chosen="yes")
    _target(api, "two", chosen="no")
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "b",
        "selector": {"matchLabels": {"chosen": "yes"}},
    }
    policy(api, _rule(targets=[target]))
    with term(api) as one:
        _run(api, one)
        assert _data(api, "one") == {"kept": "yes", "from": "t"}
        assert _data(api, "two") == {"kept": "yes"}


def test_target_preconditions(api: FakeApi) -> None:
    """A target whose preconditions do not hold is skipped, which is no failure."""
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "b",
        "name": "*",
        "preconditions": {
            "all": [
                {
                    "key": "{{target.metadata.name}}",
                    "operator": "Equals",
                    "value": "one",
                }
            ]
        },
    }
    _target(api, "one")
    policy(api, _rule(targets=[target]))
    with term(api) as one:
        _run(api, one)
        assert _data(api, "one") == {"kept": "yes", "from": "t"}
        assert _data(api) == {"kept": "yes"}
        assert requests_left(api) == []


def test_conflict(api: FakeApi) -> None:
    """After a conflict, the patch is computed from the other writer's version."""
    policy(api, _rule())
    with term(api) as one:
        raced: list[str] = []

        def race(method: str, target: str) -> None:
            if method == "PUT" and target.endswith("/configmaps/target") and not raced:
                raced.append(target)
                found = stored(api, _TARGET)
                assert found is not None
                api.put(_TARGET, **{**found, "data": {"kept": "no"}})

        api.on_request = race
        _run(api, one)
        assert raced
        assert _data(api) == {"kept": "no", "from": "t"}


_ALL: Json = [{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "b", "name": "*"}]


def test_conflict_of_one_of_several_targets(api: FakeApi) -> None:
    """A target that is already written is not changed again for another's conflict."""
    _target(api, "other")
    count = "{{ join('', [target.data.count || '', 'x']) }}"
    policy(api, _rule({"data": {"count": count}}, targets=_ALL))
    raced: list[str] = []

    def race(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/configmaps/target") and not raced:
            raced.append(path)
            found = stored(api, _TARGET)
            assert found is not None
            api.put(_TARGET, **{**found, "data": {"kept": "no"}})

    with term(api) as one:
        api.on_request = race
        _run(api, one)
        assert raced
        assert _data(api, "other") == {"kept": "yes", "count": "x"}
        assert _data(api) == {"kept": "no", "count": "x"}
        assert requests_left(api) == []


def test_target_that_is_selected_twice(api: FakeApi) -> None:
    """The second change is computed from the first one."""
    count = "{{ join('', [target.data.count || '', 'x']) }}"
    policy(api, _rule({"data": {"count": count}}, targets=_ALL * 2))
    with term(api) as one:
        _run(api, one)
        assert _data(api) == {"kept": "yes", "count": "xx"}


@pytest.mark.parametrize(
    "fault",
    [
        "PUT .*/configmaps/another",
        "GET .*/namespaces/b/secrets",
        "GET .*/namespaces/b/configmaps/another",
    ],
)
def test_rejected_target(api: FakeApi, fault: str) -> None:
    """The others are changed, as upstream does; the failure is reported."""
    _target(api, "another")
    _target(api, "other")
    secrets = {**_ALL[0], "kind": "Secret"}
    another = {**_ALL[0], "name": "another"}
    policy(api, of_open(_rule(targets=[secrets, another, *_ALL])))
    api.fault(fault, *[403] * 1000)
    with term(api) as one:
        request(api, open_trigger(api), kind="mutate")
        one.settle()
        assert _data(api) == {"kept": "yes", "from": "t"}
        assert _data(api, "other") == {"kept": "yes", "from": "t"}
        found = stored(api, f"{REQUESTS}/ur")
        assert found is not None
        assert found["status"]["state"] == "Failed"
        api.faults.clear()
        one.pass_s(10)
        assert _data(api, "another") == {"kept": "yes", "from": "t"}
        assert requests_left(api) == []


def test_target_that_conflicts_each_time(api: FakeApi) -> None:
    """Another writer of one target does not stop the others."""
    _target(api, "another")
    policy(api, _rule(targets=_ALL))

    def race(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("/configmaps/another"):
            found = stored(api, f"{CONFIG_MAPS.format('b')}/another")
            assert found is not None
            api.put(f"{CONFIG_MAPS.format('b')}/another", **found)

    with term(api) as one:
        api.on_request = race
        _run(api, one)
        assert _data(api) == {"kept": "yes", "from": "t"}
        assert _data(api, "another") == {"kept": "yes"}
        assert requests_left(api) == ["ur"]


def test_target_that_the_patch_renames(api: FakeApi) -> None:
    """It is not written, and does not stop the others."""
    _target(api, "another", renamed="yes")
    name = "{{ target.metadata.labels.renamed && 'renamed' || target.metadata.name }}"
    patch = {"metadata": {"name": name}, "data": {"from": "t"}}
    policy(api, _rule(patch, targets=_ALL))
    with term(api) as one:
        _run(api, one)
        assert _data(api) == {"kept": "yes", "from": "t"}
        assert _data(api, "another") == {"kept": "yes"}
        assert requests_left(api) == ["ur"]


def test_failure(api: FakeApi) -> None:
    """A variable that cannot be resolved is reported in the status."""
    policy(api, of_open(_rule({"data": {"from": "{{request.object.absent}}"}})))
    with term(api) as one:
        request(api, open_trigger(api), kind="mutate")
        one.settle()
        found = stored(api, "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests/ur")
        assert found is not None
        status = found["status"]
        assert status["state"] == "Failed"
        start = "failed to mutate existing resource, rule r, response error: "
        assert status["message"].startswith(start)


def test_deleted_trigger(api: FakeApi) -> None:
    """The request contains the deleted object because it can no longer be read."""
    policy(api, _rule({"data": {"gone": "{{request.oldObject.metadata.name}}"}}))
    with term(api) as one:
        raw = trigger(api)
        api.remove(f"{SECRETS.format('a')}/t")
        info = {
            "operation": "DELETE",
            "admissionRequest": {"operation": "DELETE", "oldObject": raw},
        }
        spec = {"context": {"admissionRequestInfo": info}}
        request(api, raw, kind="mutate", operation="DELETE", spec=spec)
        one.settle()
        assert _data(api) == {"kept": "yes", "gone": "t"}


@pytest.mark.parametrize("wanted", [True, False])
def test_policy_update(api: FakeApi, *, wanted: bool) -> None:
    """With mutateExistingOnPolicyUpdate, a policy runs for all existing triggers."""
    trigger(api)
    policy(api, _rule(mutateExistingOnPolicyUpdate=wanted))
    with term(api) as one:
        one.settle()
        assert ("from" in _data(api)) == wanted


def test_status_of_a_policy(api: FakeApi) -> None:
    """A change of only a policy's status does not cause a scan of its triggers."""
    trigger(api)
    stored_policy = policy(api, _rule(mutateExistingOnPolicyUpdate=True))
    with term(api) as one:
        one.settle()
        lists = api.count("GET /api/v1/secrets")
        api.put(
            "/apis/kyverno.io/v1/clusterpolicies/p",
            **{**stored_policy, "status": {"ready": True}},
        )
        one.settle()
        assert api.count("GET /api/v1/secrets") == lists


def test_whole_controller(api: FakeApi) -> None:
    """The threads produce the expected effects and stop on request."""
    policy(api, _rule())
    settings = Settings(namespace="kyverno", background_workers=2)
    with term(api, settings=settings) as one:
        dependencies = one.dependencies
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(dependencies, stop), daemon=True)
    thread.start()
    request(api, trigger(api), kind="mutate")
    wait_for(lambda: requests_left(api) == [])
    stop.set()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert _data(api) == {"kept": "yes", "from": "t"}
