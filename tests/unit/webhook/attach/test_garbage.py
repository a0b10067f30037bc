"""A review leaves nothing to the garbage collector, however it ends.

A failure means: reviews stay in memory after their answers, with all of their objects,
because a worker avoids collections (see webhook/collector.py).
"""

import contextlib
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kyverno_mp.errors import DependencyError
from kyverno_mp.program.ports import ApiRequest, CelPorts, ClusterData
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.http_errors import HttpError
from tests.fuzz.bench import Bench, pod, review
from tests.unit.webhook.cel.test_cel_policies import Server, compiled, policy

REVIEWS = 3
CALL = "context: [{name: x, apiCall: {urlPath: /x}}], "
"""An entry that fails, see ``_Broken``."""
DENY = "deny: {conditions: {all: [{key: '{{ KEY }}', operator: Equals, value: x}]}}"
LABEL = 'mutate: {patchStrategicMerge: {metadata: {labels: {x: "VALUE"}}}}'


def cluster_policy(*rules: str, failure_policy: str = "Fail", name: str = "p") -> str:
    """Return a policy for Pods; ``rules`` have no name and no match."""
    head = (
        f"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\n"
        "spec:\n  validationFailureAction: Enforce\n  background: false\n"
        f"  failurePolicy: {failure_policy}\n  rules:\n"
    )
    match = "match: {any: [{resources: {kinds: [Pod]}}]}"
    return head + "".join(
        f"  - {{name: r{number}, {match}, {rule}}}\n"
        for number, rule in enumerate(rules)
    )


def cel(expression: str) -> str:
    return f'validate: {{cel: {{expressions: [{{expression: "{expression}"}}]}}}}'


def validate(what: str) -> str:
    return f"validate: {{message: none, {what}}}"


class _Broken:
    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        assert request.path == "/x"
        assert deadline_ns > 0
        raise self._error()

    def get(self, *_asked: object) -> dict[str, Json]:
        raise self._error()


def unavailable() -> Exception:
    error = DependencyError("x.y", "down")
    error.__cause__ = ConnectionError()
    return error


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_collected() -> Iterator[None]:
    """Frozen objects cost a collection nothing: the heap of a test run is large."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


def garbage_of(ask: Callable[[], object]) -> int:
    """Return the number of cyclic objects that reviews leave after a warm-up."""
    ask()
    gc.collect()
    for _ in range(REVIEWS):
        ask()
    return gc.collect()


def test_reference_cycle_is_detected() -> None:
    def ask() -> None:
        try:
            int("x")
        except ValueError as error:
            kept = error
            assert str(kept)

    assert garbage_of(ask) >= REVIEWS


FAILING = "object.metadata.nosuch == 'x'"
EXPRESSIONS = [
    FAILING,
    f"{FAILING} && true",
    f"{FAILING} && false",
    f"{FAILING} || false",
    f"{FAILING} || true",
    f"{FAILING} && object.metadata.other == 'x' && 1/0 == 1",
    f"({FAILING} || false) && (1/0 == 1 || false)",
    "object.spec.containers.all(c, c.nosuch == 'x')",
    "object.spec.containers.exists(c, c.nosuch == 'x')",
    "object.spec.containers.exists(c, c.nosuch == 'x' || c.image == 'x')",
    "object.spec.containers.exists_one(c, c.nosuch == 'x')",
    "object.spec.containers.filter(c, c.nosuch == 'x').size() > 0",
    "object.spec.containers.map(c, c.nosuch).size() > 0",
    "int('x') == 1 && true",
    "duration('x') > duration('1s') || false",
    "dyn(1) && true",
    "[dyn(1)].all(one, one)",
    "object.metadata.name.matches('[') && true",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_failing_expressions(expression: str, tmp_path: Path) -> None:
    bench = Bench(cluster_policy(cel(expression)))
    assert garbage_of(lambda: bench.ask(pod())) == 0
    documents = policy(
        "p",
        {"expression": expression},
        variables=[{"name": "x", "expression": expression}],
    )
    server = Server(compiled(documents), tmp_path)
    assert garbage_of(lambda: server.ask("/vpol/p")) == 0
    inside = {"expression": "variables.x && true", "messageExpression": FAILING}
    documents["spec"]["validations"] = [inside]
    server = Server(compiled(documents), tmp_path)
    assert garbage_of(lambda: server.ask("/vpol/p")) == 0


RULES = {
    "pattern": validate("pattern: {metadata: {labels: {app: '?*'}}}"),
    "any pattern": validate(
        "anyPattern: [{metadata: {labels: {a: b}}}, {metadata: {labels: {c: d}}}]"
    ),
    "no such key": validate(DENY.replace("KEY", "request.object.spec.a.b.c")),
    "a wrong type": validate(DENY.replace("KEY", "to_number(request.object) | abs(@)")),
    "no ConfigMap": "context: [{name: x, configMap: {name: x, namespace: default}}], "
    + validate(DENY.replace("KEY", "x.data.x")),
    "a precondition": "preconditions: {all: [{key: '{{ abs(`[]`) }}', operator: Equals,"
    " value: 1}]}, " + validate("pattern: {metadata: {name: x}}"),
    "foreach": validate(
        "foreach: [{list: request.object.spec.containers, "
        + DENY.replace("KEY", "element.nosuch")
        + "}]"
    ),
    "pod security": "validate: {podSecurity: {level: restricted, version: latest}}",
    "a call": CALL + validate(DENY.replace("KEY", "x")),
    "a change": LABEL.replace("VALUE", "1"),
    "no change": LABEL.replace("VALUE", "{{ request.object.nosuch }}"),
    "a change after a call": CALL + LABEL.replace("VALUE", "{{ x }}"),
    "a patch that does not fit": "mutate: {patchesJson6902: "
    '"[{op: remove, path: /spec/nosuch/x}]"}',
}
FAULTS = {"unavailable": unavailable, "defect": ValueError}


@pytest.mark.parametrize("path", [b"/validate", b"/mutate"])
@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", RULES)
def test_failing_rules(rule: str, fault: str, failure_policy: str, path: bytes) -> None:
    policies = [
        cluster_policy(text, name=name, failure_policy=failure_policy)
        for name, text in {
            "first": RULES["a change"],
            "second": RULES[rule],
            "third": RULES["pattern"],
        }.items()
    ]
    data = ClusterData(api_calls=_Broken(FAULTS[fault]))
    bench = Bench("---\n".join(policies), cluster_data=data)
    path += f"/{failure_policy.lower()}".encode()
    assert garbage_of(lambda: bench.ask(pod(), path)) == 0
    strange = pod(containers=[{"name": 5, "image": "i"}], hostNetwork="x")
    assert garbage_of(lambda: bench.ask(strange, path)) == 0


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_oversized_patch(failure_policy: str) -> None:
    rule = LABEL.replace("VALUE", "1")
    bench = Bench(cluster_policy(rule, failure_policy=failure_policy))
    path = f"/mutate/{failure_policy.lower()}".encode()
    with patch("kyverno_mp.program.mutation.PATCH_ANSWER_BYTES_MAX", 10):
        assert bench.ask(pod(), path)["allowed"] is (failure_policy == "Ignore")
        assert garbage_of(lambda: bench.ask(pod(), path)) == 0


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_failing_cel_policies(fault: str, failure_policy: str, tmp_path: Path) -> None:
    asks = {"expression": "resource.Get('v1', 'configmaps', 'd', 'x').data.a == 'b'"}
    documents = [
        policy("first", asks, failurePolicy=failure_policy),
        policy("second", failurePolicy=failure_policy),
    ]
    ports = CelPorts(resources=_Broken(FAULTS[fault]))  # type: ignore[arg-type]  # only what is called
    server = Server(compiled(*documents), tmp_path, ports)
    assert garbage_of(lambda: server.ask("/vpol/first/second")) == 0


@pytest.mark.parametrize("path", [b"/validate/fail", b"/validate/ignore", b"/mutate"])
def test_late_reviews(path: bytes) -> None:
    now_ns = 0

    def slow_ns() -> int:
        nonlocal now_ns
        now_ns += 3_000_000
        return now_ns

    for rule in RULES.values():
        bench = Bench(
            "---\n".join(
                cluster_policy(rule, name=f"p{number}", failure_policy=policy)
                for number, policy in enumerate(["Ignore", "Fail"] * 4)
            ),
            monotonic_ns=slow_ns,
            timeout_s=0.02,
        )
        assert garbage_of(lambda: bench.ask(pod(), path)) == 0  # noqa: B023 - called here


class _Lane:
    """Runs reviews that leave the event loop at once, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def run(
        self, work: Callable[[Any], bytes], _deadline_ns: int, *_others: object
    ) -> bytes:
        self.count += 1
        return work(None)


@pytest.mark.parametrize("path", [b"/validate", b"/mutate"])
@pytest.mark.parametrize("rule", RULES)
def test_reviews_that_leave_the_event_loop(rule: str, path: bytes) -> None:
    """At each reading of the clock, the slice can be over: a review has up to 25."""
    over_at, readings = 0, 0

    def jumping_ns() -> int:
        nonlocal readings
        readings += 1
        return 10**12 + readings + (10**9 if readings > over_at else 0)

    lane = _Lane()
    policies = "---\n".join(
        cluster_policy(RULES[one], name=f"p{number}")
        for number, one in enumerate([rule, "pattern", "pod security"] * 2)
    )
    bench = Bench(policies, monotonic_ns=jumping_ns, long_lane=lane)
    many = pod(containers=[{"name": f"c{n}", "image": "i"} for n in range(100)])

    def ask() -> None:
        nonlocal over_at, readings
        for over_at in range(1, 26):  # noqa: B007 - read by the clock
            readings = 0
            bench.ask(many, path + b"/fail")

    assert garbage_of(ask) == 0
    if path == b"/validate" or "mutate:" in RULES[rule]:
        assert lane.count > REVIEWS


WHOLE = json.dumps(review(pod())).encode()
BODIES: dict[str, Any] = {
    "not JSON": b"{",
    "not UTF-8": b'{"a": "\xff"}',
    "cut": WHOLE[:-5],
    "no request": b'{"request": 1}',
    "deep": b"[" * 600 + b"]" * 600,
    "no object": json.dumps(review("x")).encode(),
    "no text": json.dumps(review({"kind": "Pod", "metadata": {"name": 5}})).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_reviews(name: str) -> None:
    bench = Bench(cluster_policy(RULES["pattern"]))

    def ask() -> None:
        with contextlib.suppress(HttpError):
            bench.post(BODIES[name])

    assert garbage_of(ask) == 0
