"""What replaced snapshots leave behind is freed, once for all that came together."""

import gc
import weakref

import pytest

from kyverno_mp.webhook.collector import Collector


class Circle:
    """Knows itself, as linked rules know one another."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _no_collector_of_its_own() -> object:
    gc.disable()
    yield None
    gc.enable()


def test_circles_are_freed_some_seconds_apart() -> None:
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


def test_memory_is_given_back_after_large_bodies() -> None:
    """Red means: a worker that once held 40 bodies looks as if it held them still."""
    given: list[float] = []
    now_s = 100.0
    collector = Collector(lambda: given.append(now_s))
    for now_s, freed in ((100.0, 1 << 20), (101.0, 4 << 20), (107.0, 5 << 20)):
        collector.tick(now_s, 0, freed)
    assert given == [101.0]


def test_memory_is_given_back_after_many_connections() -> None:
    given: list[float] = []
    now_s = 100.0
    collector = Collector(lambda: given.append(now_s))
    for now_s, ended in ((100.0, 199), (101.0, 200), (103.0, 1000), (106.5, 1001)):
        collector.tick(now_s, ended)
    assert given == [101.0, 106.5]
    for now_s in (112.0, 118.0):
        collector.tick(now_s, 1100)
    assert given == [101.0, 106.5]
