"""While another program holds the lease, lost triggers become its UpdateRequests.

A failure means: on the way back to Kyverno, generated objects are missing, or Kyverno's
background controller ends or repeats requests that it cannot carry out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.background.generate.lost import DROPPED
from kyverno_mp.background.hand_over import HANDED_OVER
from kyverno_mp.queues.triggers import LOST_ROLE, UNPROVED_ROLE, lost_record
from kyverno_mp.queues.update_requests import document_of
from kyverno_mp.telemetry.families import BACKGROUND_REQUESTS
from tests.schemas import validate
from tests.unit.background import generating_world as generating
from tests.unit.background.world import (
    CONFIG_MAPS,
    REQUESTS,
    Term,
    identity,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

ROOT = Path(__file__).resolve().parents[3]
Json = Any
DATA: Json = {"data": {"a": "b"}}
SINCE_NS = 1_760_000_000 * 10**9


def note(api: FakeApi, kind: str = "generate", role: str = UNPROVED_ROLE) -> str:
    """Store a request that only our pods understand; return its name."""
    record = lost_record("p", SINCE_NS, kind, role)
    document = document_of(record, record.wanted[0], "kyverno")
    name: str = document["metadata"]["name"]
    api.put(f"{REQUESTS}/{name}", **document)
    return name


def posted(api: FakeApi, notes: str) -> list[Json]:
    """Return the requests for the other program, as it gets them."""
    names = [name for name in requests_left(api) if name != notes]
    requests = [stored(api, f"{REQUESTS}/{name}") for name in names]
    text = (ROOT / "config/crds/kyverno.io_updaterequests.yaml").read_text()
    versions = yaml.load(text, yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = [one["schema"] for one in versions if one["name"] == "v2"]
    for request in requests:
        validate(request, schema["openAPIV3Schema"])
    return requests


def count(held: Term, outcome: str, kind: str = "generate") -> float:
    return held.recorded.counts.get((BACKGROUND_REQUESTS.name, (kind, outcome)), 0)


def of_rule(api: FakeApi) -> Json:
    policy(api, rule(data=DATA), rule("q", data=DATA))
    return trigger(api)


def of_cel(api: FakeApi) -> Json:
    generating.policy(api)
    return generating.trigger(api)


@pytest.mark.parametrize(
    ("kind", "stores", "rules"),
    [("generate", of_rule, ["r", "q"]), ("cel-generate", of_cel, ["p"])],
)
def test_each_trigger_and_rule_becomes_a_pending_request(
    api: FakeApi, kind: str, stores: Callable[[FakeApi], Json], rules: list[str]
) -> None:
    """The fields are those of upstream's requests for ``generateExisting``."""
    new_cluster(api)
    raw = stores(api)
    name = note(api, kind)
    with generating.held(api, hands_over=True) as held:
        held.settle()
        held.pass_s(6)
        requests = posted(api, name)
        assert name in requests_left(api), "the last look has yet to come"
        held.pass_s(30)
    assert name not in requests_left(api)
    assert count(held, HANDED_OVER, kind) == len(rules), "nothing is made twice"
    assert posted(api, name) == requests
    contexts = [
        context for one in requests for context in one["spec"].pop("ruleContext")
    ]
    assert sorted(one.pop("rule") for one in contexts) == sorted(rules)
    for request, context in zip(requests, contexts, strict=True):
        assert request["status"] == {"state": "Pending"}
        assert request["spec"] == {
            "requestType": kind,
            "policy": "p",
            "rule": "",
            "resource": {},
            "deleteDownstream": False,
            "context": {},
        }
        assert context == {
            "trigger": identity(raw),
            "deleteDownstream": False,
            "synchronize": False,
        }
    writes = {
        target.partition("?")[0].rpartition("kyverno/")[2].partition("/")[0]
        for method, target, _ in api.requests
        if method in ("POST", "PUT", "PATCH", "DELETE") and "reviews" not in target
    }
    assert writes == {"updaterequests"}


def test_trigger_that_is_written_later_follows(api: FakeApi) -> None:
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    name = note(api)
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(6)
        trigger(api, "late")
        held.pass_s(30)
    names = {
        context["trigger"]["name"]
        for one in posted(api, name)
        for context in one["spec"]["ruleContext"]
    }
    assert names == {"t", "late"}


def test_other_requests_are_left_alone(api: FakeApi) -> None:
    """Upstream carries out its own, and would end at a MutatingPolicy's note."""
    new_cluster(api)
    policy(api, rule(data=DATA))
    raw = trigger(api)
    generating.request(api, raw)
    before = {*requests_left(api), note(api, "cel-mutate", LOST_ROLE)}
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(40)
        held.background.finish()
    assert set(requests_left(api)) == before
    assert api.count("(POST|PATCH|DELETE) .*updaterequests") == 0


def _mutation() -> Json:
    made = rule("m")
    del made["generate"]
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "namespace": "a"}
    made["mutate"] = {
        "targets": [target],
        "patchStrategicMerge": {"metadata": {"labels": {"changed": "yes"}}},
    }
    return made


@pytest.mark.parametrize(
    ("role", "handed", "dropped"), [(LOST_ROLE, 1, 0), (UNPROVED_ROLE, 0, 1)]
)
def test_only_proved_mutations_are_handed_over(
    api: FakeApi, role: str, handed: int, dropped: int
) -> None:
    new_cluster(api)
    policy(api, _mutation(), background=False)
    raw = trigger(api)
    name = note(api, role=role)
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(6)
        assert posted(api, name) == [], "a mutation is not repeated"
        held.pass_s(30)
    assert count(held, HANDED_OVER, "mutate") == handed
    assert count(held, DROPPED, "mutate") == dropped
    for request in posted(api, name):
        spec = request["spec"]
        assert (spec["requestType"], spec["rule"]) == ("mutate", "m")
        assert spec["resource"] == identity(raw)
        assert request["status"] == {"state": "Pending"}
    assert len(posted(api, name)) == handed


def test_rule_that_needs_the_user_is_reported_and_not_handed_over(api: FakeApi) -> None:
    """Without its review, it would apply to the objects of everyone."""
    new_cluster(api)
    by_user = {"data": {"by": "{{request.userInfo.username || 'x'}}"}}
    policy(api, rule("u", data=by_user, sync=False), background=False)
    trigger(api)
    name = note(api)
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(36)
    assert requests_left(api) == []
    assert posted(api, name) == []
    assert count(held, DROPPED) == 1
    assert len(held.recorded.events) == 1


def test_object_whose_trigger_is_not_new_causes_no_request(api: FakeApi) -> None:
    """Upstream fails for a trigger that is gone, and lists its kind at each attempt."""
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    note(api)
    with term(api) as ours:
        ours.settle()
        ours.pass_s(36)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t")
    api.remove("/api/v1/namespaces/a/secrets/t")
    name = note(api)
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(36)
    assert posted(api, name) == []


def test_request_that_lacks_its_state_gets_it_later(api: FakeApi) -> None:
    """A process was killed between both writes: the next one posts it again."""
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    name = note(api)
    api.fault("PATCH .*/status", *[403] * 2)
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(4)
        (request,) = posted(api, name)
        assert "status" not in request
    with term(api, hands_over=True) as held:
        held.settle()
        held.pass_s(40)
    (request,) = posted(api, name)
    assert request["status"] == {"state": "Pending"}


def test_pool_that_ends_hands_over_at_once(api: FakeApi) -> None:
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    name = note(api)
    with term(api, hands_over=True) as held:
        held.catch_up()
        held.background.finish()
    assert [one["status"] for one in posted(api, name)] == [{"state": "Pending"}]


def test_pool_writes_nothing_when_the_holder_has_gone(api: FakeApi) -> None:
    """A pod of ours takes the lease, and looks itself."""
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    name = note(api)
    with term(api, hands_over=True, holds_lease=lambda: False) as held:
        held.settle()
        held.pass_s(40)
        held.background.finish()
    assert requests_left(api) == [name]


def test_our_pool_carries_them_out_if_it_gets_the_lease_back(api: FakeApi) -> None:
    new_cluster(api)
    policy(api, rule(data=DATA))
    trigger(api)
    note(api)
    with term(api, hands_over=True) as aside:
        aside.settle()
        aside.pass_s(36)
    assert len(requests_left(api)) == 1
    with term(api) as held:
        held.settle()
        held.pass_s(36)
    assert requests_left(api) == []
    assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t")
