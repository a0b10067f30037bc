"""A stored policy ends to borrow a right when its author loses it.

A failure means: a policy outlives its author's right; an upgrade lifts policies whose
author is unknown; or an API server that does not answer does either.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kyverno_mp.egress.author_rights import AUTHOR, author_of, recorded
from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.leader.authors import AuthorWatch
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.policy.ports import Author, BuiltInKinds
from tests.unit.webhook.review.test_policy_author import (
    ALL,
    Grant,
    in_cel,
    legacy,
    target,
)

EVE = Author("eve", ("team", "system:authenticated"))
TARGET = target("v1", "ResourceQuota", name="q")
NAME = ("policies", "team", "p")
HOUR_S = 3600.0


def by(author: Author | None, raw: dict[str, Any]) -> dict[str, Any]:
    annotations = {AUTHOR: recorded(author)} if author else {}
    return {**raw, "metadata": {**raw["metadata"], "annotations": annotations}}


class Rig:
    """Stored policies, the grants of their authors, and the time."""

    def __init__(self, *grants: Grant) -> None:
        self.policies: dict[tuple[str, str, str], bytes] = {}
        self.grants = set(grants)
        self.is_up = True
        self.asked: list[Author] = []
        self.now_s = 0.0
        self.woken = 0
        self.watch = AuthorWatch(
            lambda: self.policies, BuiltInKinds(), self, lambda: self.now_s
        )
        self.watch.on_change(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        del attributes, deadline_ns
        if not self.is_up:
            raise KubeUnavailable("t", "the API server does not answer")
        self.asked.append(author)
        return ALL in self.grants

    def store(self, raw: dict[str, Any], name: tuple[str, str, str] = NAME) -> None:
        self.policies[name] = msgspec.json.encode(raw)
        self.watch.check_due()

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.watch.check_due()


def test_lost_right_is_noticed_within_the_hour_and_when_it_returns() -> None:
    rig = Rig(ALL)
    rig.store(by(EVE, TARGET))
    assert rig.watch.lost == {}
    assert {(one.name, tuple(one.groups)) for one in rig.asked} == {
        (EVE.name, tuple(EVE.groups))
    }
    rig.grants.clear()
    rig.later(HOUR_S - 1)
    assert rig.watch.lost == {}
    rig.later(2)
    assert list(rig.watch.lost) == [("Policy", "team", "p")]
    (reason,) = rig.watch.lost.values()
    assert "additional privileges are required for the user 'eve'" in reason
    assert "resourcequotas" in reason
    assert rig.woken == 1
    rig.grants.add(ALL)
    rig.later(HOUR_S + 1)
    assert rig.watch.lost == {}
    assert rig.woken == 2


def test_each_version_is_checked_once_an_hour() -> None:
    rig = Rig(ALL)
    rig.store(by(EVE, TARGET))
    count = len(rig.asked)
    for _ in range(10):
        rig.later(1)
    assert len(rig.asked) == count
    rig.store(by(Author("mallory"), TARGET))
    assert rig.asked[-1].name == "mallory"


def test_version_of_another_author_is_judged_by_its_own() -> None:
    rig = Rig()
    rig.store(by(EVE, TARGET))
    assert list(rig.watch.lost) == [("Policy", "team", "p")]
    rig.grants.add(ALL)
    rig.store(by(Author("admin"), TARGET))
    assert rig.watch.lost == {}


@pytest.mark.parametrize(
    "raw",
    [
        by(None, TARGET),
        by(EVE, legacy({"validate": {"message": "m", "deny": {}}})),
        {**TARGET, "metadata": {**TARGET["metadata"], "annotations": {AUTHOR: "no"}}},
        {**by(EVE, TARGET), "spec": {"rules": 7}},
        {**by(EVE, in_cel("MutatingPolicy")), "spec": 7},
    ],
    ids=["unknown author", "no rights used", "damaged", "invalid", "invalid in CEL"],
)
def test_nothing_else_is_refused(raw: dict[str, Any]) -> None:
    """What is not known to borrow stays in force; the API server is not asked."""
    rig = Rig()
    rig.store(raw)
    assert rig.watch.lost == {}
    assert rig.asked == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_last_verdict_holds_while_nobody_answers(is_lost: bool) -> None:  # noqa: FBT001
    rig = Rig(*(() if is_lost else (ALL,)))
    rig.store(by(EVE, TARGET))
    rig.is_up = False
    rig.later(HOUR_S + 1)
    assert bool(rig.watch.lost) is is_lost
    rig.is_up = True
    rig.grants = {ALL} if is_lost else set()
    rig.later(61)
    assert bool(rig.watch.lost) is not is_lost


def test_unexpected_error_concerns_one_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It neither ends the leader nor counts as a right."""
    rig = Rig(ALL)
    may = rig.author_may

    def fail(author: Author, attributes: Mapping[str, str], deadline_ns: int) -> bool:
        if author.name == "bad":
            raise ZeroDivisionError
        return may(author, attributes, deadline_ns)

    monkeypatch.setattr(rig, "author_may", fail)
    rig.policies["policies", "team", "q"] = msgspec.json.encode(
        by(Author("bad"), TARGET)
    )
    rig.store(by(EVE, TARGET))
    assert rig.watch.lost == {
        ("Policy", "team", "q"): "author not checked: ZeroDivisionError"
    }
    monkeypatch.setattr(rig, "author_may", may)
    rig.later(61)
    assert rig.watch.lost == {}


def test_deleted_policy_is_forgotten() -> None:
    rig = Rig()
    rig.store(by(EVE, TARGET))
    rig.policies.clear()
    rig.later(1)
    assert rig.watch.lost == {}


def test_policy_is_not_carried_out_but_lifts_no_denial() -> None:
    """Its rules that change objects are gone, those of reviews fail."""
    rules = [
        {"name": "m", **TARGET["spec"]["rules"][0]},
        {
            "name": "v",
            "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
            "validate": {"message": "m", "deny": {}},
        },
    ]
    both = {**TARGET, "spec": {"validationFailureAction": "Enforce", "rules": rules}}
    other = {**both, "metadata": {"name": "other", "namespace": "team"}}
    text = "\n---\n".join(map(json.dumps, (both, other)))
    store = PolicyStore(lambda _: True, has_background=True)
    lost = {("Policy", "team", "p"): "eve may not", ("Policy", "x", "gone"): "r"}
    found = store.update(Changes({"x": text.encode()}, ()), lost=lost)
    by_name = {one.name: one for one in found.policies}
    assert (by_name["p"].ready, by_name["p"].code) == (False, "leader.author_rights")
    assert by_name["p"].message.startswith("eve may not; it is not carried out")
    assert by_name["other"].ready
    whole, stub = found.encoded
    assert (whole.key, stub.key) == ("team/other", "team/p")
    assert len(stub.entries) < len(whole.entries)
    assert b"is not evaluated" not in whole.content
    back = store.update(Changes({}, ()))
    assert all(one.ready for one in back.policies)


def test_record_of_an_author() -> None:
    assert author_of({AUTHOR: recorded(EVE)}) == EVE
    # Too many groups for an annotation: unknown, instead of somebody without groups.
    many = Author("eve", tuple(f"group-{number}" for number in range(5000)))
    assert recorded(many) == ""
    assert author_of({}) is author_of(None) is None
