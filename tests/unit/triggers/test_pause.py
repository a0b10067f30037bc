"""The writer of triggers waits for a ring, not in a loop.

A failure means: an idle pod uses a percent of a core for nothing, or users wait for
generated objects.
"""

from pathlib import Path

from kyverno_mp.leader.triggers.pause import Pause
from kyverno_mp.queues.journal import TRIGGERS, Journal
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import TRIGGERS as BELL
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.attach.journals import Journals
from kyverno_mp.webhook.attach.places import Places

LOOKS_A_SECOND_MAX = 5


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


def test_few_looks_without_work(tmp_path: Path) -> None:
    bell = Waits(Bell.create(folder(tmp_path), BELL))
    pause = Pause(lambda: bell)
    pause.begin()
    assert not any(pause.is_last(failures=0, waiting=0) for _ in range(10))
    assert len(bell.waits_s) == 10
    assert min(bell.waits_s) >= 1 / LOOKS_A_SECOND_MAX


def test_each_record_of_a_worker_rings(tmp_path: Path) -> None:
    """Both of its journals: of triggers, and of policies that lost some."""
    directory = folder(tmp_path)
    bell = Bell.create(directory, BELL)
    places = Places(
        directory,
        tmp_path / "pages",
        tmp_path / "cert",
        tmp_path / "key",
        triggers=TRIGGERS.folder(tmp_path),
        lost=tmp_path / "lost",
    )
    for path in (TRIGGERS.folder(tmp_path), tmp_path / "lost", tmp_path / "pages"):
        path.mkdir(parents=True)
    recorder = Recorder(Page.claim(tmp_path / "pages", "worker"), 100)
    journals = Journals(Settings(), places, recorder)
    for journal in (journals.triggers, journals._lost):
        assert isinstance(journal, Journal)
        assert not bell.wait(0)
        assert journal.append(b"{}")
        assert bell.wait(0)
        bell.clear()
    bell.remove()


def test_a_stop_ends_the_pauses(tmp_path: Path) -> None:
    """Also while rejected records wait, or calls fail."""
    bell = Waits(Bell.create(folder(tmp_path), BELL))
    pause = Pause(lambda: bell)
    pause.begin()
    pause.stop()
    assert pause.is_last(failures=0, waiting=0)
    assert pause.is_last(failures=0, waiting=1)
    assert pause.is_last(failures=3, waiting=0)
