"""What replaced editions leave behind is freed, once for all that came together."""

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
