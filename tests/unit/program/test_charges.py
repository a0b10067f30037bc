"""Large objects are charged, and evaluated like small ones."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.limits import MESSAGE_CHARACTERS_MAX
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.plans.batch import Batch
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS

LARGE = 10_000_000
ENGINE = Engine(
    OFFLINE, Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0)
)


def batch(validate: dict[str, Any], **resources: Any) -> Batch:
    """Return one enforced rule, ready to run."""
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"], **resources}}]},
        "validate": {"message": "m", **validate},
    }
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"validationFailureAction": "Enforce", "rules": [rule]},
    }
    policy = decode(raw)
    assert isinstance(policy, ClusterPolicy)
    linked = link_policy(compile_policy(policy, []))
    return Batch([(linked.ir, linked.rules, "Enforce")])


def request(resource: dict[str, Any], size: int = 0) -> Request:
    whole = {"apiVersion": "v1", "kind": "ConfigMap", **resource}
    return Request(kind="ConfigMap", object=whole, size=size)


def said(of: Batch, asked: Request) -> list[tuple[str, str]]:
    """Return (status, message) of each result; for a pass only the name."""
    response = of.run(ENGINE, asked)[0]
    found = [(one.status, one.message) for one in response.results]
    return found or [(PASS, name) for name in response.passed]


PATTERNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"data": {"a": "b*"}}, {"data": {"a": "bc"}}),
    ({"data": {"a": "b*"}}, {"data": {"a": "cb"}}),
    ({"x": [{"=(a)": "<5"}]}, {"x": [{"a": 4}, {}, {"a": 6}]}),
    ({"x": [{"(a)": "1", "b": "2"}]}, {"x": [{"a": "1", "b": "3"}]}),
    ({"^(x)": [{"a": "1"}]}, {"x": [{"a": "2"}]}),
]


@pytest.mark.parametrize(("pattern", "resource"), PATTERNS)
@pytest.mark.parametrize("kind", ["pattern", "anyPattern"])
def test_large_reviews_are_evaluated_like_small_ones(
    pattern: dict[str, Any], resource: dict[str, Any], kind: str
) -> None:
    """Programs with and without a charge for each value give the same results."""
    of = batch({kind: pattern if kind == "pattern" else [pattern]})
    small, large = request(resource), request(resource, LARGE)
    assert said(of, large) == said(of, small)


def test_pattern_over_a_long_list_exhausts_the_budget() -> None:
    """No request can keep a worker busy with elements that are not charged."""
    of = batch({"pattern": {"x": [{f"=(k{n})": "a" for n in range(100)}]}})
    large = request({"x": [{} for _ in range(100_000)]}, LARGE)
    assert said(of, large) == [(ERROR, "expression exceeded its step budget")]


def _of_volumes(count: int) -> dict[str, Any]:
    path = {"name": "v", "hostPath": {"path": "/"}}
    return {"volumes": [path] * count}


def _of_sysctls(count: int) -> dict[str, Any]:
    return {"securityContext": {"sysctls": [{"name": "n", "value": "1"}] * count}}


def _of_capabilities(count: int) -> dict[str, Any]:
    added = {"capabilities": {"add": [f"X{n}" for n in range(count)]}}
    return {"containers": [{"name": "c", "image": "a", "securityContext": added}]}


@pytest.mark.parametrize("spec_of", [_of_volumes, _of_sysctls, _of_capabilities])
def test_very_large_pod_exhausts_the_budget(
    spec_of: Callable[[int], dict[str, Any]],
) -> None:
    """Violations of a control are reported one by one, in ten microseconds each."""
    of = batch(
        {"podSecurity": {"level": "baseline", "version": "latest"}}, kinds=["Pod"]
    )

    def evaluated(count: int) -> str:
        spec = {"containers": [{"name": "c", "image": "a"}], **spec_of(count)}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
        asked = Request(kind="Pod", version="v1", object=pod, size=LARGE)
        ((status, message),) = said(of, asked)
        return message if status == ERROR else status

    assert evaluated(500) == FAIL
    assert evaluated(500_000) == "expression exceeded its step budget"


def test_costly_match_is_an_error() -> None:
    """A rule must not be skipped if it is unknown whether it matches."""
    annotations = {f"*{n}?*": "*a?" for n in range(50)}
    of = batch({"pattern": {"data": {"a": "b"}}}, annotations=annotations)
    many = {f"key{n}": "value" for n in range(50_000)}
    asked = request({"metadata": {"annotations": many}, "data": {"a": "c"}}, LARGE)
    ((status, message),) = said(of, asked)
    assert (status, message[:28]) == (ERROR, "not evaluated (expr.steps): ")
    few = {"metadata": {"annotations": {"a": "b"}}, "data": {"a": "c"}}
    assert list(of.run(ENGINE, request(few))) == []


def test_messages_are_truncated() -> None:
    """A message can quote whole objects, once per rule."""
    text = "x" * MESSAGE_CHARACTERS_MAX
    assert cut(text) == text
    assert cut(text + "yyy") == f"{text} ... (3 characters omitted)"
    of = batch(
        {"pattern": {"data": {"a": "b"}}, "message": "{{ request.object.data.a }}"}
    )
    long = request({"data": {"a": "c" * 100_000}})
    found = said(of, replace(long, review_request={"object": long.object}))
    assert all(len(message) < MESSAGE_CHARACTERS_MAX + 100 for _, message in found)
    assert found[0][0] == FAIL
