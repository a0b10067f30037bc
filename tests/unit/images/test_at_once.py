"""Helpers do parts of a review's work, but a review never waits for free helpers."""

import threading

import pytest

from kyverno_mp import limits
from kyverno_mp.images.at_once import Helpers
from tests.waiting import HANG_S, far_ns, soon_ns, wait_for


class _Crowd:
    """Parts that end when ``count`` parts run at once."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._lock = threading.Lock()
        self.running = self.most = self.done = 0

    def part(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self._barrier.wait(HANG_S)
        with self._lock:
            self.running -= 1
            self.done += 1


def test_concurrency_equals_the_limit() -> None:
    most = limits.IMAGES_AT_ONCE_MAX
    crowd = _Crowd(most)
    helpers = Helpers(most - 1)
    # No part ends unless this many parts run at once.
    helpers.run([crowd.part] * (3 * most), far_ns())
    assert (crowd.done, crowd.most) == (3 * most, most)
    helpers.stop()


def test_review_works_alone_while_the_helpers_are_busy() -> None:
    helpers, release, crowd = Helpers(1), threading.Event(), _Crowd(2)

    def hang() -> None:
        crowd.part()
        release.wait(HANG_S)

    hung = threading.Thread(target=helpers.run, args=([hang, hang], far_ns()))
    hung.start()
    wait_for(lambda: crowd.done >= 2)
    names: list[int] = []
    helpers.run([lambda: names.append(threading.get_ident())] * 3, far_ns())
    assert names == [threading.get_ident()] * 3
    release.set()
    hung.join()
    helpers.stop()


def test_waiting_ends_at_the_deadline() -> None:
    helpers, release, crowd = Helpers(1), threading.Event(), _Crowd(2)
    ended: list[bool] = []

    def part() -> None:
        crowd.part()
        if helpers.is_current():
            release.wait(HANG_S)
        ended.append(helpers.is_current())

    helpers.run([part, part], soon_ns(0))
    assert ended == [False]
    release.set()
    helpers.stop()


def test_defect_is_raised_in_the_review() -> None:
    helpers = Helpers(2)

    def broken() -> None:
        raise ValueError("broken")

    done: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        helpers.run([broken, lambda: done.append(1), lambda: done.append(2)], far_ns())
    assert sorted(done) == [1, 2]
    assert not helpers.is_current()
    helpers.stop()
