"""Requests whose admission another webhook denies, or whose effect is delayed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
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
_TRIGGER = f"{SECRETS.format('a')}/t"
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_TARGET = f"{CONFIG_MAPS.format('b')}/target"
_TOTAL = "kyverno_mp_background_requests_total"


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _trigger(user: User) -> None:
    metadata = {"labels": MATCHED, "annotations": {"value": "1"}}
    user.create(_TRIGGER, apiVersion="v1", kind="Secret", metadata=metadata)


def _value(text: str) -> Json:
    return {"metadata": {"annotations": {"value": text}}}


def _dropped(one: Term) -> float:
    counts = one.recorded.counts
    kinds = ("generate", "mutate")
    return sum(counts.get((_TOTAL, (kind, "dropped_present")), 0) for kind in kinds)


def _on_delete() -> Json:
    made = rule(sync=False, data={"data": {"from": "{{request.oldObject.type}}"}})
    made["match"]["any"][0]["resources"]["operations"] = ["DELETE"]
    made["generate"]["name"] = "out-{{request.oldObject.metadata.name}}"
    made["generate"]["namespace"] = "a"
    return made


def _patching() -> Json:
    target = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "b"}
    made = _on_delete()
    del made["generate"]
    made["mutate"] = {
        "targets": [{**target, "name": "target"}],
        "patchStrategicMerge": {"data": {"gone": "{{request.oldObject.type}}"}},
    }
    return made


@pytest.fixture(params=["generate", "mutate"])
def on_delete(request: pytest.FixtureRequest, user: User) -> Iterator[tuple[Term, Any]]:
    """A rule for deletions, its trigger, and a function that reads its effect."""
    api = user.api
    api.put(_TARGET, apiVersion="v1", kind="ConfigMap", data={})
    is_generate = request.param == "generate"
    policy(api, _on_delete() if is_generate else _patching())
    metadata = {"labels": MATCHED}
    user.create(
        _TRIGGER, apiVersion="v1", kind="Secret", type="Opaque", metadata=metadata
    )

    def effect() -> Json:
        found = stored(api, _OUT if is_generate else _TARGET)
        return list(((found or {}).get("data") or {}).values())

    with term(api) as one:
        one.settle()
        yield one, effect


def _end(user: User) -> None:
    """Admit the deletion of the trigger, which a finalizer delays."""
    user.refused_delete(_TRIGGER)
    raw = stored(user.api, _TRIGGER)
    assert raw is not None
    ending = {**raw["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    user.api.put(_TRIGGER, **{**raw, "metadata": ending})


def test_deletion_denied_by_another_webhook(
    user: User, on_delete: tuple[Term, Any]
) -> None:
    """A denied deletion has no effect, and its request is deleted with a reason."""
    one, effect = on_delete
    user.refused_delete(_TRIGGER)
    one.pass_s(40)
    assert effect() == []
    assert requests_left(user.api) == []
    assert _dropped(one) == 1


def test_deletion_delayed_by_a_finalizer(
    user: User, on_delete: tuple[Term, Any]
) -> None:
    """The rule runs when the trigger is deleted, however long that takes."""
    one, effect = on_delete
    _end(user)
    one.pass_s(600)
    assert effect() == []
    user.api.remove(_TRIGGER)
    one.pass_s(80)
    assert effect() == ["Opaque"]
    assert requests_left(user.api) == []


def test_deletion_that_never_completes(user: User, on_delete: tuple[Term, Any]) -> None:
    """The wait has a limit."""
    one, effect = on_delete
    _end(user)
    one.pass_s(4100)
    assert effect() == []
    assert requests_left(user.api) == []
    assert _dropped(one) == 1


def test_many_deletions_that_do_not_complete(user: User) -> None:
    """A tenant must not fill the threshold, from which all triggers wait."""
    api = user.api
    policy(api, _on_delete())
    other = _on_delete()
    other["match"]["any"][0]["resources"]["selector"]["matchLabels"] = {"team": "red"}
    policy(api, other, name="other")
    with term(api, threshold=lambda: 10) as one:
        one.settle()
        for number in range(20):
            path = f"{SECRETS.format('a')}/t{number}"
            labels = MATCHED if number else {"team": "red"}
            fields = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            raw = user.create(path, **fields, metadata={"labels": labels})
            ending = {**raw["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            user.refused_delete(path)
            api.put(path, **{**raw, "metadata": ending})
        one.settle()
        assert len(requests_left(api)) == 20
        one.pass_s(60)
        assert len(requests_left(api)) <= 5
        api.remove(f"{SECRETS.format('a')}/t0")
        one.pass_s(60)
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t0")


def test_completed_deletion_is_processed_immediately(
    user: User, on_delete: tuple[Term, Any]
) -> None:
    one, effect = on_delete
    user.delete(_TRIGGER)
    one.settle()
    assert effect() == ["Opaque"]


def _synced(user: User, one: Term) -> None:
    value = "{{request.object.metadata.annotations.value}}"
    policy(user.api, rule(data={"data": {"from": value}}))
    one.settle()
    _trigger(user)
    one.settle()


def _from(api: FakeApi) -> str:
    found = stored(api, _OUT)
    assert found is not None
    return str(found["data"]["from"])


def test_denied_update_after_an_accepted_one(user: User) -> None:
    """Both become one request; the accepted update takes effect after 30 s."""
    with term(user.api) as one:
        _synced(user, one)
        user.update(_TRIGGER, **_value("2"))
        user.refused_update(_TRIGGER, **_value("3"))
        assert len(requests_left(user.api)) == 1
        one.pass_s(40)
        assert _from(user.api) == "2"
        assert requests_left(user.api) == []


def test_repeatedly_denied_updates(user: User) -> None:
    """Denied updates do not delay an accepted one."""
    with term(user.api) as one:
        _synced(user, one)
        user.update(_TRIGGER, **_value("2"))
        for number in range(8):
            user.refused_update(_TRIGGER, **_value(f"no-{number}"))
            one.pass_s(5)
        assert _from(user.api) == "2"
        # The last update may still be stored.
        assert len(requests_left(user.api)) == 1
        one.pass_s(40)
        assert requests_left(user.api) == []


def test_update_stored_after_denied_ones(user: User) -> None:
    """The request is kept until the newest mark has waited, too."""
    with term(user.api) as one:
        _synced(user, one)
        user.refused_update(_TRIGGER, **_value("no"))
        one.pass_s(25)
        new = user.refused_update(_TRIGGER, **_value("2"))
        one.pass_s(10)
        assert _from(user.api) == "1"
        user.api.put(_TRIGGER, **new)
        one.pass_s(10)
        assert _from(user.api) == "2"
        assert requests_left(user.api) == []


def test_update_of_a_deleted_trigger(user: User) -> None:
    """A denied update does not recreate objects deleted with their trigger."""
    with term(user.api) as one:
        _synced(user, one)
        user.refused_update(_TRIGGER, **_value("no"))
        user.delete(_TRIGGER)
        one.pass_s(40)
        assert stored(user.api, _OUT) is None
        assert requests_left(user.api) == []
