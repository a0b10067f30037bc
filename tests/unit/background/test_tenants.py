"""A namespaced Policy generates, reads and deletes only in its own namespace.

Any user who can write an object can give it the labels of a generated object.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.background.objects import names
from kyverno_mp.kube.resource import Key, Resource
from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    PREFIX,
    SECRETS,
    new_cluster,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_POLICIES = "/apis/kyverno.io/v1/namespaces/a/policies"
_VALUE = "{{request.object.metadata.annotations.value}}"
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _policy(api: FakeApi, *rules: Json, generation: int = 1) -> None:
    api.put(
        f"{_POLICIES}/p",
        apiVersion="kyverno.io/v1",
        kind="Policy",
        metadata={"generation": generation},
        spec={"rules": list(rules)},
    )


def _rule(**body: Json) -> Json:
    made = rule(data={"data": {"from": _VALUE}}, **body)
    made["generate"]["namespace"] = "a"
    return made


def _secret(namespace: str, value: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"labels": MATCHED, "annotations": {"value": value}},
    }


def _labels(trigger: Json) -> dict[str, str]:
    metadata = trigger["metadata"]
    return {
        "app.kubernetes.io/managed-by": "kyverno",
        f"{PREFIX}policy-name": "p",
        f"{PREFIX}policy-namespace": "a",
        f"{PREFIX}rule-name": "r",
        f"{PREFIX}trigger-group": "",
        f"{PREFIX}trigger-version": "v1",
        f"{PREFIX}trigger-kind": "Secret",
        f"{PREFIX}trigger-namespace": metadata["namespace"],
        f"{PREFIX}trigger-uid": metadata["uid"],
        f"{PREFIX}trigger-name": metadata["name"],
    }


@pytest.mark.parametrize("is_event", [True, False])
def test_labels_show_a_tenant_no_object_of_others(
    user: User, *, is_event: bool
) -> None:
    """Labels that name a trigger in another namespace lead to nothing."""
    api = user.api
    user.create(f"{SECRETS.format('z')}/t", **_secret("z", "hidden"))
    hidden = stored(api, f"{SECRETS.format('z')}/t")
    assert hidden is not None
    forged = {"apiVersion": "v1", "kind": "ConfigMap", "data": {}}
    _policy(api, _rule(generateExisting=True))
    path = f"{CONFIG_MAPS.format('a')}/forged"
    api.put(path, **forged, metadata={"labels": _labels(hidden)})
    with term(api) as one:
        one.settle()
        if is_event:
            user.update(path, data={"a": "b"})
        one.pass_s(40)
        assert stored(api, _OUT) is None
        assert "hidden" not in str(
            [raw for key, raw in api.objects.items() if key[2] == "configmaps"]
        )
        assert requests_left(api) == []


@pytest.mark.parametrize("change", ["trigger", "rule", "policy", "target"])
def test_copies_in_other_namespaces_are_not_changed(user: User, change: str) -> None:
    """A copy of a generated object, with its labels, belongs to its namespace."""
    api = user.api
    _policy(api, _rule())
    copy = f"{CONFIG_MAPS.format('z')}/copy"
    with term(api) as one:
        one.settle()
        user.create(f"{SECRETS.format('a')}/t", **_secret("a", "1"))
        one.settle()
        made = stored(api, _OUT)
        assert made is not None
        labels = made["metadata"]["labels"]
        before = api.put(
            copy, apiVersion="v1", kind="ConfigMap", metadata={"labels": labels}
        )
        if change == "trigger":
            user.delete(f"{SECRETS.format('a')}/t")
        elif change == "rule":
            _policy(api, {**_rule(), "name": "other"}, generation=2)
        elif change == "policy":
            api.remove(f"{_POLICIES}/p")
        else:
            moved = _rule()
            moved["generate"]["name"] = "moved-{{request.object.metadata.name}}"
            _policy(api, moved, generation=2)
        one.pass_s(40)
        after = stored(api, copy)
        assert after is not None
        assert (
            after["metadata"]["resourceVersion"]
            == (before["metadata"]["resourceVersion"])
        )
        out = stored(api, _OUT)
        if change == "target":
            assert out is not None
            assert f"{PREFIX}policy-name" not in out["metadata"]["labels"]
        else:
            assert out is None


def test_forged_triggers_cost_one_list_each(user: User) -> None:
    """A uid that does not exist is not looked for at every event of the rule."""
    api = user.api
    _policy(api, _rule())
    absent = {"metadata": {"namespace": "a", "name": ""}}
    for number in range(5):
        absent["metadata"]["uid"] = f"absent-{number}"
        labels = {**_labels(absent)}
        del labels[f"{PREFIX}trigger-name"]
        path = f"{CONFIG_MAPS.format('a')}/forged-{number}"
        api.put(path, apiVersion="v1", kind="ConfigMap", metadata={"labels": labels})
    with term(api) as one:
        one.settle()
        for generation in (2, 3, 4):
            _policy(api, _rule(), generation=generation)
            one.settle()
            user.update(
                f"{CONFIG_MAPS.format('a')}/forged-0", data={"a": f"{generation}"}
            )
            one.pass_s(40)
        assert api.count(r"GET .*/secrets(\?|$)") == 5
        user.create(f"{SECRETS.format('a')}/t", **_secret("a", "1"))
        one.settle()
        assert stored(api, _OUT)


def test_remembered_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces that come and go must not fill the memory."""
    monkeypatch.setattr(names, "BACKGROUND_NAMES_MAX", 10)
    monkeypatch.setattr(names, "BACKGROUND_ABSENT_MAX", 3)
    known = names.Names()
    places = [names.Place("", "secrets", f"n{number}") for number in range(9)]
    for place in places:
        known.keep(place, {"u": "one", "v": "two"}, "w")
    found = [known.name(place, "v") for place in places]
    assert found == [""] * 6 + ["two"] * 3
    assert [known.is_absent(place, "w") for place in places] == [False] * 6 + [True] * 3
    many = {f"u{number}": "n" for number in range(99)}
    known.keep(places[0], many, "u1")
    assert known.name(places[0], "u98") == "n"
    assert known.name(places[8], "v") == ""
    assert not known.is_absent(places[0], "u1")


def test_policy_of_an_author_without_rights_is_not_carried_out(user: User) -> None:
    """It stays as it is, and works again once its author has the right."""
    api = user.api
    _policy(api, _rule())
    asked: list[tuple[str, Key]] = []
    lacking = ["eve may not create configmaps"]

    def reason(resource: Resource, key: Key) -> str:
        asked.append((resource.plural, key))
        return "".join(lacking)

    with term(api, author_reason=reason) as one:
        user.create(f"{SECRETS.format('a')}/t", **_secret("a", "v"))
        one.settle()
        assert stored(api, _OUT) is None
        # The reason itself is withheld, because the trigger is a Secret.
        assert any("author_rights" in note for note in one.recorded.notes())
        lacking.clear()
        one.pass_s(120)
        assert stored(api, _OUT) is not None
    assert set(asked) == {("policies", ("a", "p"))}
