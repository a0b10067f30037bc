"""The test plays every cell of the table in docs/background.md on the fake API server.

A row is an event, a column is a kind of rule, and a cell describes the effect on the
object.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    POLICIES,
    PREFIX,
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
_PAGE = Path(__file__).parents[3] / "docs" / "background.md"
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_SOURCE = f"{CONFIG_MAPS.format('b')}/source"
_TRIGGER = f"{SECRETS.format('a')}/t"
_COLUMNS = ("data, sync", "data", "clone, sync", "clone")


def _cells() -> Iterator[Any]:
    lines = iter(_PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith("| event |"):
            break
    for line in lines:
        if not line.startswith("|"):
            return
        event, *cells = [one.strip() for one in line.strip("|").split("|")]
        if set(event) <= {"-"}:
            continue
        for column, cell in zip(_COLUMNS, cells, strict=True):
            if cell != "-":
                yield pytest.param(event, column, cell, id=f"{event}-{column}")


class Play:
    """One policy with two rules, one trigger, one source."""

    def __init__(
        self, api: FakeApi, stack: ExitStack, column: str, folder: Path
    ) -> None:
        self.api = api
        self.user = User(api, folder)
        stack.callback(self.user.close)
        self.stack = stack
        self.kind, _, sync = column.partition(", ")
        self.syncs = bool(sync)
        self.generation = 0
        self.options: Json = {}
        self.source = api.put(
            _SOURCE, apiVersion="v1", kind="ConfigMap", data={"from": "source-1"}
        )
        self.store(self.rule())
        self.term = self.take_over()

    def take_over(self) -> Term:
        one = self.stack.enter_context(term(self.api))
        one.settle()
        return one

    def rule(self, **changes: Json) -> Json:
        if self.kind == "clone":
            body: Json = {"clone": {"namespace": "b", "name": "source"}}
        else:
            value = "{{request.object.metadata.annotations.value}}"
            body = {"data": {"data": {"from": value, "text": "1"}}}
        return rule(sync=self.syncs, **{**body, **self.options, **changes})

    def store(self, *rules: Json) -> None:
        self.generation += 1
        policy(self.api, *rules, _other_rule(), generation=self.generation)

    def wanted(self) -> Json:
        """Return the content that the rule should generate in the current state."""
        if self.kind == "clone":
            source = stored(self.api, _SOURCE)
            assert source is not None
            return source["data"]
        found = stored(self.api, _TRIGGER)
        assert found is not None
        return {"from": found["metadata"]["annotations"]["value"], "text": self.text}

    text = "1"

    def change(self, *, labels: Json = None, value: str = "1") -> None:
        """Update the trigger."""
        raw = stored(self.api, _TRIGGER)
        assert raw is not None
        metadata = {**raw["metadata"], "annotations": {"value": value}}
        metadata["labels"] = MATCHED if labels is None else labels
        self.user.update(_TRIGGER, metadata=metadata)

    def play(self) -> None:
        """Do the pending work; a replica that lost its lease does nothing."""
        self.term.settle()
        self.term.pass_s(40)

    def begin(self) -> None:
        """Create the trigger and let its object be generated."""
        self.user.create(
            _TRIGGER,
            apiVersion="v1",
            kind="Secret",
            metadata={"labels": MATCHED, "annotations": {"value": "1"}},
        )
        self.play()
        assert stored(self.api, _OUT) is not None


def _other_rule() -> Json:
    """Return another rule of this policy that has equal triggers and an equal kind."""
    made = rule("other", data={"data": {"other": "rule"}})
    made["generate"]["name"] = "other-{{request.object.metadata.name}}"
    return made


def _edited(play: Play) -> None:
    """Change the object without an admission review."""
    found = stored(play.api, _OUT)
    assert found is not None
    play.api.put(_OUT, **{**found, "data": {"by": "hand"}})


def _changed_by_hand(play: Play) -> None:
    play.user.update(_OUT, data={"by": "hand"})


def _unlabelled(play: Play) -> None:
    found = stored(play.api, _OUT)
    assert found is not None
    metadata = {**found["metadata"], "labels": {}}
    play.user.update(_OUT, metadata=metadata, data={"by": "hand"})


def _unchanged_by_hand(play: Play) -> None:
    play.user.refused_update(_OUT)


def _change_refused(play: Play) -> None:
    play.user.refused_update(_OUT, data={"by": "hand"})


def _created(play: Play) -> None:
    play.user.delete(_TRIGGER)
    play.play()
    with suppress(KeyError):
        play.api.remove(_OUT)
    play.begin()


def _missing(play: Play) -> None:
    play.api.remove(_OUT)
    play.change()


def _changed_then_trigger(play: Play) -> None:
    _edited(play)
    play.change()


def _nothing_to_do(play: Play) -> None:
    play.change()


def _value(play: Play) -> None:
    play.change(value="2")


def _no_match(play: Play) -> None:
    play.change(labels={"team": "red"})


def _trigger_gone(play: Play) -> None:
    play.user.delete(_TRIGGER)


def _trigger_stays(play: Play) -> None:
    play.user.refused_delete(_TRIGGER)


def _object_gone(play: Play) -> None:
    play.user.delete(_OUT)


def _object_stays(play: Play) -> None:
    play.user.refused_delete(_OUT)


def _source_changed(play: Play) -> None:
    play.user.update(_SOURCE, data={"from": "source-2"})


def _source_kept(play: Play) -> None:
    play.user.refused_update(_SOURCE, data={"from": "source-2"})


def _source_gone(play: Play) -> None:
    play.user.delete(_SOURCE)


def _source_renewed(play: Play) -> None:
    play.user.delete(_SOURCE)
    play.user.create(
        _SOURCE, apiVersion="v1", kind="ConfigMap", data={"from": "source-3"}
    )


def _source_gone_unheld(play: Play) -> None:
    play.term.stop()
    play.user.delete(_SOURCE)
    play.term = play.take_over()


def _source_stays(play: Play) -> None:
    play.user.refused_delete(_SOURCE)


def _rule_changed(play: Play) -> None:
    if play.kind == "data":
        play.text = "2"
        value = "{{request.object.metadata.annotations.value}}"
        play.store(play.rule(data={"data": {"from": value, "text": "2"}}))
    else:
        play.store(play.rule(generateExisting=False))


def _moved(play: Play) -> None:
    made = play.rule()
    made["generate"]["name"] = "moved-{{request.object.metadata.name}}"
    play.store(made)


def _rule_gone(play: Play) -> None:
    play.store()


def _rule_orphans(play: Play) -> None:
    play.store(play.rule(orphanDownstreamOnPolicyDelete=True))
    play.play()
    _rule_gone(play)


def _moved_orphans(play: Play) -> None:
    play.options = {"orphanDownstreamOnPolicyDelete": True}
    play.store(play.rule())
    play.play()
    _moved(play)


def _recreated(play: Play, made: Json | None = None) -> None:
    """Delete the policy and create another one, which alone the pool sees."""
    play.api.remove(f"{POLICIES}/p")
    policy(play.api, play.rule() if made is None else made, _other_rule())


def _recreated_elsewhere(play: Play) -> None:
    made = play.rule()
    made["generate"]["name"] = "moved-{{request.object.metadata.name}}"
    _recreated(play, made)


def _policy_gone(play: Play) -> None:
    play.api.remove(f"{POLICIES}/p")


def _policy_orphans(play: Play) -> None:
    play.store(play.rule(orphanDownstreamOnPolicyDelete=True))
    play.play()
    _policy_gone(play)


def _policy_gone_unheld(play: Play) -> None:
    play.term.stop()
    _policy_gone(play)
    play.term = play.take_over()


def _switched_off(play: Play) -> None:
    play.store(play.rule(synchronize=False))
    play.play()
    _policy_gone(play)


def _taken_over(play: Play) -> None:
    play.term.stop()
    play.term = play.take_over()


def _unnoticed(play: Play) -> None:
    play.term.pass_s(3700)
    play.api.remove(_OUT)
    play.term.pass_s(3700)


_EVENTS: dict[str, Callable[[Play], None]] = {
    "trigger created": _created,
    "trigger updated, its object missing": _missing,
    "trigger updated, its object changed by hand": _changed_then_trigger,
    "trigger updated, nothing to do": _nothing_to_do,
    "trigger updated, value read by the rule changed": _value,
    "trigger no longer matches": _no_match,
    "trigger deleted": _trigger_gone,
    "trigger deletion rejected": _trigger_stays,
    "object deleted": _object_gone,
    "object deletion rejected": _object_stays,
    "object changed by hand": _changed_by_hand,
    "object changed by hand, its labels removed": _unlabelled,
    "object updated by hand, no change": _unchanged_by_hand,
    "object's change rejected": _change_refused,
    "source changed": _source_changed,
    "source's change rejected": _source_kept,
    "source deleted": _source_gone,
    "source deleted and created again": _source_renewed,
    "source deleted while nobody held the lease": _source_gone_unheld,
    "source deletion rejected": _source_stays,
    "rule changed": _rule_changed,
    "target of the rule changed": _moved,
    "target of the rule changed, objects may be orphaned": _moved_orphans,
    "rule deleted": _rule_gone,
    "rule deleted, objects may be orphaned": _rule_orphans,
    "policy deleted": _policy_gone,
    "policy deleted, objects may be orphaned": _policy_orphans,
    "policy deleted while nobody held the lease": _policy_gone_unheld,
    "policy deleted and created again at once": _recreated,
    "policy deleted and created again at once, with another target": (
        _recreated_elsewhere
    ),
    "synchronize switched off, then policy deleted": _switched_off,
    "another replica becomes the holder": _taken_over,
    "object deleted unnoticed, then the scan": _unnoticed,
}


def _others(api: FakeApi) -> None:
    """Store objects that look like the generated object but are not the rule's."""
    labels = {
        "app.kubernetes.io/managed-by": "kyverno",
        f"{PREFIX}policy-name": "p",
        f"{PREFIX}policy-namespace": "",
        f"{PREFIX}trigger-group": "",
        f"{PREFIX}trigger-version": "v1",
        f"{PREFIX}trigger-kind": "Secret",
        f"{PREFIX}trigger-namespace": "a",
        f"{PREFIX}trigger-uid": (stored(api, _TRIGGER) or {})["metadata"]["uid"],
    }
    for name, more in (
        ("unlabelled", {}),
        ("of-other-policy", {**labels, f"{PREFIX}policy-name": "q"}),
        ("of-no-rule", labels),
        ("unmanaged", {**labels, "app.kubernetes.io/managed-by": "helm"}),
    ):
        api.put(
            f"{CONFIG_MAPS.format('a')}/{name}",
            apiVersion="v1",
            kind="ConfigMap",
            metadata={"labels": more},
        )


_SAFE = ("unlabelled", "of-other-policy", "of-no-rule", "unmanaged")


@pytest.mark.parametrize(("event", "column", "cell"), list(_cells()))
def test_cell(api: FakeApi, tmp_path: Path, event: str, column: str, cell: str) -> None:
    """The effect equals the page's description for the event and the kind of rule."""
    new_cluster(api)
    with ExitStack() as stack:
        play = Play(api, stack, column, tmp_path / "journals")
        play.begin()
        _others(api)
        before = stored(api, _OUT)
        _EVENTS[event](play)
        changed = stored(api, _OUT)
        play.play()
        after = stored(api, _OUT)
        if cell in ("created", "reverted", "synced"):
            assert after is not None
            assert after["data"] == play.wanted()
            assert after["metadata"]["labels"][f"{PREFIX}rule-name"] == "r"
        elif cell in ("deleted", "absent"):
            assert after is None
        elif cell == "kept":
            assert after is not None
            assert after == (changed or before)
        elif cell == "orphaned":
            assert before is not None
            assert after is not None
            assert after["data"] == before["data"]
            gone = set(before["metadata"]["labels"]) - set(after["metadata"]["labels"])
            assert gone == {
                f"{PREFIX}{one}"
                for one in ("policy-name", "policy-namespace", "rule-name")
            }
        else:
            assert cell == "unwritten"
            assert after == before
        assert requests_left(api) == []
        for name in _SAFE:
            assert stored(api, f"{CONFIG_MAPS.format('a')}/{name}") is not None, name


def test_all_rows_are_tested() -> None:
    """Every row of the page has an event in this test."""
    assert {one.values[0] for one in _cells()} == set(_EVENTS)
    assert MATCHED
