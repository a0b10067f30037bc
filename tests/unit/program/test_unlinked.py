"""A policy that cannot be linked is an error, and an internal error does not stay.

A failure means: one error inside Python makes a policy deny every request, or allow
them, until the next change of any policy; or every review of a broken policy takes as
long as linking it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.limits import RELINKING_PAUSE_NS, RELINKING_PAUSE_NS_MAX
from kyverno_mp.program.bodies import deny
from kyverno_mp.program.cel_policies import generating_plan
from kyverno_mp.program.cel_sources import PlanContext
from kyverno_mp.program.context import cel_scope
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.images import rule as images_rule
from kyverno_mp.program.mutate import rule as mutate_rule
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
    PolicyKind,
)
from kyverno_mp.webhook.attach.followed import Linked, link
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.fuzz.bench import Bench, Recorded, pod
from tests.unit.webhook.attach.test_garbage import cluster_policy
from tests.unit.webhook.cel.test_cel_policies import asked, compiled
from tests.unit.webhook.stub import StubEvaluate

REVIEWS = 1000
DENIES = """validate: {message: denied, deny: {conditions: {all: [{
    key: '{{ request.object.spec.hostNetwork || `false` }}',
    operator: Equals, value: true}]}}}"""
LABELS = "mutate: {patchStrategicMerge: {metadata: {labels: {x: v}}}}"
VERIFIES = """verifyImages: [{imageReferences: ['*'], attestors: [{entries: [{
    keyless: {subject: a, issuer: b, rekor: {url: "https://r.example.org"}}}]}]}]"""


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now


class Failing:
    """Ends in an error the first ``failures`` times, then does what it replaces."""

    def __init__(
        self, real: Callable[..., Any], failures: int, error: type[Exception]
    ) -> None:
        self.real, self.failures, self.error, self.count = real, failures, error, 0

    def __call__(self, *values: Any, **named: Any) -> Any:
        self.count += 1
        if self.count <= self.failures:
            if self.error is ExpressionInvalid:
                raise ExpressionInvalid("test.link", "m")
            raise self.error("half-built tuple")
        return self.real(*values, **named)


@contextmanager
def failing(
    module: Any, name: str, failures: int, error: type[Exception] = SystemError
) -> Iterator[Failing]:
    broken = Failing(getattr(module, name), failures, error)
    with patch.object(module, name, broken):
        yield broken


def bench(failure_policy: str = "Fail", clock: Time | None = None) -> Bench:
    text = cluster_policy(DENIES, failure_policy=failure_policy)
    return Bench(text, monotonic_ns=clock or Time())


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_a_single_internal_error_changes_no_answer(failure_policy: str) -> None:
    server, path = bench(failure_policy), f"/validate/{failure_policy.lower()}".encode()
    with failing(deny, "link_conditions", 1) as linking:
        assert server.ask(pod(), path)["allowed"]
        assert not server.ask(pod(hostNetwork=True), path)["allowed"]
        assert server.ask(pod(), path)["allowed"]
    assert linking.count == 2
    assert not server.records.errors


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_failure_policy_decides_until_the_rule_is_linked(failure_policy: str) -> None:
    clock = Time()
    server = bench(failure_policy, clock)
    path = f"/validate/{failure_policy.lower()}".encode()
    with failing(deny, "link_conditions", 2):
        for code in ("webhook.defect", "program.unlinked"):
            answer = server.ask(pod(hostNetwork=True), path)
            assert answer["allowed"] is (failure_policy == "Ignore")
            assert server.records.errors.pop() == code
        clock.now += RELINKING_PAUSE_NS
        assert not server.ask(pod(hostNetwork=True), path)["allowed"]
        assert server.ask(pod(), path)["allowed"]


def test_an_attempt_that_takes_long_is_rare() -> None:
    clock = Time()
    server = bench(clock=clock)

    count = 0

    def link(*_: Any) -> None:
        nonlocal count
        count += 1
        clock.now += 3_000_000_000
        raise SystemError

    with patch.object(deny, "link_conditions", link):
        for _ in range(REVIEWS):
            assert not server.ask(pod())["allowed"]
            clock.now += 1_000_000_000
    # 3 seconds of 100.
    assert count <= 2 + REVIEWS // 90


def test_rule_that_this_version_cannot_evaluate_stays_an_error() -> None:
    clock = Time()
    server = bench(clock=clock)
    with failing(deny, "link_conditions", 9, ExpressionInvalid) as linking:
        for _ in range(3):
            answer = server.ask(pod())
            assert not answer["allowed"]
            assert "not evaluated by this version" in answer["status"]["message"]
            clock.now += RELINKING_PAUSE_NS_MAX
    assert linking.count == 1


@dataclass
class Triggers:
    """Keeps what reviews trigger."""

    keys: list[str] = field(default_factory=list)

    def triggered(self, request: Any, rules: Any) -> None:
        assert request is not None
        self.keys += [rule.policy for rule in rules]

    def changed(self, *_: Any) -> None:
        """Keep nothing."""


class CelServer:
    """A worker's service with policies of one kind in CEL, on a clock of the test."""

    def __init__(
        self, documents: list[dict[str, Any]], kind: PolicyKind, clock: Time
    ) -> None:
        name = kind.segment
        content = PoliciesWriter().encode(
            compiled(*documents, has_background=True).cel.get(name, ()),
            generation=1,
            salt=os.urandom(16),
            segment=name,
        )
        engine = Engine(
            ClusterData(cel=CelPorts()),
            Clock(now=lambda: datetime.now(UTC), monotonic_ns=clock),
        )
        segment = Segment.from_bytes(content, name)
        self.link = partial(link, kind, PlanContext(engine), segment, lambda _key: True)
        self.linked: Linked[Any] = self.link()
        self.records, self.triggers = Recorded(), Triggers()
        self._service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=clock,
                triggers=self.triggers,
            ),
            handlers_of(StubEvaluate(None), cel={kind: lambda: self.linked.planner}),
        )

    def renew(self) -> None:
        """Swap to the next generation, with equal policies."""
        linked = self.link()
        for source, before in zip(linked.sources, self.linked.sources, strict=True):
            source.take_over(before)
        self.linked = linked

    def ask(self, given: dict[str, Any], path: bytes, **changes: Any) -> dict[str, Any]:
        return asked(self._service, path.decode(), object=given, **changes)


def in_cel(kind: str, name: str, failure_policy: str, **spec: Any) -> dict[str, Any]:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            **({"failurePolicy": failure_policy} if failure_policy else {}),
            **spec,
        },
    }


def validating(failure_policy: str, clock: Time) -> CelServer:
    validations = [{"expression": "!has(object.spec.hostNetwork)", "message": "m"}]
    document = in_cel("ValidatingPolicy", "p", failure_policy, validations=validations)
    return CelServer([document], VALIDATING_POLICY, clock)


def mutating(failure_policy: str, clock: Time) -> CelServer:
    expression = "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'x': 'y'}}]"
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    document = in_cel("MutatingPolicy", "p", failure_policy, mutations=[mutation])
    return CelServer([document], MUTATING_POLICY, clock)


def generating(clock: Time) -> CelServer:
    expression = "generator.Apply('default', [{'kind': dyn('ConfigMap')}])"
    generate = [{"expression": expression}]
    document = in_cel("GeneratingPolicy", "p", "", generate=generate)
    return CelServer([document], GENERATING_POLICY, clock)


def images(failure_policy: str, clock: Time) -> CelServer:
    document = in_cel(
        "ImageValidatingPolicy",
        "p",
        failure_policy,
        validationConfigurations={"required": False, "verifyDigest": False},
        matchImageReferences=[{"glob": "other.example.org/*"}],
        attestors=[{"name": "a", "cosign": {"key": {"data": "k"}}}],
        validations=[{"expression": "true", "message": "m"}],
    )
    return CelServer([document], IMAGE_VALIDATING_POLICY, clock)


def rule(*bodies: str) -> Callable[[str, Time], Bench]:
    def make(failure_policy: str, clock: Time) -> Bench:
        text = cluster_policy(*bodies, failure_policy=failure_policy)
        return Bench(text, monotonic_ns=clock)

    return make


def conditioned(failure_policy: str, clock: Time) -> Bench:
    """Return a policy whose matchConditions do not link."""
    text = cluster_policy(DENIES, failure_policy=failure_policy).replace(
        "spec:\n",
        "spec:\n  webhookConfiguration: {matchConditions: ["
        "{name: c, expression: 'object.metadata.name != \"\"'}]}\n",
    )
    return Bench(text, monotonic_ns=clock)


GOOD = pod() | {"metadata": {"name": "x", "namespace": "default"}}
KINDS: dict[str, tuple[Callable[[str, Time], Any], Any, str, str]] = {
    "validate": (rule(DENIES), deny, "link_conditions", "validate"),
    "conditions": (conditioned, cel_scope, "link_expression", "validate"),
    "mutate": (rule(LABELS), mutate_rule, "LinkedPatch", "mutate"),
    "images": (rule(VERIFIES), images_rule, "link_document", "mutate"),
    "vpol": (validating, cel_scope, "link_expression", "vpol/p"),
    "mpol": (mutating, cel_scope, "link_expression", "mpol/p"),
    "ivpol": (images, cel_scope, "link_expression", "ivpol/validate/p"),
}


def path_of(path: str, failure_policy: str) -> bytes:
    if "/" in path:
        return f"/{path}".encode()
    return f"/{path}/{failure_policy.lower()}".encode()


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("kind", KINDS)
def test_attempts_become_rare_and_the_failure_policy_decides(
    kind: str, failure_policy: str
) -> None:
    make, module, name, path = KINDS[kind]
    clock = Time()
    server = make(failure_policy, clock)
    with failing(module, name, 10**9) as linking:
        for _ in range(REVIEWS):
            answer = server.ask(GOOD, path_of(path, failure_policy))
            assert answer["allowed"] is (failure_policy == "Ignore")
            assert "patch" not in answer or kind == "images"
            clock.now += RELINKING_PAUSE_NS
    # 1, 1, 2, 4, 8, 16, 32, 60, 60, ... reviews between two attempts.
    assert linking.count <= 8 + REVIEWS * RELINKING_PAUSE_NS // RELINKING_PAUSE_NS_MAX
    assert set(server.records.errors) == {"webhook.defect", "program.unlinked"}


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"images"}))
def test_a_transient_failure_heals(kind: str) -> None:
    make, module, name, path = KINDS[kind]
    clock = Time()
    server, other = make("Fail", clock), make("Fail", clock)
    wanted = other.ask(GOOD, path_of(path, "Fail"))
    assert wanted["allowed"]
    with failing(module, name, 2):
        assert not server.ask(GOOD, path_of(path, "Fail"))["allowed"]
        clock.now += RELINKING_PAUSE_NS
        for _ in range(2):
            assert server.ask(GOOD, path_of(path, "Fail")) == wanted


@pytest.mark.parametrize("kind", ["vpol", "mpol", "ivpol"])
def test_a_new_generation_links_at_once(kind: str) -> None:
    make, module, name, path = KINDS[kind]
    server = make("Fail", Time())
    assert isinstance(server, CelServer)
    with failing(module, name, 2):
        assert not server.ask(GOOD, path_of(path, "Fail"))["allowed"]
        server.renew()
        assert server.ask(GOOD, path_of(path, "Fail"))["allowed"]


def test_unlinked_trigger_loses_nothing() -> None:
    server = generating(Time())
    with failing(generating_plan, "expressions_of", 10**9):
        for _ in range(2):
            assert server.ask(GOOD, b"/gpol/p")["allowed"]
    assert server.triggers.keys == ["p", "p"]


def test_unlinked_policy_affects_no_other_object() -> None:
    server = validating("Fail", Time())
    resource = {"group": "", "version": "v1", "resource": "configmaps"}
    with failing(cel_scope, "link_expression", 10**9):
        assert server.ask(GOOD, b"/vpol/p", resource=resource)["allowed"]
        assert not server.ask(GOOD, b"/vpol/p")["allowed"]
