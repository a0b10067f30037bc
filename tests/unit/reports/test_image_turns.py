"""The image lane: threads stay, and no namespace or registry takes all of them."""

import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kyverno_mp.kube.resource import Resource
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.scan.image_lane import shares_of
from kyverno_mp.values.kubernetes.image import registries_of
from tests.waiting import HANG_S


class _Source:
    def __init__(self, plural: str = "pods", kind: str = "Pod") -> None:
        self.resource = Resource(group="", version="v1", plural=plural, kind=kind)

    def is_current(self, *_: object) -> bool:
        return True


_PODS = _Source()


def item(namespace: str, name: str, *images: str, source: _Source = _PODS) -> Item:
    spec = {"containers": [{"name": one, "image": one} for one in images]}
    raw = json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": spec})
    return Item(source, (namespace, name), name, b"", raw.encode(), 0.0, True)


def names(batch: list[Item]) -> list[str]:
    return [one.key[1] for one in batch]


def image_feed(sharers: int = 6) -> Feed:
    return Feed(sharers, batch_objects=1, shares_of=shares_of)


def test_shares_are_the_namespace_and_the_registries() -> None:
    given = item("a", "x", "dead.example/x:v1", "nginx", "dead.example/y:v1")
    assert shares_of(given) == ("namespace a", "dead.example", "docker.io")
    assert shares_of(item("a", "x")) == ("namespace a",)
    damaged = msgspec.structs.replace(given, raw=b"{")
    assert shares_of(damaged) == ("namespace a",)


@pytest.mark.parametrize(
    "place",
    [
        ("spec",),
        ("spec", "template", "spec"),
        ("spec", "jobTemplate", "spec", "template", "spec"),
    ],
)
def test_registries_of_pods_and_templates(place: tuple[str, ...]) -> None:
    images = ["a.example/x", "b:5000/x", "localhost/x", "team/x", "x:v1"]
    made: Any = {
        "initContainers": [{"image": images[0]}, None, {"image": 1}, {}],
        "containers": [{"image": one} for one in images[1:4]],
        "ephemeralContainers": [{"image": images[4]}],
    }
    for field in reversed(place):
        made = {field: made}
    hosts = ["a.example", "b:5000", "docker.io", "localhost"]
    assert registries_of(made) == hosts
    odds: tuple[Any, ...] = ({}, {"spec": []}, {"spec": {"containers": 1}}, None, [])
    for odd in odds:
        assert registries_of(odd) == []


def test_few_registries_of_an_object_count() -> None:
    """A Pod with thousands of containers takes as long as one with some dozen."""
    listed = [{"image": f"r{number:02}.example/x"} for number in range(1000)]
    found = registries_of({"spec": {"containers": listed}})
    assert found == [f"r{number:02}.example" for number in range(16)]


def test_threads_that_find_nothing_wait_for_the_next_object() -> None:
    """Each new object wakes all threads, and only one of them gets it."""
    feed = Feed(sharers=4, batch_objects=1)
    taken: list[str] = []
    ended = threading.Semaphore(0)

    def work() -> None:
        while batch := feed.take():
            taken.extend(names(batch))
            feed.done(batch)
            ended.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for one in threads:
        one.start()
    for number in range(8):
        feed.put(item("a", str(number)))
        assert ended.acquire(timeout=HANG_S)
    assert all(one.is_alive() for one in threads)
    feed.close()
    for one in threads:
        one.join(HANG_S)
    assert not any(one.is_alive() for one in threads)
    assert taken == [str(number) for number in range(8)]


def held(feed: Feed) -> list[list[Item]]:
    """Take batches until all others must wait."""
    found = []
    while batch := feed.take(0):
        found.append(batch)
    return found


def test_a_dead_registry_leaves_threads_to_others() -> None:
    feed = image_feed()
    for number in range(20):
        feed.put(item(f"n{number}", f"dead{number}", "dead.example/x:v1"))
    dead = held(feed)
    assert len(dead) == 3
    feed.put(item("b", "good", "good.example/x:v1"))
    assert names(feed.take(0)) == ["good"]
    feed.done(dead[0])
    assert len(held(feed)) == 1
    assert feed.pending == 20 + 1 - 1


def test_a_namespace_with_many_registries_leaves_threads_to_others() -> None:
    """A tenant can name any number of registries that do not answer."""
    feed = image_feed()
    for number in range(20):
        feed.put(item("a", f"dead{number}", f"dead{number}.example/x:v1"))
    for number in range(4):
        feed.put(item("b", f"good{number}", "good.example/x:v1"))
    taken = [names(batch) for batch in held(feed)]
    assert sorted(taken) == sorted(
        [["dead0"], ["dead1"], ["dead2"], ["good0"], ["good1"], ["good2"]]
    )


def test_an_object_with_another_image_changes_its_group() -> None:
    feed = image_feed()
    feed.put(item("a", "x", "dead.example/x:v1"))
    feed.put(item("a", "y", "dead.example/x:v1"))
    feed.put(item("a", "x", "good.example/x:v1"))
    assert feed.pending == 2
    batches = held(feed)
    assert sorted(names(batch) for batch in batches) == [["x"], ["y"]]
    images = {batch[0].key[1]: shares_of(batch[0])[1] for batch in batches}
    assert images == {"x": "good.example", "y": "dead.example"}
    for batch in batches:
        feed.done(batch)
    assert not feed.pending
    feed.put(item("a", "x", "dead.example/x:v1"))
    assert len(held(feed)) == 1


def test_a_waiting_thread_takes_an_object_when_its_share_has_room() -> None:
    feed = image_feed(sharers=2)
    for name in ("x", "y"):
        feed.put(item("a", name, "dead.example/x:v1"))
    first = feed.take(0)
    found: list[str] = []
    take: Callable[[], None] = lambda: found.extend(names(feed.take(HANG_S)))  # noqa: E731
    waiting = threading.Thread(target=take)
    waiting.start()
    feed.done(first)
    waiting.join(HANG_S)
    assert [*names(first), *found] == ["x", "y"]
