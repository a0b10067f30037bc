"""From bytes to bytes: evaluated rules, answers, and the results of failures."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    KubeUnavailable,
    SnapshotUnusable,
)
from kyverno_mp.expr.scope import Pace
from kyverno_mp.limits import AUDIT_QUEUE_BYTES_MAX
from kyverno_mp.program.matching.filters import UserExclusions
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.configured import Exclusions
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED, Route
from tests.unit.webhook.stub import (
    StubEvaluate,
    StubPlan,
    StubRecords,
    response,
    review,
)
from tests.waiting import HANG_S, wait_on_loop

FAIL = SHARED[b"/validate/fail"]
IGNORE = SHARED[b"/validate/ignore"]
BOTH = SHARED[b"/validate"]
MUTATE = SHARED[b"/mutate/fail"]


class Sink:
    def __init__(self) -> None:
        self.got: list[tuple[str, int, int]] = []
        self.told: list[tuple[str, int, bool]] = []
        self.records_successes = False
        self.fails = False
        self.seconds = 0.0

    def answered(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        if self.fails:
            raise ValueError
        self.told.append((request.uid, len(responses), blocked))

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: Callable[[PolicyResponse], PolicyResponse],
        *,
        seconds: float = 0.0,
    ) -> None:
        self.seconds = seconds
        for one in (*enforced, *audited):
            assert with_messages(one) is one
        self.got.append((request.uid, len(enforced), len(audited)))


class Bench:
    """A service with a stub engine and a recorder for all its reports."""

    def __init__(self, plan: StubPlan | Exception | None, **parts: Any) -> None:
        self.evaluate = StubEvaluate(plan)
        self.records = StubRecords()
        self.sink = Sink()
        self.audit_queue = AuditQueue(
            10, on_drop=lambda: None, on_error=lambda error: pytest.fail(str(error))
        )
        self.now_ns = 1_000_000_000_000
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=lambda: self.now_ns,
                audit_queue=self.audit_queue,
                sink=self.sink,
                **parts,
            ),
            handlers_of(self.evaluate),
        )

    def ask(self, route: Route = FAIL, query: bytes = b"", **changes: object) -> Any:
        answer = self.service.answer(route, query, review(**changes))
        assert isinstance(answer, bytes)
        return json.loads(answer)["response"]

    def audited(self) -> list[tuple[str, int, int]]:
        self.audit_queue.start()
        assert self.audit_queue.stop(5)
        return self.sink.got


def test_review_without_matches_is_allowed() -> None:
    bench = Bench(None)
    assert bench.ask() == {"uid": "u-1", "allowed": True}
    assert bench.records.reviews == [("validate", "CREATE", True)]


def test_failure_of_an_enforcing_policy_denies() -> None:
    bench = Bench(StubPlan(enforce=[response()], audit=[response(action="Audit")]))
    assert bench.ask() == {
        "uid": "u-1",
        "allowed": False,
        "status": {
            "metadata": {},
            "status": "Failure",
            "message": "\n\nresource Pod/default/web was blocked due to the following"
            " policies \n\np:\n  r: m\n",
        },
    }
    assert bench.records.reviews == [("validate", "CREATE", False)]
    assert bench.audited() == [], "a denied review is not audited"
    assert bench.sink.told == [("u-1", 1, True)]


def test_warnings_of_policies_that_did_not_deny() -> None:
    """An Ignore policy has an error, and an auditing policy has emitWarning."""
    bench = Bench(
        StubPlan(
            enforce=[response("error", failure_policy="Ignore")],
            warn=[response(action="Audit")],
        )
    )
    assert bench.ask(IGNORE)["warnings"] == ["policy p.r: m", "policy p.r: m"]


def test_duration_of_an_audit_is_measured() -> None:
    """Without it, metrics and the dashboard show 0 s for auditing policies."""

    class Slow(StubPlan):
        def audit(
            self, deadline_ns: int, pace: Pace | None = None
        ) -> list[PolicyResponse]:
            bench.now_ns += 250_000_000
            return super().audit(deadline_ns, pace)

    bench = Bench(Slow(enforce=[response("pass")], audit=[response()]))
    assert bench.ask()["allowed"]
    assert bench.audited() == [("u-1", 1, 1)]
    assert bench.sink.seconds == 0.25


def test_audit_runs_after_the_answer() -> None:
    bench = Bench(StubPlan(enforce=[response("pass")], audit=[response()]))
    assert bench.ask() == {"uid": "u-1", "allowed": True}
    assert bench.audited() == [("u-1", 1, 1)]


def test_dry_run_has_no_side_effects() -> None:
    bench = Bench(StubPlan(enforce=[response("pass")], audit=[response()]))
    assert bench.ask(dryRun=True)["allowed"]
    assert bench.audited() == []
    bench = Bench(StubPlan(enforce=[response()]))
    assert not bench.ask(dryRun=True)["allowed"]
    assert bench.sink.told == []


@pytest.mark.parametrize("records_successes", [False, True])
def test_successful_reviews_are_reported_if_enabled(
    records_successes: bool,  # noqa: FBT001 - a table
) -> None:
    passed = PolicyResponse(response().policy, passed=("r",))
    bench = Bench(StubPlan(enforce=[passed]))
    bench.sink.records_successes = records_successes
    assert bench.ask()["allowed"]
    assert bench.sink.told == ([("u-1", 1, False)] if records_successes else [])
    assert bench.audited() == []


def test_nonblocking_failure_is_reported_after_the_answer() -> None:
    """The other rules need messages, which take time."""
    bench = Bench(StubPlan(enforce=[response("error", failure_policy="Ignore")]))
    assert bench.ask(IGNORE)["allowed"]
    assert bench.sink.told == []
    assert bench.audited() == [("u-1", 1, 0)]


def test_failing_sink_changes_no_answer() -> None:
    """Otherwise an event that cannot be recorded admits a denied object."""
    bench = Bench(StubPlan(enforce=[response()]))
    bench.sink.fails = True
    assert "was blocked" in bench.ask(IGNORE)["status"]["message"]
    assert bench.records.errors == ["webhook.not_told"]


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT", "UPDATE"])
def test_every_operation_is_validated(operation: str) -> None:
    bench = Bench(StubPlan(enforce=[response()]))
    assert not bench.ask(operation=operation)["allowed"]


def test_the_path_selects_the_policies() -> None:
    bench = Bench(None)
    for route in (FAIL, IGNORE, BOTH):
        bench.ask(route)
    asked = [policies for _request, policies, _key in bench.evaluate.asked]
    assert asked == [{"Fail"}, {"Ignore"}, {"Fail", "Ignore"}]


def test_mutate_answers_without_a_patch() -> None:
    bench = Bench(StubPlan(enforce=[response()]))
    assert bench.ask(MUTATE) == {"uid": "u-1", "allowed": True}
    assert bench.ask(MUTATE, operation="DELETE")["allowed"]
    assert bench.evaluate.asked == [], "rules that validate have no part in it"


@pytest.mark.parametrize(
    "changes",
    [
        {"userInfo": {"username": "kubelet", "groups": ["system:nodes"]}},
        {"userInfo": {"username": "root"}},
        {"kind": {"version": "v1", "kind": "Event"}},
        {"namespace": "kube-system"},
        {"kind": {"group": "kyverno.io", "version": "v2", "kind": "UpdateRequest"}},
    ],
)
def test_excluded_requests_are_allowed(changes: dict[str, Any]) -> None:
    exclusions = Exclusions(
        "[Event,*,*][*/*,kube-system,*]",
        UserExclusions(groups="system:nodes", usernames="root"),
    )
    bench = Bench(StubPlan(enforce=[response()]), filters=exclusions)
    assert bench.ask(**changes) == {"uid": "u-1", "allowed": True}
    assert not bench.ask()["allowed"]


def test_roles_and_labels_are_added() -> None:
    class ClusterData:
        def roles_of(
            self, namespace: str, username: str, groups: Sequence[str]
        ) -> tuple[tuple[str, ...], tuple[str, ...]]:
            assert (namespace, username, list(groups)) == ("default", "alice", ["dev"])
            return ("default:edit",), ("view",)

        def labels(self, namespace: str) -> dict[str, str]:
            return {"name": namespace}

    bench = Bench(None, roles=ClusterData(), namespaces=ClusterData())
    bench.ask()
    request = bench.evaluate.asked[0][0]
    assert (request.roles, request.cluster_roles) == (("default:edit",), ("view",))
    assert request.namespace_labels == {"name": "default"}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "empty body (admission.empty)"),
        (b"{}", 400, "AdmissionReview request is nil (admission.no_request)"),
        (b"{", 417, None),
        (b'{"request":[]}', 417, None),
    ],
)
def test_invalid_review_is_rejected(body: bytes, status: int, text: str | None) -> None:
    """HTTP status codes of docs/behaviour/controllers 2.2."""
    bench = Bench(None)
    with pytest.raises(HttpError) as caught:
        bench.service.answer(FAIL, b"", body)
    assert caught.value.status == status
    assert text in (None, caught.value.text)
    assert len(bench.records.errors) == 1


def test_errors_of_the_transport_are_counted_by_code() -> None:
    bench = Bench(None)
    bench.service.refused("webhook.body_too_long")
    assert bench.records.errors == ["webhook.body_too_long"]


def test_no_answer_without_a_snapshot() -> None:
    """A worker must not allow a request without policies (behaviour/lessons 3.5)."""
    bench = Bench(SnapshotUnusable("webhook.no_snapshot", "none"))
    with pytest.raises(HttpError) as caught:
        bench.ask(IGNORE)
    assert caught.value.status == 503


def explode(error: Exception) -> StubPlan:
    def work(_deadline_ns: int) -> None:
        raise error

    return StubPlan(work=work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("geheim"), "webhook.defect"),
        (RecursionError(), "webhook.defect"),
        (MemoryError(), "webhook.defect"),
        (BudgetExceeded("expr.steps", "spent"), "expr.steps"),
        (DeadlinePassed("expr.deadline", "late"), "expr.deadline"),
    ],
)
@pytest.mark.parametrize(
    ("route", "fails", "allowed"),
    [
        (FAIL, True, False),
        (IGNORE, False, True),
        (BOTH, True, False),
        (BOTH, False, True),
    ],
)
def test_failure_policy_decides_on_failures(
    error: Exception,
    code: str,
    route: Route,
    fails: bool,  # noqa: FBT001 - a table
    allowed: bool,  # noqa: FBT001 - a table
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error never allows silently, and the log contains no value of the object."""
    plan = explode(error)
    plan.fails = fails
    bench = Bench(plan)
    with caplog.at_level(logging.WARNING):
        answer = bench.ask(route)
    assert answer["allowed"] is allowed
    told = answer["warnings"][0] if allowed else answer["status"]["message"]
    assert code in told
    assert bench.records.errors == [code]
    assert bench.records.reviews == [("validate", "CREATE", allowed)]
    if allowed:
        assert bench.records.evaluated == [1], (
            "what is known of its policies is counted"
        )
        assert plan.has_reached, "and its search gives the event loop back in time"
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "u-1" in logged
    assert "geheim" not in logged + told


@pytest.mark.parametrize(
    ("query", "expected_s"), [(b"", 9.5), (b"timeout=20s", 19.5), (b"timeout=1s", 0.9)]
)
def test_deadline_leaves_time_to_answer(query: bytes, expected_s: float) -> None:
    seen: list[int] = []
    bench = Bench(StubPlan(work=seen.append))
    bench.ask(query=query)
    assert seen == [bench.now_ns + int(expected_s * 1e9)]


def test_review_with_io_does_not_block_the_event_loop() -> None:
    """A review past its deadline does not block either: failurePolicy answers it."""
    release = threading.Event()

    def wait(_deadline_ns: int) -> None:
        release.wait(HANG_S)

    async def run() -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 0, lambda: int(loop.time() * 1e9))
        slow = StubPlan(enforce=[response()], needs_io=True, work=wait)
        evaluate = StubEvaluate(slow)
        service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=lambda: int(loop.time() * 1e9),
                slow_lane=lane,
            ),
            handlers_of(evaluate),
        )
        late = service.answer(FAIL, b"timeout=50ms", review())
        evaluate.answer = StubPlan(needs_io=True, fails=False, work=wait)
        refused = service.answer(IGNORE, b"", review())
        assert isinstance(late, asyncio.Future)
        assert isinstance(refused, asyncio.Future)
        assert lane.refused == 1
        first, second = json.loads(await late), json.loads(await refused)
        release.set()
        await wait_on_loop(lambda: not lane.running)
        evaluate.answer = slow
        done = service.answer(FAIL, b"", review())
        assert isinstance(done, asyncio.Future)
        assert "was blocked" in json.loads(await done)["response"]["status"]["message"]
        lane.stop()
        return first["response"], second["response"]

    late, refused = asyncio.run(run())
    assert not late["allowed"]
    assert "webhook.deadline" in late["status"]["message"]
    assert refused["allowed"]
    assert "webhook.slow_lane_full" in refused["warnings"][0]


class LatePlan(StubPlan):
    """A plan that blocks until it is released."""

    def __init__(self, *, fails: bool, enforce: Sequence[PolicyResponse]) -> None:
        self.let_go = threading.Event()
        super().__init__(
            enforce=enforce,
            needs_io=True,
            fails=fails,
            work=lambda _deadline_ns: assert_in_time(self.let_go),
        )


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(HANG_S)


@pytest.mark.parametrize(
    ("route", "allowed", "audited"),
    [(FAIL, False, []), (IGNORE, True, [("u-1", 1, 0)])],
)
def test_late_thread_is_not_counted_as_an_answer(
    route: Route,
    allowed: bool,  # noqa: FBT001 - a table
    audited: list[tuple[str, int, int]],
) -> None:
    """Otherwise a review is counted twice, or an allowed one is reported as blocked."""
    plan = LatePlan(enforce=[response()], fails=not allowed)
    bench: Bench | None = None

    async def run() -> Any:
        nonlocal bench
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 5, lambda: bench.now_ns if bench else 0)
        bench = Bench(plan, slow_lane=lane)
        first, behind = [
            bench.service.answer(route, b"timeout=50ms", review()) for _ in range(2)
        ]
        assert isinstance(first, asyncio.Future)
        assert isinstance(behind, asyncio.Future)
        answers = [json.loads(await one)["response"] for one in (first, behind)]
        plan.let_go.set()
        await wait_on_loop(lambda: not lane.running)
        lane.stop()
        return answers

    for answer in asyncio.run(run()):
        assert answer["allowed"] is allowed
    assert bench is not None
    assert bench.records.errors == ["webhook.deadline"] * 2
    assert bench.records.reviews == [("validate", "CREATE", allowed)] * 2
    assert bench.sink.told == []
    assert bench.audited() == audited, "the second was never begun"


def test_slow_failing_review_is_answered_by_its_deadline() -> None:
    """Otherwise its caller and all later requests on that connection wait forever."""

    def work(_pace: Pace) -> bytes:
        raise ValueError

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 5, lambda: 0)
        answer = lane.run(work, 50_000_000, lambda error: error.code.encode())
        found = await asyncio.wait_for(answer, HANG_S)
        lane.stop()
        return found

    assert asyncio.run(run()) == b"webhook.deadline"


def test_thread_that_outlives_the_event_loop_ends_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise each shutdown with a late review fills the log with tracebacks."""
    let_go, ended = threading.Event(), threading.Event()

    def work(_pace: Pace) -> bytes:
        assert_in_time(let_go)
        ended.set()
        return b""

    async def begin() -> Lane:
        lane = Lane(asyncio.get_running_loop(), 1, 5, lambda: 0)
        lane.run(work, 10**9, lambda error: error.code.encode())
        return lane

    lane = asyncio.run(begin())
    let_go.set()
    assert_in_time(ended)
    lane.stop()
    for thread in threading.enumerate():
        if thread.name.startswith("review"):
            thread.join(HANG_S)
    assert caplog.records == []


def test_failing_warning_is_logged_and_denies_nothing() -> None:
    """A failure means: an auditing policy blocks requests that it cannot evaluate."""

    class Plan(StubPlan):
        def warn(
            self, deadline_ns: int, _pace: Pace | None = None
        ) -> list[PolicyResponse]:
            raise DeadlinePassed("expr.deadline", str(deadline_ns))

    bench = Bench(Plan(enforce=[response("pass")], warn=[response()], fails=True))
    answer = bench.ask()
    assert answer["allowed"]
    assert "expr.deadline" in answer["warnings"][0]
    assert bench.records.errors == ["expr.deadline"]


def test_audit_queue_is_bounded_and_survives_errors() -> None:
    dropped: list[int] = []
    errors: list[Exception] = []
    done: list[int] = []
    box = AuditQueue(2, on_drop=lambda: dropped.append(1), on_error=errors.append)

    def fail() -> None:
        raise ValueError

    assert box.put(fail)
    assert box.put(lambda: done.append(1))
    assert not box.put(lambda: done.append(2))
    assert (box.waiting, box.dropped, dropped) == (2, 1, [1])
    box.start()
    assert box.stop(5)
    assert done == [1]
    assert [type(error) for error in errors] == [ValueError]
    assert not box.put(lambda: None), "a stopped queue accepts nothing"


def test_audit_queue_bounds_the_waiting_bytes() -> None:
    """A failure means: a thousand waiting reviews of 10 MiB fill the memory."""
    dropped: list[int] = []
    box = AuditQueue(
        10, on_drop=lambda: dropped.append(1), on_error=lambda _error: None
    )
    assert box.put(lambda: None, AUDIT_QUEUE_BYTES_MAX - 1)
    assert not box.put(lambda: None, 2)
    assert box.put(lambda: None, 1)
    assert (box.waiting, dropped) == (2, [1])
    box.start()
    assert box.stop(5)


@pytest.mark.parametrize("needs_io", [True, False])
def test_audits_with_io_delay_no_others(*, needs_io: bool) -> None:
    """A failure means: a dead registry of one tenant stops the audits of all."""
    slow = AuditQueue(10, on_drop=lambda: None, on_error=lambda _error: None)
    plan = StubPlan(audit=[response()], needs_io=needs_io)
    bench = Bench(plan, slow_audit_queue=slow)
    assert bench.ask()["allowed"]
    assert (slow.waiting, bench.audit_queue.waiting) == (needs_io, not needs_io)
    slow.start()
    assert slow.stop(5)
    assert bench.audited() == [("u-1", 0, 1)]


def test_audit_queue_of_size_zero_drops_all() -> None:
    box = AuditQueue(0, on_drop=lambda: None, on_error=lambda _error: None)
    assert not box.put(lambda: None)


class Unknown:
    """A port without any published namespace."""

    def labels(self, _namespace: str) -> None:
        return None


class LiveNamespaces:
    """The API server's answer; raises a given error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def namespace(self, name: str, _deadline_ns: int) -> Any:
        assert name == "default"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


_NEW_NAMESPACE = {
    "kind": {"group": "", "version": "v1", "kind": "Namespace"},
    "resource": {"group": "", "version": "v1", "resource": "namespaces"},
    "name": "default",
    "object": {"kind": "Namespace", "metadata": {"name": "default"}},
}


def _with_live(answer: Any, evaluate: StubEvaluate, **changes: Any) -> Any:
    async def run() -> Any:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 0, lambda: int(loop.time() * 1e9))
        service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=lambda: int(loop.time() * 1e9),
                namespaces=Unknown(),
                live_namespaces=LiveNamespaces(answer),
                slow_lane=lane,
            ),
            handlers_of(evaluate),
        )
        later = service.answer(FAIL, b"", review(**changes))
        text = later if isinstance(later, bytes) else await later
        found = json.loads(text)["response"]
        lane.stop()
        return found

    return asyncio.run(run())


def test_unpublished_namespace_is_looked_up() -> None:
    """It may have been created together with the object under review."""
    evaluate = StubEvaluate(StubPlan())
    labels = {"team": "a"}
    assert _with_live({"metadata": {"labels": labels}}, evaluate)["allowed"]
    ((request, _, _),) = evaluate.asked
    assert (request.namespace_known, request.namespace_labels) == (True, labels)

    evaluate = StubEvaluate(StubPlan(enforce=[response()]))
    answer = _with_live({"metadata": {}}, evaluate)
    assert "was blocked" in answer["status"]["message"]


def test_missing_namespace_stays_unknown() -> None:
    evaluate = StubEvaluate(StubPlan())
    assert _with_live(None, evaluate)["allowed"]
    ((request, _, _),) = evaluate.asked
    assert request.namespace_known is False


def test_failure_policy_applies_if_a_namespace_cannot_be_looked_up() -> None:
    def evaluated(_deadline_ns: int) -> None:
        raise AssertionError

    plan = StubPlan(work=evaluated)
    gone = KubeUnavailable("kube.connection", "nobody there")
    answer = _with_live(gone, StubEvaluate(plan))
    assert answer["allowed"] is False
    assert "kube.connection" in answer["status"]["message"]
    assert plan.has_reached is False


def _indifferent() -> StubPlan:
    plan = StubPlan()
    plan.reads_namespace = False
    return plan


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (None, {}),
        (_indifferent(), {}),
        (StubPlan(), _NEW_NAMESPACE),
    ],
    ids=["no policy", "no policy reads it", "it is being created"],
)
def test_irrelevant_namespace_is_not_looked_up(
    plan: StubPlan | None, changes: dict[str, Any]
) -> None:
    """Otherwise each object of a new namespace costs an API call."""
    evaluate = StubEvaluate(plan)
    unasked = AssertionError("the API server was asked")
    assert _with_live(unasked, evaluate, **changes)["allowed"]
    ((request, _, _),) = evaluate.asked
    assert request.namespace_known is False


def test_changed_namespace_is_looked_up() -> None:
    evaluate = StubEvaluate(StubPlan())
    changed = {**_NEW_NAMESPACE, "operation": "UPDATE"}
    assert _with_live({"metadata": {}}, evaluate, **changed)["allowed"]
    ((request, _, _),) = evaluate.asked
    assert request.namespace_known


def test_an_empty_audit_queue_accepts_a_review_of_any_size() -> None:
    box = AuditQueue(9, on_drop=lambda: None, on_error=print, bytes_max=10)
    assert box.put(lambda: None, 11)
    assert not box.put(lambda: None, 1)
