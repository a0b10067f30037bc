"""Helpers answer with what the leader would compile; it misses none that fails."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kyverno_mp.leader.compile_helpers import CompileHelpers, serve
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from tests.unit.leader.test_policy_store import exception, policy

FILES = {f"f{n:03}": policy(f"p{n}").encode() for n in range(250)} | {
    "broken": b"a: [",
    "invalid": policy("invalid", pattern="{{ x").encode(),
    "several": (policy("one") + policy("two", "Policy")).encode(),
    "exceptions": (exception("e", "p7") + policy("beside")).encode(),
}


def store_of(**more: object) -> PolicyStore:
    return PolicyStore(lambda _namespace: True, **more)  # type: ignore[arg-type]


def nothing(_link: socket.socket) -> None:
    """Close the connection without an answer."""


def broken(link: socket.socket) -> None:
    link.recv(1)
    link.sendall(b"\xff" * 64)


def working(link: socket.socket) -> None:
    serve(link, lambda cache: store_of(cache=cache))


@contextmanager
def helping(*helpers: Callable[[socket.socket], None]) -> Iterator[CompileHelpers]:
    links, threads = [], []
    for helper in helpers:
        ours, theirs = socket.socketpair()

        def run(
            link: socket.socket = theirs,
            helper: Callable[[socket.socket], None] = helper,
        ) -> None:
            with link:
                helper(link)

        thread = threading.Thread(target=run)
        thread.start()
        links.append(ours)
        threads.append(thread)
    answered = CompileHelpers(links)
    try:
        yield answered
    finally:
        answered.close()
        for thread in threads:
            thread.join()


def published(policy_set: PolicySet) -> tuple[object, ...]:
    return policy_set.encoded, policy_set.policies, policy_set.problems


@pytest.mark.parametrize(
    ("helpers", "compiled"),
    [
        pytest.param((working,), 1, id="one"),
        pytest.param((working, working), 1, id="two"),
        pytest.param((nothing, working, broken), 1, id="one of three"),
        pytest.param((nothing, broken), len(FILES) + 1, id="none"),
    ],
)
def test_the_leader_publishes_the_same(
    helpers: tuple[Callable[[socket.socket], None], ...], compiled: int
) -> None:
    alone, helped = store_of(), store_of()
    with helping(*helpers) as answered:
        helped.use_helpers(answered)
        policy_set = helped.update(Changes(FILES, ()))
    assert published(policy_set) == published(alone.update(Changes(FILES, ())))
    # A batch that a helper took and lost is compiled by the leader.
    assert helped.compiled_count <= compiled + 200 * (len(helpers) > 2)
    # They are ended, and what they sent is not kept.
    assert helped.costly_outcomes() == {}
    changed = {"f001": policy("p1", message="new").encode()}
    assert names_of(helped.update(Changes(changed, ()))) == ["p1"]


def names_of(policy_set: PolicySet) -> list[str]:
    return [status.name for _, status in policy_set.changes]


def test_few_files_are_compiled_by_the_leader() -> None:
    with helping(nothing) as answered:
        store = store_of()
        store.use_helpers(answered)
        assert len(store.update(Changes({"a": FILES["f001"]}, ())).encoded) == 1
        assert store.compiled_count == 1


def test_exceptions_of_another_file_apply() -> None:
    """An outcome without them would deny what they allow."""
    with helping(working) as answered:
        store = store_of()
        store.use_helpers(answered)
        policy_set = store.update(Changes(FILES, ()))
    excepted = [each.key for each in policy_set.encoded if each.exceptions]
    assert excepted == ["p7"]


def test_a_helper_process_is_ended() -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            working(theirs)
        finally:
            os._exit(0)
    theirs.close()
    helpers = CompileHelpers([ours], [pid])
    assert len(list(helpers.outcomes(FILES, lambda: None))) > 200
    helpers.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
