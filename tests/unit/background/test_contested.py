"""Objects that another writer changes or deletes again after each revert.

A failure means: two controllers loop.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.background.objects import written as written_module
from kyverno_mp.background.objects.written import REVERTS_AT_ONCE, Written
from kyverno_mp.limits import BACKGROUND_WRITTEN_MAX
from kyverno_mp.queues.work_queue import Backoff
from kyverno_mp.telemetry.families import BACKGROUND_CONTESTED, BACKGROUND_REQUESTS
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
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_SECRET = f"{SECRETS.format('a')}/t"
_OURS = {"value": "1"}
_THEIRS = {"value": "theirs"}
_READING = {"data": {"value": "{{request.object.metadata.annotations.value}}"}}
_MANAGED = [
    {"manager": "kyverno-mp", "time": "2026-01-01T00:00:00Z"},
    {"manager": "rival", "time": "2026-01-01T00:00:01Z"},
]


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _begin(user: User, one: Term, **spec: Json) -> None:
    policy(user.api, rule(data=_READING), **spec)
    one.settle()
    metadata = {"labels": MATCHED, "annotations": {"value": "1"}}
    user.create(_SECRET, apiVersion="v1", kind="Secret", metadata=metadata)
    one.settle()
    assert _data(user.api) == _OURS


def _data(api: FakeApi) -> Json:
    return (stored(api, _OUT) or {}).get("data")


def _change(user: User, one: Term) -> None:
    user.update(_OUT, data=_THEIRS, metadata={"managedFields": _MANAGED})
    one.settle()


def _contest(user: User, one: Term) -> None:
    """Change the object until it is no longer reverted at once."""
    for _ in range(REVERTS_AT_ONCE):
        assert _contested(one) == 0
        _change(user, one)
        assert _data(user.api) == _OURS
    _change(user, one)
    assert _data(user.api) == _THEIRS


def _contested(one: Term) -> float:
    return one.recorded.counts.get((BACKGROUND_CONTESTED.name, ()), 0)


def _notes(one: Term) -> list[str]:
    return [info.note for info in one.recorded.events if info.reason == "PolicyError"]


def test_pauses_grow(user: User) -> None:
    """The pauses are 1, 2, 4, ... 300 s, and each is followed by one revert."""
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        for pause_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
            one.time.now_s += pause_s - 0.5
            one.settle()
            assert _data(user.api) == _THEIRS, pause_s
            one.time.now_s += 0.6
            one.settle()
            assert _data(user.api) == _OURS, pause_s
            assert requests_left(user.api) == []
            _change(user, one)
            assert _data(user.api) == _THEIRS
        assert _contested(one) >= 12


def test_event_is_created_once(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        for _ in range(3):
            one.pass_s(10)
            _change(user, one)
        (note,) = _notes(one)
        assert note == (
            "ConfigMap/a/out-t is changed or deleted each time it is synchronised,"
            " most recently by rival; policy p/r now restores it less and less often"
        )


def test_many_changes_in_a_pause_cause_no_write(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        for _ in range(20):
            _change(user, one)
        before = user.api.count("PUT .*/configmaps/out-t")
        one.pass_s(2)
        assert _data(user.api) == _OURS
        assert user.api.count("PUT .*/configmaps/out-t") == before + 1


def test_rejected_update_in_a_pause(user: User) -> None:
    """It does not end the wait for the next revert."""
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        for pause_s in (1, 2, 4, 8, 16, 32):
            one.pass_s(pause_s + 1)
            assert _data(user.api) == _OURS
            _change(user, one)
        assert _data(user.api) == _THEIRS
        user.refused_update(_OUT, data={"value": "more"})
        one.pass_s(40)
        assert _data(user.api) == _THEIRS
        one.pass_s(60)
        assert _data(user.api) == _OURS
        assert requests_left(user.api) == []


def test_deletions(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one)
        for _ in range(REVERTS_AT_ONCE):
            user.delete(_OUT)
            one.settle()
            assert _data(user.api) == _OURS
        user.delete(_OUT)
        one.settle()
        assert _data(user.api) is None
        one.pass_s(2)
        assert _data(user.api) == _OURS


def test_server_side_apply(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one, useServerSideApply=True)
        _contest(user, one)
        one.pass_s(2)
        assert _data(user.api) == _OURS


def test_new_content_is_written_immediately(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        metadata = {"labels": MATCHED, "annotations": {"value": "2"}}
        user.update(_SECRET, metadata=metadata)
        one.settle()
        assert _data(user.api) == {"value": "2"}
        _change(user, one)
        assert _data(user.api) == {"value": "2"}


def test_other_writer_stops(user: User) -> None:
    """The request ends without a write when the object is in its desired state."""
    with term(user.api) as one:
        _begin(user, one)
        _contest(user, one)
        before = user.api.count("PUT .*/configmaps/out-t")
        user.update(_OUT, data=_OURS)
        one.pass_s(2)
        assert requests_left(user.api) == []
        assert user.api.count("PUT .*/configmaps/out-t") == before


def test_other_objects_of_the_rule_are_not_delayed(user: User) -> None:
    with term(user.api) as one:
        _begin(user, one)
        metadata = {"labels": MATCHED, "annotations": {"value": "1"}}
        other = f"{SECRETS.format('a')}/u"
        user.create(other, apiVersion="v1", kind="Secret", metadata=metadata)
        one.settle()
        _contest(user, one)
        path = f"{CONFIG_MAPS.format('a')}/out-u"
        user.update(path, data=_THEIRS)
        one.settle()
        assert (stored(user.api, path) or {})["data"] == _OURS


def test_many_contested_objects(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant must not fill the threshold, from which all triggers wait."""
    monkeypatch.setattr(written_module, "PAUSES", Backoff(least_s=300.0, most_s=300.0))
    api = user.api
    other = rule(data=_READING)
    red = {"team": "red"}
    other["match"]["any"][0]["resources"]["selector"]["matchLabels"] = red
    outs = [f"{CONFIG_MAPS.format('a')}/out-t{number}" for number in range(9)]
    with term(api, threshold=lambda: 10) as one:
        policy(api, rule(data=_READING))
        policy(api, other, name="other")
        one.settle()
        for number in range(9):
            metadata = {
                "labels": MATCHED if number < 8 else red,
                "annotations": {"value": "1"},
            }
            path = f"{SECRETS.format('a')}/t{number}"
            user.create(path, apiVersion="v1", kind="Secret", metadata=metadata)
        one.settle()
        for _ in range(REVERTS_AT_ONCE + 1):
            for path in outs:
                user.update(path, data=_THEIRS, metadata={"managedFields": _MANAGED})
            one.settle()
        assert len(requests_left(api)) == 9
        one.pass_s(60)
        assert len(requests_left(api)) <= 5
        labels = "generate", "dropped_contested"
        assert one.recorded.counts[BACKGROUND_REQUESTS.name, labels] >= 4
        assert (stored(api, outs[8]) or {})["data"] == _THEIRS
        one.pass_s(300)
        assert (stored(api, outs[8]) or {})["data"] == _OURS
        assert requests_left(api) == []
        # The next scan restores the others.
        one.pass_s(3700)
        assert all((stored(api, path) or {})["data"] == _OURS for path in outs)


def test_recreated_trigger_is_no_conflict(user: User) -> None:
    """An object that the pool itself deleted is always created again at once."""
    with term(user.api) as one:
        _begin(user, one)
        for _ in range(2 * REVERTS_AT_ONCE):
            user.update(_SECRET, metadata={"labels": {"team": "none"}})
            one.settle()
            assert _data(user.api) is None
            user.update(_SECRET, metadata={"labels": MATCHED})
            one.settle()
            assert _data(user.api) == _OURS
        assert _contested(one) == 0


def test_conflict_ends() -> None:
    now_s = [1000.0]
    written = Written(lambda: now_s[0])
    raw = _raw("one")
    for version in range(2 * REVERTS_AT_ONCE):
        written.note({**raw, "metadata": {"resourceVersion": str(version)}}, raw)
    assert written.pause_s(raw) == 2 ** (REVERTS_AT_ONCE - 1)
    now_s[0] += 600
    assert written.note({**raw, "metadata": {"resourceVersion": "99"}}, raw) == 1
    assert written.pause_s(raw) == 0


def test_write_without_a_change_is_no_revert() -> None:
    written = Written(lambda: 1000.0)
    raw = _raw("one")
    made = {**raw, "metadata": {"resourceVersion": "7"}}
    assert [written.note(made, raw, "7") for _ in range(9)] == [0] * 9


def test_oldest_entries_are_evicted() -> None:
    written = Written(lambda: 1000.0)
    for number in range(BACKGROUND_WRITTEN_MAX + 1):
        raw = _raw(f"o{number}")
        written.note({"metadata": {"uid": "u", "resourceVersion": "1"}}, raw)
    live = {"metadata": {"uid": "u", "resourceVersion": "1"}}
    assert not written.is_as_written(live, _raw("o0"))
    assert written.is_as_written(live, _raw("o1"))


def _raw(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "a"},
        "data": _OURS,
    }
