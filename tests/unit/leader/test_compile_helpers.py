"""Helpers answer with what the leader would compile; it misses none that fails."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kyverno_mp.leader import loop
from kyverno_mp.leader.compile_helpers import CompileHelpers, serve
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.telemetry.families import COMPILE_HELPERS, COMPILE_HELPERS_FAILED
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from tests.unit.leader.test_policy_store import exception, policy

_POLICY = policy("a-name")
FILES = {
    f"f{n:03}": _POLICY.replace("a-name", f"p{n}").encode() for n in range(250)
} | {
    "broken": b"a: [",
    "invalid": policy("invalid", patern="x").encode(),
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


def silent(link: socket.socket) -> None:
    """Read until the leader closes the connection."""
    while link.recv(1 << 20):
        pass


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@contextmanager
def helping(
    *helpers: Callable[[socket.socket], None],
    clock_s: Callable[[], float] = lambda: 0.0,
) -> Iterator[CompileHelpers]:
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
    answered = CompileHelpers(links, clock_s=clock_s)
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


@pytest.mark.parametrize(
    ("outcome_s", "is_whole"),
    [
        pytest.param(0.05, True, id="13 s in all, 5 s for a batch"),
        pytest.param(0.12, False, id="30 s in all"),
    ],
)
def test_a_busy_helper_is_given_up_only_in_the_end(
    tmp_path: Path, outcome_s: float, *, is_whole: bool
) -> None:
    """The leader alone would be slower: the machine is busy, and it has one core."""
    recorder = Recorder(Page.claim(tmp_path, "leader"), series_max=10)
    clock_s, count = Time(), 0
    with helping(working, clock_s=clock_s) as answered:
        answered.count_in(recorder)
        for _ in answered.outcomes(FILES, lambda: None):
            count += 1
            clock_s.pass_s(outcome_s)
    assert (count == 254) == is_whole
    assert count > 100
    failures = recorder.series(COMPILE_HELPERS_FAILED)
    assert failures.cells[failures.bases[()]] == (not is_whole)


def test_a_silent_helper_is_given_up_after_ten_seconds() -> None:
    clock_s = Time()
    with helping(silent, clock_s=clock_s) as answered:
        sent = list(answered.outcomes(FILES, lambda: clock_s.pass_s(6.0)))
    assert sent == []
    assert 110 <= clock_s.now_s < 120


@pytest.mark.parametrize(
    ("helpers", "failed"),
    [
        pytest.param((working,), 0, id="all answer"),
        pytest.param((working, nothing, broken), 2, id="one of three"),
    ],
)
def test_compiled_policies_and_failed_helpers_are_counted(
    tmp_path: Path, helpers: tuple[Callable[[socket.socket], None], ...], failed: int
) -> None:
    recorder = Recorder(Page.claim(tmp_path, "leader"), series_max=10)
    with helping(*helpers) as answered:
        answered.count_in(recorder)
        sent = list(answered.outcomes(FILES, lambda: None))

    def counted(labels: tuple[str, ...]) -> float:
        series = recorder.series(COMPILE_HELPERS)
        return series.cells[series.bases[labels]]

    assert (counted(("compiled",)), counted(("rejected",))) == (len(sent) - 1, 1)
    if not failed:
        # All but the two files that contain no policy of their own.
        assert len(sent) == 250 + len(["invalid", "one", "two", "beside"])
    failures = recorder.series(COMPILE_HELPERS_FAILED)
    assert failures.cells[failures.bases[()]] == failed


@pytest.mark.parametrize(
    ("answer", "comment"),
    [
        pytest.param(b"", "", id="no answer"),
        pytest.param(b"\0\0", "", id="half of a length"),
        pytest.param((1000).to_bytes(8) + b"x", "", id="half of an answer"),
        pytest.param(b"", "x" * 1_000_000, id="reads nothing"),
    ],
)
def test_a_leader_ends_while_its_helper_is_stopped(
    tmp_path: Path, answer: bytes, comment: str
) -> None:
    """It neither waits for its helper nor compiles instead: it publishes nothing."""
    (tmp_path / "policies").mkdir()
    for name in (loop.PAGES, loop.SNAPSHOT):
        (tmp_path / "run" / name).mkdir(mode=0o700, parents=True)
    for name, content in FILES.items():
        (tmp_path / "policies" / f"{name}.yaml").write_bytes(content)
    (tmp_path / "policies" / "large.yaml").write_text(f"# PolicyException {comment}")
    settings = Settings(standalone=True, policies_dir=str(tmp_path / "policies"))
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            theirs.close()
            loop.run(settings, tmp_path / "run", helpers=CompileHelpers([ours]))
        except SystemExit:
            os._exit(0)
        finally:
            os._exit(1)
    ours.close()
    with closing(theirs):
        # The leader waits for its helper, or is about to.
        assert theirs.recv(8)
        theirs.sendall(answer)
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == 0
    segment = tmp_path / "run" / loop.SNAPSHOT / segment_file(POLICIES)
    assert not segment.exists()
