"""Reviews that anyone could have sent start only what the cluster itself proves.

During a take-over the API server's own calls have no proof, so generating must not stop
for them. But nothing of such a review may be believed: neither its user nor its object.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.controllers.unproved_status import with_unproved, without_outdated
from kyverno_mp.queues.triggers import lost_record
from kyverno_mp.queues.update_requests import document_of
from tests.unit.background import generating_world as generating
from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    POLICIES,
    REQUESTS,
    SECRETS,
    Term,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
UNPROVED = "webhook.trigger_unproved"


@pytest.fixture
def eve(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    """Somebody who reaches the webhook's port, or the API server without proof."""
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    one.is_proved = False
    yield one
    one.close()


def _secret(name: str, **metadata: Json) -> Json:
    given = {"name": name, "namespace": "a", "uid": f"u-{name}", "labels": MATCHED}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {**given, **metadata}}


def _path(name: str) -> str:
    return f"{SECRETS.format('a')}/{name}"


def _made(api: FakeApi, name: str) -> Json | None:
    return stored(api, f"{CONFIG_MAPS.format('a')}/out-{name}")


def _notes(one: Term) -> list[str]:
    return [info.note for info in one.recorded.events if info.reason == "PolicyError"]


def _pass(eve: User, one: Term) -> None:
    eve.write()
    one.pass_s(40)


def test_created_object_gets_its_objects(eve: User) -> None:
    """The API server called without proof, and stored the object."""
    api = eve.api
    api.put(_path("old"), **_secret("old", creationTimestamp="2020-01-01T00:00:00Z"))
    policy(api, rule(sync=False, data={"data": {"a": "b"}}))
    with term(api) as one:
        one.settle()
        eve.create(_path("t"), **_secret("t"))
        one.pass_s(40)
        assert _made(api, "t")
        assert _made(api, "old") is None
        assert requests_left(api) == []
    assert eve.records.errors == []


def test_changed_and_deleted_objects_are_synchronised(eve: User) -> None:
    api = eve.api
    value = "{{request.object.metadata.annotations.value}}"
    policy(api, rule(data={"data": {"a": value}}))
    eve.is_proved = True
    with term(api) as one:
        one.settle()
        for name in ("t", "gone"):
            eve.create(_path(name), **_secret(name, annotations={"value": "1"}))
        one.settle()
        eve.is_proved = False
        changed = _secret("t", annotations={"value": "2"})
        eve.update(_path("t"), metadata=changed["metadata"])
        eve.delete(_path("gone"))
        one.pass_s(40)
        assert (_made(api, "t") or {})["data"] == {"a": "2"}
        assert _made(api, "gone") is None


def test_invented_reviews_start_nothing(eve: User) -> None:
    """Whatever is claimed, only what is stored counts; floods make one request."""
    api = eve.api
    policy(api, rule(data={"data": {"a": "b"}}))
    api.put(_path("real"), **_secret("real"))
    eve.is_proved = True
    with term(api) as one:
        one.settle()
        eve.update(_path("real"), **_secret("real", annotations={"v": "1"}))
        one.settle()
        before = _made(api, "real")
        assert before
        eve.is_proved = False
        for number in range(50):
            eve.review("CREATE", _secret(f"invented-{number}"), None)
            eve.review("UPDATE", _secret("other"), _secret("other"))
            eve.review("DELETE", None, stored(api, _path("real")))
        eve.write()
        assert len(requests_left(api)) == 1
        (name,) = requests_left(api)
        text = str(stored(api, f"{REQUESTS}/{name}"))
        assert "invented" not in text
        assert "alice" not in text
        one.pass_s(40)
        assert _made(api, "real") == before
        assert [_made(api, f"invented-{number}") for number in range(50)] == [None] * 50
        assert _made(api, "other") is None
        assert requests_left(api) == []


NEEDS_REVIEW: dict[str, Json] = {
    "subjects": {"match": {"subjects": [{"kind": "User", "name": "alice"}]}},
    "roles": {"match": {"clusterRoles": ["admin"]}},
    "exclude": {"exclude": {"any": [{"subjects": [{"kind": "User", "name": "x"}]}]}},
    "user": {"data": {"data": {"by": "{{request.userInfo.username || 'x'}}"}}},
    "account": {"data": {"data": {"by": "{{serviceAccountName || 'x'}}"}}},
    "old": {"data": {"data": {"was": "{{request.oldObject.kind || 'x'}}"}}},
}


@pytest.mark.parametrize("which", NEEDS_REVIEW)
def test_rule_that_needs_the_review_is_not_run_and_says_so(
    eve: User, which: str
) -> None:
    """Otherwise a rule for some users would run for the objects of everyone."""
    api = eve.api
    parts = NEEDS_REVIEW[which]
    data = parts.get("data", {"data": {"a": "b"}})
    made = rule(sync=False, data=data)
    made["match"]["any"][0] |= parts.get("match", {})
    if "exclude" in parts:
        made["exclude"] = parts["exclude"]
    plain = rule("plain", sync=False, data={"data": {"a": "b"}})
    plain["generate"]["name"] = "plain-{{request.object.metadata.name}}"
    policy(api, made, plain, background=False)
    with term(api) as one:
        one.settle()
        eve.create(_path("t"), **_secret("t"))
        one.pass_s(40)
        assert _made(api, "t") is None
        assert stored(api, f"{CONFIG_MAPS.format('a')}/plain-t")
        (note,) = _notes(one)
        assert note.startswith("policy p/r error: it is not run for new objects")
    # The user of the review has no roles, so that rule does not match for it.
    assert bool(_unproved(api)) == (which != "roles")


@pytest.mark.parametrize("role", ["lost", "unproved"])
@pytest.mark.parametrize("by", ["", "request.userInfo.username"])
def test_generating_policy_finds_new_triggers(api: FakeApi, role: str, by: str) -> None:
    new_cluster(api)
    since_ns = 1_760_000_000 * 10**9
    for name, written in (
        ("old", "2025-10-09T07:00:00Z"),
        ("new", "2025-10-10T00:00:00Z"),
    ):
        api.put(
            f"/api/v1/namespaces/a/pods/{name}",
            apiVersion="v1",
            kind="Pod",
            metadata={
                "creationTimestamp": written,
                "labels": {"team": "blue"},
                "annotations": {"value": "1"},
            },
        )
    named = generating.DATA.replace('{"name": "out"}', '{"name": object.metadata.name}')
    conditions = [{"name": "c", "expression": f"{by} != 'eve'"}] if by else []
    generating.policy(api, named, sync=False, matchConditions=conditions)
    record = lost_record("p", since_ns, "cel-generate", role)
    document = document_of(record, record.wanted[0], "kyverno")
    assert document["spec"]["requestType"] == "cel-generate"
    with generating.held(api) as one:
        one.settle()
        api.put(f"{REQUESTS}/{document['metadata']['name']}", **document)
        one.pass_s(60)
        maps = CONFIG_MAPS.format("a")
        assert stored(api, f"{maps}/old") is None
        assert (stored(api, f"{maps}/new") is None) == bool(by)
        assert len(_notes(one)) == bool(by)
        assert requests_left(api) == []


@pytest.mark.parametrize("operation", ["CONNECT", "DELETE"])
def test_what_cannot_be_read_is_counted(eve: User, operation: str) -> None:
    api = eve.api
    made = rule(sync=False, data={"data": {"a": "b"}})
    made["match"]["any"][0]["resources"]["operations"] = [operation]
    policy(api, made)
    with term(api) as one:
        one.settle()
        secret = _secret("t")
        is_gone = operation == "DELETE"
        eve.review(operation, None if is_gone else secret, secret if is_gone else None)
        _pass(eve, one)
        assert _made(api, "t") is None
        assert requests_left(api) == []
    assert eve.records.errors == [UNPROVED]
    assert [one["reason"] for one in _unproved(api)] == ["NoProof"]


def _unproved(api: FakeApi) -> list[Json]:
    """Return what the policy's status says about reviews without proof."""
    found = stored(api, f"{POLICIES}/p") or {}
    conditions = (found.get("status") or {}).get("conditions") or ()
    return [one for one in conditions if one["type"] == "ReviewsProved"]


def test_status_is_written_once_however_many_reviews_there_are(eve: User) -> None:
    """Whoever sends reviews without proof decides neither writes nor their content."""
    api = eve.api
    made = rule(sync=False, data={"data": {"a": "b"}})
    made["match"]["any"][0]["resources"]["operations"] = ["CONNECT"]
    policy(api, made)
    versions = set()
    for number in range(20):
        eve.review("CONNECT", _secret(f"t{number}"), None)
        eve.write()
        (condition,) = _unproved(api)
        versions.add(
            (stored(api, f"{POLICIES}/p") or {})["metadata"]["resourceVersion"]
        )
        assert f"t{number}" not in str(condition)
    assert len(versions) == 1
    assert requests_left(api) == []


def test_change_of_the_policy_removes_the_condition() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for version in ("kyverno.io/v1", "policies.kyverno.io/v1beta1"):
        raw: Json = {"apiVersion": version, "metadata": {"generation": 3}}
        noted = with_unproved(raw, now)
        assert noted is not None
        assert with_unproved(noted, now) is None
        status = noted["status"]
        conditions = status.get("conditionStatus", status)["conditions"]
        assert without_outdated(conditions, 3) == conditions
        assert without_outdated(conditions, 4) == []


def test_existing_objects_are_not_changed_and_it_is_counted(eve: User) -> None:
    """A repeated mutation may have another result than a single one."""
    api = eve.api
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "namespace": "a"}
    api.put(f"{CONFIG_MAPS.format('a')}/m", apiVersion="v1", kind="ConfigMap", data={})
    mutation = rule("m")
    del mutation["generate"]
    mutation["mutate"] = {
        "targets": [target],
        "patchStrategicMerge": {"metadata": {"labels": {"changed": "yes"}}},
    }
    generation = rule(sync=False, data={"data": {"a": "b"}})
    policy(api, mutation, generation)
    with term(api) as one:
        one.settle()
        eve.create(_path("t"), **_secret("t"))
        one.pass_s(40)
        assert _made(api, "t")
        found = stored(api, f"{CONFIG_MAPS.format('a')}/m") or {}
        assert "changed" not in str(found["metadata"].get("labels"))
        assert any("policy p/m error" in note for note in _notes(one))
    assert _unproved(api)
    assert eve.records.errors == [UNPROVED]


def test_invented_policies_of_generated_objects_are_not_recorded(eve: User) -> None:
    """A label names the policy; anyone can write labels into a review."""
    api = eve.api
    policy(api, rule(data={"data": {"a": "b"}}))
    with term(api) as one:
        one.settle()
        for number in range(20):
            labels = {
                "app.kubernetes.io/managed-by": "kyverno",
                "generate.kyverno.io/policy-name": f"invented-{number}",
                "generate.kyverno.io/policy-namespace": "",
                "generate.kyverno.io/rule-name": "r",
                "generate.kyverno.io/trigger-kind": "Secret",
                "generate.kyverno.io/trigger-name": "t",
                "generate.kyverno.io/trigger-namespace": "a",
                "generate.kyverno.io/trigger-version": "v1",
                "generate.kyverno.io/trigger-group": "",
                "generate.kyverno.io/trigger-uid": "u",
            }
            raw = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "c", "namespace": "a", "labels": labels},
            }
            eve.review("DELETE", None, raw)
        eve.write()
        assert requests_left(api) == []
    assert eve.records.errors == [UNPROVED] * 20
