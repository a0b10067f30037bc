"""Readers of journals wait for a ring, not in a loop.

A failure means: an idle pod uses percents of a core for nothing, or users wait for
generated objects, Events, reports or the fall-back of a policy.
"""

from pathlib import Path
from threading import Thread

import pytest

from kyverno_mp.queues.journal import DENIALS, EVENTS, RESULTS, TRIGGERS, Journal
from kyverno_mp.queues.record_pause import RecordPause
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot import bell as bells
from kyverno_mp.snapshot.bell import Bell, ring_readers
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.attach.journals import Journals
from kyverno_mp.webhook.attach.places import Places
from tests.waiting import HANG_S

LOOKS_A_SECOND_MAX = 1


class Waits(Bell):
    """A bell that notes for how long it was waited for, and does not wait."""

    def __init__(self, bell: Bell) -> None:
        super().__init__(Path(), bell.fileno())
        self.waits_s: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return super().wait(0)


def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "snapshot"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def bell(tmp_path: Path) -> Waits:
    return Waits(Bell.create(folder(tmp_path), bells.TRIGGERS))


def begun(bell: Bell, often: int = 0) -> RecordPause:
    pause = RecordPause(lambda: bell, often)
    assert not pause.is_last(), "what was appended before is read first"
    return pause


def test_few_looks_without_work(bell: Waits) -> None:
    pause = begun(bell)
    assert not any(pause.is_last() for _ in range(10))
    assert len(bell.waits_s) == 10
    assert min(bell.waits_s) >= 1 / LOOKS_A_SECOND_MAX


def test_a_ring_ends_the_pause_and_is_heard_once(bell: Waits) -> None:
    pause = begun(bell)
    bell.ring()
    assert not pause.is_last()
    assert not bell.wait(0)


def test_a_reader_with_a_clock_waits_for_a_ring_until_then(bell: Waits) -> None:
    pause = begun(bell)
    bell.ring()
    assert not pause.is_last(ring_s_max=0.5)
    assert bell.waits_s == [0.5]
    assert not bell.wait(0), "it was heard"


def test_after_a_record_it_looks_often_for_a_while(bell: Waits) -> None:
    """So that writers ring once for many records."""
    pause = begun(bell, often=2)
    for _ in range(2):
        assert not any(pause.is_last() for _ in range(2))
        assert bell.waits_s == []
        pause.finds()
    assert not any(pause.is_last() for _ in range(3))
    assert len(bell.waits_s) == 1


def journals_of(tmp_path: Path, directory: Path) -> Journals:
    channels = {
        "journals": EVENTS.folder(tmp_path),
        "triggers": TRIGGERS.folder(tmp_path),
        "lost": tmp_path / "lost",
        "results": RESULTS.folder(tmp_path),
        "denials": DENIALS.folder(tmp_path),
    }
    pages = tmp_path / "pages"
    for path in (*channels.values(), pages):
        path.mkdir(parents=True)
    places = Places(directory, pages, tmp_path / "cert", tmp_path / "key", **channels)
    return Journals(Settings(), places, Recorder(Page.claim(pages, "worker"), 100))


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        (bells.TRIGGERS, ("triggers", "_lost")),
        (bells.DENIALS, ("_denials",)),
        (bells.EVENTS, ("events",)),
        (bells.RESULTS, ("results",)),
    ],
)
def test_a_record_of_a_worker_rings(
    name: str, attributes: tuple[str, ...], tmp_path: Path
) -> None:
    directory = folder(tmp_path)
    bell = Bell.create(directory, name)
    journals = journals_of(tmp_path, directory)
    for attribute in attributes:
        journal = getattr(journals, attribute)
        assert isinstance(journal, Journal)
        assert not bell.wait(0)
        assert journal.append(b"{}")
        assert bell.wait(0)
        bell.clear()
    bell.remove()


def test_a_flood_of_events_rings_once(tmp_path: Path) -> None:
    """A ring costs system calls, in the worker's event loop."""
    directory = folder(tmp_path)
    bell = Bell.create(directory, bells.EVENTS)
    journal = journals_of(tmp_path, directory).events
    assert journal is not None
    assert journal.append(b"1")
    bell.clear()
    assert journal.append(b"2")
    assert not bell.wait(0), "the reader looks until all are taken"
    bell.remove()


def test_a_dead_worker_rings_every_reader(tmp_path: Path) -> None:
    """It may have died between a record and its ring."""
    directory = folder(tmp_path)
    names = (bells.TRIGGERS, bells.DENIALS, bells.EVENTS, bells.RESULTS)
    every = [Bell.create(directory, name) for name in names]
    ring_readers(directory)
    assert all(bell.wait(0) for bell in every)


def test_a_stop_ends_the_pauses(bell: Waits) -> None:
    """Also while calls fail, and before the first one."""
    pause = begun(bell)
    pause.stop()
    assert pause.is_last()
    assert pause.is_last(pause_s=HANG_S)
    never = RecordPause(lambda: None)
    never.stop()
    assert never.is_last()


def test_a_stop_ends_a_running_wait(tmp_path: Path) -> None:
    real = Bell.create(folder(tmp_path), bells.TRIGGERS)
    pause = begun(real)
    reader = Thread(target=lambda: [None for _ in iter(pause.is_last, True)])
    reader.start()
    pause.stop()
    reader.join(HANG_S)
    assert not reader.is_alive()


def test_without_a_bell_it_polls(tmp_path: Path) -> None:
    pause = RecordPause(lambda: None)
    assert not any(pause.is_last() for _ in range(3))
    pause.stop()
    assert pause.is_last()
