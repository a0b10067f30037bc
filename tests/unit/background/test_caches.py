"""Requests that refer to changes which the pool's watches have not delivered yet.

A failure means: a request is processed by an older policy, exception or label and
dropped, and its object is never generated.
"""

import re
from typing import Any

import pytest

from kyverno_mp.background.objects.triggers import identity_of
from kyverno_mp.background.update_request import GENERATE, Task
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.settings.settings import Settings
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    POLICIES,
    Term,
    new_cluster,
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
_EXCEPTIONS = "/apis/kyverno.io/v2/namespaces/kyverno/policyexceptions"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def _unwatched(one: Term) -> None:
    """Stop all watches of the pool except the watch of UpdateRequests."""
    one.settle()
    for informer in one.background.policies.informers:
        informer.stop()


def _process(one: Term) -> None:
    with one.api.lock:
        newest = one.api.version
    watch = one.background.informer
    wait_for(lambda: int(watch.notified_version or 0) >= newest)
    one.background.controllers.work_due()


def _of(kind: str, **resources: Json) -> Json:
    return {"any": [{"resources": {"kinds": [kind], **resources}}]}


def _mutating(match: Json) -> Json:
    return {
        "name": "r",
        "match": match,
        "mutate": {
            "targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "out-t"}],
            "patchStrategicMerge": {"data": {"from": "rule"}},
        },
    }


@pytest.mark.parametrize("kind", ["generate", "mutate"])
def test_policy_matches_since_its_last_change(api: FakeApi, kind: str) -> None:
    """The rule in the cached older version does not match the trigger."""
    with term(api) as one:
        _store(api, kind, _of("Secret", selector={"matchLabels": {"team": "none"}}), 1)
        _unwatched(one)
        _store(api, kind, _of("Secret", selector={"matchLabels": MATCHED}), 2)
        request(api, trigger(api), kind=kind)
        _process(one)
        assert (stored(api, _OUT) or {}).get("data") == {"from": "rule"}
        assert requests_left(api) == []


def _store(api: FakeApi, kind: str, match: Json, generation: int) -> None:
    made = _mutating(match)
    if kind == "generate":
        made = {**rule(data=_DATA), "match": match}
    else:
        api.put(_OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
        made["mutate"]["targets"][0]["namespace"] = "a"
    policy(api, made, generation=generation)


def test_policy_no_longer_matches(api: FakeApi) -> None:
    """A request whose policy no longer applies costs one read and no write."""
    with term(api) as one:
        policy(api, rule(data=_DATA))
        one.settle()
        request(api, trigger(api, labels={}))
        one.catch_up()
        before = api.count("GET .*/clusterpolicies/p")
        one.settle()
        assert api.count("GET .*/clusterpolicies/p") == before + 1
        assert stored(api, _OUT) is None
        assert requests_left(api) == []


@pytest.mark.parametrize("deletes", [False, True])
def test_deleted_exception(api: FakeApi, *, deletes: bool) -> None:
    """A deleted exception neither prevents an object nor removes an existing one."""
    exceptions = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="kyverno"
    )
    with term(api, settings=exceptions) as one:
        policy(api, rule(data=_DATA))
        raw = trigger(api)
        if deletes:
            one.settle()
            request(api, raw, name="first")
            one.settle()
            assert stored(api, _OUT) is not None
        _except(api)
        _unwatched(one)
        assert _exceptions(one) == 1
        api.remove(f"{_EXCEPTIONS}/e")
        request(api, raw, deletes=deletes)
        _process(one)
        assert stored(api, _OUT) is not None


def test_unchanged_exception(api: FakeApi) -> None:
    exceptions = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="kyverno"
    )
    with term(api, settings=exceptions) as one:
        policy(api, rule(data=_DATA))
        _except(api)
        one.settle()
        request(api, trigger(api))
        one.settle()
        assert stored(api, _OUT) is None
        assert requests_left(api) == []


def _except(api: FakeApi) -> None:
    spec = {
        "match": _of("Secret"),
        "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
    }
    names = {"apiVersion": "kyverno.io/v2", "kind": "PolicyException"}
    api.put(f"{_EXCEPTIONS}/e", **names, spec=spec)


def _exceptions(one: Term) -> int:
    return len(list(one.background.policies.informers)[-1])


class _Labels:
    """The published copy of the namespaces' labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    def labels(self, _namespace: str) -> dict[str, str]:
        return self._labels


@pytest.mark.parametrize(("stored_label", "is_made"), [("a", True), ("b", False)])
def test_labels_newer_than_the_cache(
    api: FakeApi, stored_label: str, *, is_made: bool
) -> None:
    client = api.client()
    objects = LiveObjects(client, LiveKinds(lambda: None, client))
    copied = _Labels({"tier": "b"})
    data = ClusterData(objects=objects, scopes=objects, namespaces=copied)
    path = "/api/v1/namespaces/a"
    metadata = {"labels": {"tier": stored_label}}
    api.put(path, apiVersion="v1", kind="Namespace", metadata=metadata)
    with term(api, cluster_data=data) as one:
        selector = {"matchLabels": {"tier": "a"}}
        policy(
            api,
            {**rule(data=_DATA), "match": _of("Secret", namespaceSelector=selector)},
        )
        one.settle()
        request(api, trigger(api))
        one.settle()
        assert (stored(api, _OUT) is not None) == is_made
        assert requests_left(api) == []


def test_interrupted_watch(api: FakeApi) -> None:
    """During the interruption, requests are processed with the stored policy."""
    with term(api) as one:
        policy(api, rule(sync=False, data={"data": {"from": "older"}}))
        _unwatched(one)
        policy(api, rule(sync=False, data=_DATA), generation=2)
        for informer in one.background.policies.stored.informers:
            informer.failures = 1
        request(api, trigger(api))
        _process(one)
        assert (stored(api, _OUT) or {})["data"] == _DATA["data"]


def test_policy_deleted_between_record_and_write(api: FakeApi) -> None:
    """If its policy is deleted first, an object written afterwards is deleted, too."""
    with term(api) as one:
        policy(api, rule(data=_DATA))
        one.settle()
        request(api, trigger(api, "first"), name="first")
        one.settle()
        is_gone: list[bool] = []

        def remove(method: str, target: str) -> None:
            if method == "POST" and re.search(r"/a/configmaps", target) and not is_gone:
                is_gone.append(True)
                api.remove(f"{POLICIES}/p")
                for informer in one.background.policies.stored.informers:
                    wait_for(lambda known=informer: not len(known))  # type: ignore[misc]
                one.background.policy_controllers.work_due()

        raw = trigger(api)
        task = _task(raw)
        ready = one.background.policies.newest("p")
        api.on_request = remove
        one.background.generator.run(task, ready)
        assert is_gone
        assert stored(api, _OUT) is not None
        one.settle()
        assert stored(api, _OUT) is None


def _task(raw: Json) -> Task:
    return Task(GENERATE, "p", "r", identity_of(raw))
