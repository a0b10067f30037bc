"""Changed objects wait for results of their reviews, and after an earlier change."""

import threading
from itertools import pairwise

import pytest

from kyverno_mp.kube.resource import core
from kyverno_mp.reports import feed as feed_module
from kyverno_mp.reports.feed import Feed, Item, Pace, settle
from kyverno_mp.results.entries import Row
from tests.waiting import HANG_S

_ROWS = [Row(policy="p", rule="r", result="pass")]


class _Source:
    resource = core("pods")

    def is_current(self, *_: object) -> bool:
        return True


def _item(
    source: _Source, name: str = "x", uid: str = "u", *, is_change: bool = True
) -> Item:
    return Item(source, ("a", name), uid, b"", b"{}", 0.0, is_change)


class _Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _feed(now: _Time, source: _Source, **pace: float) -> Feed:
    feed = Feed(pace=Pace(**pace), clock_s=now)
    feed.expect_reviews(source)
    return feed


def _names(feed: Feed) -> list[str]:
    return [item.key[1] for item in feed.take(0)]


def test_only_changed_objects_wait() -> None:
    now, source, other = _Time(), _Source(), _Source()
    feed = _feed(now, source, review_s=2)
    feed.put(_item(source, "changed"))
    feed.put(_item(source, "listed", is_change=False))
    feed.put(_item(other, "other"))
    assert [_names(feed), _names(feed), _names(feed)] == [["listed"], ["other"], []]
    assert feed.pending == 3
    now.now_s += 2
    assert _names(feed) == ["changed"]


def test_results_of_a_review_end_the_wait() -> None:
    now, source = _Time(), _Source()
    feed = _feed(now, source, review_s=2)
    feed.put(_item(source))
    reviewed = feed.attach(source, ("a", "x"), "u", _ROWS)
    assert reviewed is not None
    [item] = feed.take(0)
    assert item.reviewed is reviewed
    assert item.reviewed.rows == _ROWS
    settle(item, is_written=True)
    settle(item, is_written=False)
    assert reviewed.is_written.result(0)
    # The end of the delay is history.
    now.now_s += 2
    assert _names(feed) == []


@pytest.mark.parametrize(("name", "uid"), [("y", "u"), ("x", "v")])
def test_results_for_other_objects_are_refused(name: str, uid: str) -> None:
    source = _Source()
    feed = _feed(_Time(), source)
    feed.put(_item(source))
    assert feed.attach(source, ("a", name), uid, _ROWS) is None
    assert feed.take(0)[0].reviewed is None


def test_a_newer_version_keeps_the_results_but_not_those_of_another_object() -> None:
    now, source = _Time(), _Source()
    feed = _feed(now, source)
    feed.put(_item(source))
    reviewed = feed.attach(source, ("a", "x"), "u", _ROWS)
    assert feed.attach(source, ("a", "x"), "u", _ROWS) is None
    feed.put(_item(source))
    assert reviewed is not None
    assert not reviewed.is_written.done()
    feed.put(_item(source, uid="new"))
    assert reviewed.is_written.result(0) is False
    [item] = feed.take(0)
    assert (item.uid, item.reviewed) == ("new", None)


def test_changes_in_the_interval_are_evaluated_once() -> None:
    now, source = _Time(), _Source()
    feed = Feed(pace=Pace(interval_s=1), clock_s=now)
    feed.put(_item(source))
    assert _names(feed) == ["x"]
    for _ in range(3):
        now.now_s += 0.3
        feed.put(_item(source))
        assert _names(feed) == []
    now.now_s += 0.3
    assert _names(feed) == ["x"]
    now.now_s += 9
    feed.put(_item(source))
    assert _names(feed) == ["x"]
    assert len(feed._taken_s) == 1


def test_results_of_reviews_do_not_end_the_interval() -> None:
    """An object that is reviewed and changed all the time, for 20 seconds."""
    now, source = _Time(), _Source()
    feed = _feed(now, source, review_s=3, interval_s=1)
    taken = [now.now_s]
    for number in range(400):
        now.now_s += 0.05
        feed.put(_item(source))
        feed.expect_reviews(source)
        if number % 9 == 0:
            feed.attach(source, ("a", "x"), "u", _ROWS)
        for item in feed.take(0):
            settle(item, is_written=True)
            taken.append(now.now_s)
            feed.done([item])
    gaps = [after - before for before, after in pairwise(taken[1:])]
    assert min(gaps) >= 1
    assert max(gaps) < 2
    # Entries of ended delays are removed when their time comes.
    assert len(feed._due) < 20


def test_a_delay_that_ended_early_does_not_end_the_next_one() -> None:
    now, source = _Time(), _Source()
    feed = _feed(now, source, review_s=3)
    feed.put(_item(source))
    assert feed.attach(source, ("a", "x"), "u", _ROWS)
    assert _names(feed) == ["x"]
    now.now_s += 2.5
    feed.put(_item(source))
    now.now_s += 0.5
    assert _names(feed) == []
    now.now_s += 2.5
    assert _names(feed) == ["x"]


def test_results_of_a_deleted_object_do_not_end_the_delay_of_the_next() -> None:
    now, source = _Time(), _Source()
    feed = _feed(now, source, review_s=3)
    feed.put(_item(source, uid="new"))
    assert feed.attach(source, ("a", "x"), "old", _ROWS) is None
    assert _names(feed) == []


def test_a_full_feed_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "REPORTS_WAITING_MAX", 2)
    source = _Source()
    feed = _feed(_Time(), source, review_s=2)
    feed.put(_item(source, "x"))
    assert _names(feed) == []
    feed.put(_item(source, "y"))
    assert _names(feed) == ["x", "y"]


def test_a_thread_that_waits_takes_an_object_when_its_delay_ends() -> None:
    source = _Source()
    feed = Feed(pace=Pace(review_s=0.05))
    feed.expect_reviews(source)
    found: list[Item] = []
    taking = threading.Thread(target=lambda: found.extend(feed.take()), daemon=True)
    taking.start()
    feed.put(_item(source))
    taking.join(HANG_S)
    assert [item.uid for item in found] == ["u"]


def test_closing_releases_results_and_threads() -> None:
    source = _Source()
    feed = _feed(_Time(), source, review_s=2)
    feed.put(_item(source, "x"))
    feed.put(_item(source, "y"))
    reviewed = feed.attach(source, ("a", "x"), "u", _ROWS)
    taking = threading.Thread(target=feed.take, daemon=True)
    feed.close()
    taking.start()
    taking.join(HANG_S)
    assert not taking.is_alive()
    assert reviewed is not None
    assert reviewed.is_written.result(0) is False
    assert not feed.put(_item(source, "z"))
    assert feed.attach(source, ("a", "y"), "u", _ROWS) is None
