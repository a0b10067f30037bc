"""Several writers of one object: two rules, other field managers, two holders."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import POOL, User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    PREFIX,
    SECRETS,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_MAPS = CONFIG_MAPS.format("a")
_OUT = f"{_MAPS}/out-t"
_TRIGGER = f"{SECRETS.format('a')}/t"


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _data(text: str) -> Json:
    return {"data": {"from": text}}


def _create(user: User) -> None:
    user.create(
        _TRIGGER,
        apiVersion="v1",
        kind="Secret",
        metadata={"labels": MATCHED, "annotations": {"value": "1"}},
    )


def _update(user: User, **metadata: Json) -> None:
    found = stored(user.api, _TRIGGER)
    assert found is not None
    user.update(_TRIGGER, metadata={**found["metadata"], **metadata})


def test_two_rules_that_generate_one_object(user: User) -> None:
    """The last rule wins, after every event; scans write nothing."""
    api = user.api
    policy(api, rule("first", data=_data("1")), rule("last", data=_data("2")))
    with term(api) as one:
        one.settle()
        _create(user)
        changes: list[Callable[[], None]] = [
            lambda: _update(user, annotations={"value": "2"}),
            lambda: user.update(_OUT, data={"by": "hand"}),
            lambda: user.delete(_OUT),
            lambda: one.pass_s(8000),
        ]
        for change in changes:
            one.settle()
            found = stored(api, _OUT)
            assert found is not None
            assert found["data"] == {"from": "2"}
            assert found["metadata"]["labels"][f"{PREFIX}rule-name"] == "last"
            change()
        before = stored(api, _OUT)
        one.pass_s(8000)
        assert stored(api, _OUT) == before
        user.delete(_TRIGGER)
        one.pass_s(40)
        assert stored(api, _OUT) is None
        assert requests_left(api) == []


def test_fields_of_other_managers(user: User) -> None:
    """Server-side apply takes the rule's fields and keeps those of others."""
    api = user.api
    policy(api, rule(data=_data("1")), useServerSideApply=True)
    with term(api) as one:
        one.settle()
        _create(user)
        one.settle()
        user.update(_OUT, data={"from": "other", "more": "2"})
        one.settle()
        assert (stored(api, _OUT) or {})["data"] == {"from": "1", "more": "2"}
        calls = [target for method, target, _ in api.requests if method == "PATCH"]
        applied = [target for target in calls if "/configmaps/out-t" in target]
        assert len(applied) == 2
        assert all("force=true" in target for target in applied)


def test_a_new_holder_applies_only_what_differs(user: User) -> None:
    """Otherwise, each take-over sends a PATCH for every object of such rules."""
    api = user.api
    policy(api, rule(data=_data("1")), useServerSideApply=True)
    with term(api) as one:
        one.settle()
        _create(user)
        one.settle()
    found = stored(api, _OUT)
    assert found is not None
    labels: Json = {f"f:{name}": {} for name in found["metadata"]["labels"]}
    entry = {
        "manager": "kyverno-generate",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsV1": {
            "f:metadata": {"f:labels": labels},
            "f:data": {"f:from": {}},
        },
    }
    # What the API server writes itself.
    user.update(_OUT, metadata={**found["metadata"], "managedFields": [entry]})
    with term(api) as two:
        two.settle()
        two.pass_s(4000)
        assert api.count(f"PATCH .*{_OUT}") == 1
    user.update(_OUT, data={"from": "2"})
    with term(api) as three:
        three.settle()
        three.pass_s(4000)
        assert (stored(api, _OUT) or {})["data"] == {"from": "1"}
        assert api.count(f"PATCH .*{_OUT}") == 2


def test_an_apply_that_conflicts(user: User) -> None:
    """The object is read again; another writer's change is not lost."""
    api = user.api
    policy(api, rule(data=_data("1")), useServerSideApply=True)
    with term(api) as one:
        one.settle()
        _create(user)
        one.settle()
        api.fault("PATCH .*/configmaps/out-t", 409, 409)
        user.update(_OUT, data={"from": "other", "more": "2"})
        one.settle()
        assert (stored(api, _OUT) or {})["data"] == {"from": "1", "more": "2"}
        assert requests_left(api) == []


def test_generate_existing_with_another_holder_in_between(api: FakeApi) -> None:
    """The next holder generates the rest and writes no object twice."""
    new_cluster(api)
    for number in range(20):
        trigger(api, f"t{number}")
    held = [True]

    def lose(method: str, target: str) -> None:
        if method == "POST" and target.startswith(_MAPS):
            held[0] = held[0] and api.count(f"POST {_MAPS}") < 8

    policy(api, rule(data=_data("1"), generateExisting=True))
    api.on_request = lose
    with term(api, holds_lease=lambda: held[0]) as one:
        one.catch_up()
        one.background.policy_controllers.work_due()
        one.background.controllers.work_due()
    made = {f"{_MAPS}/out-t{number}": None for number in range(20)}
    first = {path: stored(api, path) for path in made}
    assert 8 <= sum(found is not None for found in first.values()) < 20
    api.on_request = lambda _method, _target: None
    with term(api) as one:
        one.settle()
    for path, before in first.items():
        found = stored(api, path)
        assert found is not None
        assert before is None or found == before


@pytest.mark.parametrize("sync", [True, False])
def test_next_holder_writes_nothing_that_exists(api: FakeApi, *, sync: bool) -> None:
    """Otherwise, each change of the lease sends a rejected POST for each object."""
    new_cluster(api)
    for number in range(10):
        trigger(api, f"t{number}")
    body = rule(sync=sync, data=_data("1"), generateExisting=True)
    policy(api, body)
    with term(api) as one:
        one.settle()
    assert stored(api, f"{_MAPS}/out-t9") is not None
    writes = f"^(POST|PUT|PATCH|DELETE) {_MAPS}"
    before = api.count(writes)
    api.remove(f"{_MAPS}/out-t0")
    with term(api) as one:
        one.settle()
    assert stored(api, f"{_MAPS}/out-t0") is not None
    assert api.count(writes) == before + 1


def test_a_target_that_is_the_trigger(user: User) -> None:
    """The pool's own write of the trigger triggers nothing."""
    api = user.api
    resources = {"kinds": ["Secret"], "selector": {"matchLabels": MATCHED}}
    name = "{{request.object.metadata.name}}"
    target = {"apiVersion": "v1", "kind": "Secret", "namespace": "a", "name": name}
    before = "to_number(target.metadata.annotations.count || '0')"
    count = f"{{{{ to_string(add({before}, `1`)) }}}}"
    patch = {"metadata": {"annotations": {"count": count}}}
    policy(
        api,
        {
            "name": "r",
            "match": {"any": [{"resources": resources}]},
            "mutate": {"targets": [target], "patchStrategicMerge": patch},
        },
    )
    with term(api) as one:
        one.settle()
        _create(user)
        one.settle()
        # The API server asks the webhook about the pool's own write.
        found = stored(api, _TRIGGER)
        assert found is not None
        assert found["metadata"]["annotations"]["count"] == "1"
        user.name = POOL
        user.review("UPDATE", found, {**found, "data": {"a": "b"}})
        user.write()
        one.pass_s(40)
        assert requests_left(api) == []
        assert stored(api, _TRIGGER) == found
        user.name = "alice"
        _update(user, labels={**MATCHED, "more": "yes"})
        one.settle()
        found = stored(api, _TRIGGER)
        assert found is not None
        assert found["metadata"]["annotations"]["count"] == "2"
