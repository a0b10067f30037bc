"""Traces: what is sampled, what is bounded, and what a dead collector costs."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.limits import SPANS_PER_TRACE_MAX, TRACE_NAMES_MAX
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.trace import External, Trace, names
from kyverno_mp.telemetry.traces import DROPPED, EXPORTED, FAILED, Tracer
from tests.waiting import HANG_S, wait_for

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def tracer_of(
    export: Callable[[Sequence[Trace]], bool] = lambda _traces: True,
    *,
    sampled: float = 1.0,
    slow_ns: int = 0,
    queued_max: int = 4096,
) -> Tracer:
    clock = itertools.count(1000)
    return Tracer(
        export,
        sampled=sampled,
        slow_ns=slow_ns,
        monotonic_ns=lambda: next(clock),
        queued_max=queued_max,
    )


@pytest.fixture(autouse=True)
def _not_installed() -> Iterator[None]:
    yield
    traces.install(None)


def test_sender_of_a_traceparent_decides() -> None:
    """An API server that traces a request expects our part of the trace."""
    found = tracer_of(sampled=0.0).begin("review", PARENT)
    assert found is not None
    assert (found.trace_id, found.parent_id) == (TRACE_ID, 0x00F067AA0BA902B7)
    assert tracer_of().begin("review", PARENT[:-2] + b"00") is None
    later = PARENT.replace(b"00-4", b"cc-4", 1) + b"-more"
    assert tracer_of(sampled=0.0).begin("review", later) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"x",
        PARENT.upper(),
        PARENT[:-1],
        PARENT.replace(b"00-4", b"ff-4", 1),
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        b"\xff" * 55,
        b"00-" * 10_000,
    ],
)
def test_malformed_traceparent_begins_a_new_trace(header: bytes) -> None:
    assert tracer_of(sampled=0.0).begin("review", header) is None
    found = tracer_of(sampled=1.0).begin("review", header)
    assert found is not None
    assert found.parent_id == 0
    assert found.trace_id != TRACE_ID


def test_a_part_of_the_traces_is_sampled() -> None:
    tracer = tracer_of(sampled=0.25)
    count = sum(tracer.begin("review") is not None for _ in range(4000))
    # Ten standard deviations, which no run reaches.
    assert abs(count - 1000) < 275


def test_ids_differ_between_traces_and_tracers() -> None:
    found = [tracer_of().begin("review") for _ in range(2)]
    assert len({trace.trace_id for trace in found if trace is not None}) == 2


def test_a_full_queue_drops_and_counts() -> None:
    tracer = tracer_of(queued_max=5)
    for _ in range(3):
        trace = tracer.begin("review")
        assert trace is not None
        trace.add("decode", 0)
        trace.end()
    assert tracer.counts.drain() == {(DROPPED,): 2}


def test_steps_of_a_trace_are_bounded() -> None:
    trace = tracer_of().begin("review")
    assert trace is not None
    for number in range(SPANS_PER_TRACE_MAX + 3):
        trace.add("step", 0)
        trace.policy(number)
    assert len(trace.spans) == SPANS_PER_TRACE_MAX
    assert len(trace.policies) <= SPANS_PER_TRACE_MAX
    assert trace.left_out == 3
    assert len(names(f"n{number}" for number in range(1000))) == TRACE_NAMES_MAX
    assert [len(text) for text in names(["x" * 100_000])] == [256]


def test_late_threads_add_nothing_to_an_ended_trace() -> None:
    tracer = tracer_of()
    trace = tracer.begin("review")
    assert trace is not None
    trace.policy("a")
    trace.end()
    trace.add("late", 0)
    trace.policy("b")
    trace.end()
    assert (trace.size, trace.spans, trace.policies) == (1, [], [])


def test_only_slow_policies_are_steps() -> None:
    ticks = iter((0, 10, 12, 30, 31))
    tracer = Tracer(
        lambda _traces: True, sampled=1.0, slow_ns=10, monotonic_ns=lambda: next(ticks)
    )
    trace = tracer.begin("review")
    assert trace is not None
    for policy in ("quick", "quick", "slow", None):
        trace.policy(policy)
    assert trace.policies == [("slow", 12, 30)]


def test_calls_of_a_thread_are_steps_of_its_trace() -> None:
    trace = tracer_of().begin("reconcile")
    assert trace is not None
    with External("kubernetes", "GET"):
        pass
    with contextlib.suppress(KubeUnavailable), trace:
        with External("registry", "GET") as call:
            call.status = 200
        with External("kubernetes", "evil\nmethod"):
            raise KubeUnavailable("kube.server", "secret")
    assert [(s.name, s.error, s.is_call) for s in trace.spans] == [
        ("registry GET", "", True),
        ("kubernetes _OTHER", "kube.server", True),
    ]
    assert trace.spans[0].attributes["http.response.status_code"] == 200
    assert trace.error == "kube.server"
    with External("kubernetes", "GET"):
        pass
    assert len(trace.spans) == 2


def test_nothing_is_recorded_without_a_tracer() -> None:
    with traces.root("reconcile", {}) as trace:
        assert trace is None
    assert traces.counts() == {}
    traces.finish(0.0)


def test_finished_traces_are_sent_and_counted() -> None:
    sent: list[str] = []

    def send(found: Sequence[Trace]) -> bool:
        sent.extend(one.name for one in found)
        return True

    tracer = tracer_of(send)
    traces.install(tracer)
    for name in ("a", "b"):
        with traces.root(name, {"k": "v"}):
            pass
    traces.finish(HANG_S)
    assert sent == ["a", "b"]
    assert traces.counts() == {(EXPORTED,): 2}
    with traces.root("after", {}):
        pass
    assert traces.counts() == {(DROPPED,): 1}


def failing(_traces: Sequence[Trace]) -> bool:
    return False


def raising(_traces: Sequence[Trace]) -> bool:
    raise OSError("secret")


@pytest.mark.parametrize("export", [failing, raising])
def test_a_collector_that_fails_is_counted_and_logged_once(
    export: Callable[[Sequence[Trace]], bool], caplog: pytest.LogCaptureFixture
) -> None:
    tracer = tracer_of(export)
    tracer.start()
    total = 0
    for _ in range(2):
        trace = tracer.begin("review")
        assert trace is not None
        trace.end()
        total += wait_for(lambda: tracer.counts.drain().get((FAILED,)))
    assert tracer.stop(HANG_S)
    assert total == 2
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_a_collector_that_hangs_holds_nobody() -> None:
    """Ending traces and stopping return while an export never does."""
    is_called, may_end = threading.Event(), threading.Event()

    def hang(_traces: Sequence[Trace]) -> bool:
        is_called.set()
        return may_end.wait(HANG_S)

    tracer = tracer_of(hang, queued_max=10)
    tracer.start()
    count = 0
    while not is_called.is_set() or count < 30:
        trace = tracer.begin("review")
        assert trace is not None
        trace.end()
        count += 1
    assert tracer.counts.drain()[DROPPED,] >= count - 20
    assert tracer.stop(0.0) is False
    may_end.set()
    assert tracer.stop(HANG_S)
