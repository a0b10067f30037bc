"""Memory of replaced snapshots is freed, and collections visit few objects."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.limits import (
    COLLECTED_FREED_BYTES_MIN,
    COLLECTED_HELD_BYTES_MAX,
    COLLECTED_LEFT_OBJECTS_MIN,
    COLLECTED_NEW_OBJECTS_MIN,
    COLLECTED_OBJECTS_MAX,
)
from kyverno_mp.webhook.collector import Collector, Pauses


class Circle:
    """An object that refers to itself, as exceptions refer to their frames."""

    def __init__(self) -> None:
        self.itself = self


class Rule:
    """A rule that is freed with its last reference."""


@pytest.fixture(autouse=True)
def _no_collector_of_its_own() -> Iterator[None]:
    # Objects of other tests count, too.
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_reference_cycles_are_freed_seconds_apart() -> None:
    collector = Collector()
    assert not collector.tick(100.0)
    dead = weakref.ref(Circle())
    collector.note()
    assert dead() is not None
    assert collector.tick(101.0)
    assert dead() is None
    dead = weakref.ref(Circle())
    collector.note()
    assert not collector.tick(103.0)
    assert dead() is not None
    assert collector.tick(106.5)
    assert dead() is None
    assert not collector.tick(120.0)


def test_linked_rules_are_excluded_from_collections() -> None:
    """Otherwise a change of ten thousand policies stops a worker for two seconds."""
    collector = Collector()
    rules = [[number] for number in range(COLLECTED_OBJECTS_MAX * 9 // 10)]
    dead = weakref.ref(Circle())
    assert collector.tick(100.0, linked=1)
    assert len(gc.get_objects()) < COLLECTED_OBJECTS_MAX // 10
    # Garbage was not frozen with them.
    assert dead() is None
    # They are only excluded: reference counting still frees them.
    freed = weakref.ref(Rule())
    assert freed() is None
    assert rules
    # Later objects are collected.
    later = weakref.ref(Circle())
    collector.note()
    assert collector.tick(110.0, linked=1)
    assert later() is None


def test_linking_freezes_in_small_steps() -> None:
    """A failure means: one collection visits the rules of all policies."""
    visited: list[int] = []

    def count(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            visited.append(len(gc.get_objects()))

    collector = Collector()
    gc.callbacks.append(count)
    try:
        rules = []
        dead = []
        for _ in range(10 * COLLECTED_OBJECTS_MAX // 100):
            rules.append([[number] for number in range(100)])
            dead.append(weakref.ref(Circle()))
            collector.linked_one()
        collector.tick(100.0, linked=1)
    finally:
        gc.callbacks.remove(count)
    assert len(visited) > 10
    assert max(visited) < COLLECTED_OBJECTS_MAX
    assert not any(one() for one in dead)
    assert rules


def test_nothing_is_frozen_while_a_policy_is_reviewed() -> None:
    """Otherwise the cycles of the compiler, in use at that time, are never freed."""
    is_quiet = False
    collector = Collector(is_quiet=lambda: is_quiet)
    circle = Circle()
    dead = weakref.ref(circle)
    assert collector.tick(100.0, linked=1)
    del circle
    is_quiet = True
    assert collector.tick(110.0, linked=2)
    assert dead() is None
    # Reviews without a pause do not make collections long.
    is_quiet = False
    rules = [[number] for number in range(COLLECTED_OBJECTS_MAX + 1)]
    assert collector.tick(120.0, linked=3)
    assert len(gc.get_objects()) < COLLECTED_OBJECTS_MAX // 10
    assert rules


def test_many_objects_of_reviews_are_neither_collected_nor_frozen() -> None:
    """A failure means: large bodies stop a worker, or their cycles are never freed."""
    collector = Collector()
    bodies = [[number] for number in range(COLLECTED_OBJECTS_MAX)]
    dead = weakref.ref(Circle())
    collector.note()
    assert collector.tick(100.0, held=COLLECTED_HELD_BYTES_MAX + 1)
    assert len(gc.get_objects()) > COLLECTED_OBJECTS_MAX
    assert dead() is not None
    bodies.clear()
    collector.note()
    assert collector.tick(110.0)
    assert dead() is None


def test_garbage_with_many_texts_is_collected_after_large_reviews() -> None:
    """Maps of texts count as new objects, but a collection does not visit them."""
    collector = Collector()
    circle: Any = Circle()
    circle.body = [{"a": str(number)} for number in range(COLLECTED_OBJECTS_MAX + 1)]
    dead = weakref.ref(circle)
    del circle
    assert gc.get_count()[0] > COLLECTED_OBJECTS_MAX
    assert len(gc.get_objects()) < COLLECTED_OBJECTS_MAX
    assert collector.tick(100.0, freed=COLLECTED_FREED_BYTES_MIN)
    assert dead() is None


def test_many_objects_are_collected_when_no_review_uses_them() -> None:
    """A failure means: garbage grows until Python's own collection takes seconds."""
    collector = Collector()
    kept = [[number] for number in range(COLLECTED_OBJECTS_MAX + 1000)]

    def is_collected_at(now_s: float) -> bool:
        dead = weakref.ref(Circle())
        collector.tick(now_s, held=COLLECTED_HELD_BYTES_MAX + 1)
        return dead() is None

    assert not is_collected_at(100.0)
    assert not is_collected_at(125.0)
    assert is_collected_at(130.0)
    # The collection freed nothing, so the next one waits for twice as long.
    more = [[number] for number in range(COLLECTED_OBJECTS_MAX + 1000)]
    assert not is_collected_at(165.0)
    assert is_collected_at(190.0)
    # The same number of new objects, freed before the time is over.
    kept = [[number] for number in range(COLLECTED_OBJECTS_MAX + 1000)]
    assert not is_collected_at(200.0)
    kept.clear()
    more.clear()
    assert gc.get_count()[0] < COLLECTED_OBJECTS_MAX
    collector.tick(206.0)
    kept = [[number] for number in range(COLLECTED_OBJECTS_MAX + 1000)]
    assert not is_collected_at(320.0)
    assert kept


def test_few_objects_are_collected_after_large_reviews() -> None:
    """Otherwise cycles of few objects keep large reviews in memory."""
    collector = Collector(lambda: None)
    kept = [[number] for number in range(COLLECTED_LEFT_OBJECTS_MIN)]
    dead = weakref.ref(Circle())
    assert collector.tick(100.0, freed=COLLECTED_FREED_BYTES_MIN - 1)
    assert dead() is not None
    assert collector.tick(110.0, freed=2 * COLLECTED_FREED_BYTES_MIN - 1)
    assert dead() is None
    dead = weakref.ref(Circle())
    kept += [[number] for number in range(COLLECTED_LEFT_OBJECTS_MIN)]
    assert collector.tick(120.0, freed=3 * COLLECTED_FREED_BYTES_MIN - 2)
    assert dead() is not None
    assert collector.tick(130.0, freed=3 * COLLECTED_FREED_BYTES_MIN - 1)
    assert dead() is None
    assert kept


def test_new_objects_are_collected_without_a_policy_change() -> None:
    collector = Collector()
    dead = weakref.ref(Circle())
    # Python counts them, whether or not it collects.
    assert not collector.tick(100.0)
    kept = [[number] for number in range(COLLECTED_NEW_OBJECTS_MIN)]
    assert collector.tick(110.0)
    assert kept
    assert dead() is None


def test_replaced_rules_are_freed_when_unused() -> None:
    collector = Collector()
    used, unused = Rule(), Rule()
    seen = weakref.ref(used), weakref.ref(unused)
    collector.note([unused, None, used])
    reviews = [used]
    del used, unused
    collector.release()
    assert len(reviews) == collector.has_replaced
    # A single collection would take as long as the sum for all rules.
    assert [one() is None for one in seen] == [False, False]
    reviews.clear()
    collector.release()
    assert len(reviews) == collector.has_replaced
    assert [one() is None for one in seen] == [True, True]


def test_collections_are_counted_by_generation() -> None:
    times = iter([1_000_000_000, 1_250_000_000, 5_000_000_000, 5_500_000_000])
    pauses = Pauses(lambda: next(times))
    pauses.watch()
    gc.collect(1)
    gc.collect()
    assert pauses.drain() == [("1", 0.25), ("2", 0.5)]
    assert pauses.drain() == []
    watchers = len(gc.callbacks)
    del pauses
    gc.collect()
    assert len(gc.callbacks) == watchers - 1


def test_automatic_collections_skip_large_reviews() -> None:
    """A failure means: decoding a review or linking many rules takes twice the time."""
    program = """
import gc
import orjson
from kyverno_mp.webhook.server import tune_worker
seen = []
tune_worker()
gc.callbacks.append(lambda phase, info: seen.append(phase))
review = orjson.loads(b"[" + b"[[[]]]," * 450_000 + b"[]]")
print(len(seen), gc.isenabled())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 True\n"


def test_memory_is_returned_after_large_bodies() -> None:
    """Otherwise a worker that once held 40 bodies seems to hold them still."""
    given: list[float] = []
    now_s = 100.0
    collector = Collector(lambda: given.append(now_s))
    for now_s, freed in ((100.0, 1 << 20), (101.0, 4 << 20), (107.0, 5 << 20)):
        collector.tick(now_s, 0, freed)
    assert given == [101.0]


def test_memory_is_returned_after_many_connections() -> None:
    given: list[float] = []
    now_s = 100.0
    collector = Collector(lambda: given.append(now_s))
    for now_s, ended in ((100.0, 199), (101.0, 200), (103.0, 1000), (106.5, 1001)):
        collector.tick(now_s, ended)
    assert given == [101.0, 106.5]
    for now_s in (112.0, 118.0):
        collector.tick(now_s, 1100)
    assert given == [101.0, 106.5]
