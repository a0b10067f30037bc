"""The test plays every cell of the table of rules with several objects.

The table is in docs/background.md. A row is an event, a column is a kind of rule, and a
cell describes the effect on the object ``y``. The object ``x`` is never written.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    POLICIES,
    PREFIX,
    REQUESTS,
    SECRETS,
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
_HEADER = "| event of a rule with several objects |"
_COLUMNS = ("foreach, sync", "foreach", "cloneList, sync", "cloneList")
_TRIGGER = f"{SECRETS.format('a')}/t"
_MAPS = CONFIG_MAPS.format("a")
_SOURCES = CONFIG_MAPS.format("b")
_SELECTED = {"share": "yes"}


def _cells() -> Iterator[Any]:
    lines = iter(_PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith(_HEADER):
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
    """One policy with a rule for the elements or sources ``x`` and ``y``."""

    def __init__(
        self, api: FakeApi, stack: ExitStack, column: str, folder: Path
    ) -> None:
        new_cluster(api)
        self.api = api
        self.user = User(api, folder)
        stack.callback(self.user.close)
        kind, _, sync = column.partition(", ")
        self.clones = kind == "cloneList"
        self.syncs = bool(sync)
        for name in "xy":
            self.put_source(name)
        policy(api, self.rule())
        self.term = stack.enter_context(term(api))
        self.term.settle()

    def put_source(self, name: str, value: str = "1") -> None:
        if self.clones:
            self.user.create(
                f"{_SOURCES}/{name}",
                apiVersion="v1",
                kind="ConfigMap",
                metadata={"labels": _SELECTED},
                data={"from": value},
            )

    def rule(self) -> Json:
        made = rule()
        if self.clones:
            body: Json = {
                "namespace": "a",
                "cloneList": {
                    "namespace": "b",
                    "kinds": ["v1/ConfigMap"],
                    "selector": {"matchLabels": _SELECTED},
                },
            }
        else:
            names, value = "annotations.names", "annotations.{{element}}"
            entry = {
                "list": f"split(request.object.metadata.{names}, ',')",
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "namespace": "a",
                "name": "{{element}}",
                "data": {"data": {"from": f"{{{{request.object.metadata.{value}}}}}"}},
            }
            body = {"foreach": [entry]}
        return {**made, "generate": {"synchronize": self.syncs, **body}}

    def play(self) -> None:
        self.term.settle()
        self.term.pass_s(40)

    def begin(self) -> None:
        self.user.create(
            _TRIGGER,
            apiVersion="v1",
            kind="Secret",
            metadata={"labels": MATCHED, "annotations": _annotations("x,y")},
        )
        self.play()
        assert {"x", "y"} <= set(_made(self.api))

    def change(self, names: str, **values: str) -> None:
        """Update the trigger's list of elements and their values."""
        raw = stored(self.api, _TRIGGER)
        assert raw is not None
        annotations = {**_annotations(names), **values}
        metadata = {**raw["metadata"], "annotations": annotations}
        self.user.update(_TRIGGER, metadata=metadata)


def _annotations(names: str) -> Json:
    return {"names": names, **dict.fromkeys("xyz", "1")}


def _made(api: FakeApi) -> dict[str, Json]:
    """Return the generated objects by name."""
    found = {name: stored(api, f"{_MAPS}/{name}") for name in "xyz"}
    return {name: one for name, one in found.items() if one is not None}


def _renamed(play: Play) -> None:
    play.change("x,z")
    play.play()
    assert _made(play.api)["z"]["data"] == {"from": "1"}


def _removed_then_deleted(play: Play) -> None:
    play.change("x")
    play.play()
    play.user.delete(_TRIGGER)


def _added_then_updated(play: Play) -> None:
    play.put_source("z")
    play.play()
    play.change("x,y")


def _unselected(play: Play) -> None:
    found = stored(play.api, f"{_SOURCES}/y")
    assert found is not None
    labels = {**found["metadata"]["labels"], "share": "no"}
    metadata = {**found["metadata"], "labels": labels}
    play.user.update(f"{_SOURCES}/y", metadata=metadata, data={"from": "2"})


def _source_renewed(play: Play) -> None:
    play.user.delete(f"{_SOURCES}/y")
    play.put_source("y", "2")


_EVENTS: dict[str, Callable[[Play], None]] = {
    "element added": lambda play: play.change("x,y,z"),
    "elements reordered": lambda play: play.change("y,x"),
    "value of an element changed": lambda play: play.change("x,y", y="2"),
    "element renamed": _renamed,
    "element removed": lambda play: play.change("x"),
    "element removed, then trigger deleted": _removed_then_deleted,
    "source added": lambda play: play.put_source("z"),
    "source added, then trigger updated": _added_then_updated,
    "source changed": lambda play: play.user.update(
        f"{_SOURCES}/y", data={"from": "2"}
    ),
    "source no longer selected": _unselected,
    "source deleted": lambda play: play.user.delete(f"{_SOURCES}/y"),
    "source deleted and created again": _source_renewed,
    "trigger deleted": lambda play: play.user.delete(_TRIGGER),
    "policy deleted": lambda play: play.api.remove(f"{POLICIES}/p"),
}
_ADDED = frozenset(name for name in _EVENTS if " added" in name)
_OF_ALL = frozenset(name for name in _EVENTS if name.endswith(" deleted")) - {
    "source deleted"
}


@pytest.mark.parametrize(("event", "column", "cell"), list(_cells()))
def test_cell(api: FakeApi, tmp_path: Path, event: str, column: str, cell: str) -> None:
    """The effect equals the page's description for the event and the kind of rule."""
    with ExitStack() as stack:
        play = Play(api, stack, column, tmp_path / "journals")
        play.begin()
        before = _made(api)
        _EVENTS[event](play)
        play.play()
        after = _made(api)
        if event not in _OF_ALL:
            assert after["x"] == before["x"]
        name = "z" if event in _ADDED else "y"
        if cell in ("created", "synced"):
            value = "2" if cell == "synced" else "1"
            assert after[name]["data"] == {"from": value}
            assert after[name]["metadata"]["labels"][f"{PREFIX}rule-name"] == "r"
        elif cell in ("deleted", "absent"):
            assert name not in after
        else:
            assert cell in ("kept", "unwritten")
            assert after[name] == before[name]
        assert requests_left(api) == []


def test_all_rows_are_played() -> None:
    """Every row of the page has an event in this test."""
    assert {one.values[0] for one in _cells()} == set(_EVENTS)


def test_an_element_removed_before_a_refused_update(
    api: FakeApi, tmp_path: Path
) -> None:
    """A trigger that still matches keeps its objects, even those of old elements."""
    with ExitStack() as stack:
        play = Play(api, stack, "foreach, sync", tmp_path / "journals")
        play.begin()
        play.change("x")
        play.play()
        before = _made(api)
        found = stored(api, _TRIGGER)
        assert found is not None
        metadata = {**found["metadata"], "labels": {"team": "red"}}
        play.user.refused_update(_TRIGGER, metadata=metadata)
        play.play()
        assert _made(api) == before
        assert requests_left(api) == []


def test_an_element_that_fails(api: FakeApi, tmp_path: Path) -> None:
    """It stops no other element; the request is retried and reports it."""
    with ExitStack() as stack:
        play = Play(api, stack, "foreach, sync", tmp_path / "journals")
        play.begin()
        play.change("x,absent,y,z", y="2")
        play.term.settle()
        found = {name: one["data"] for name, one in _made(api).items()}
        assert found == {"x": {"from": "1"}, "y": {"from": "2"}, "z": {"from": "1"}}
        (left,) = requests_left(api)
        request = stored(api, f"{REQUESTS}/{left}")
        assert request is not None
        assert request["status"]["state"] == "Failed"
        play.change("x,absent,y,z", absent="3")
        play.term.settle()
        assert (stored(api, f"{_MAPS}/absent") or {})["data"] == {"from": "3"}
        assert requests_left(api) == []
