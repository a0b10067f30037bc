"""PolicyExceptions in the engine.

A failure means: an exception covers too much.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import FAIL, SKIP

POLICY = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "need-team"},
    "spec": {
        "rules": [
            {
                "name": "team",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {
                    "message": "a team is needed",
                    "pattern": {"metadata": {"labels": {"team": "?*"}}},
                },
            }
        ]
    },
}
EXCEPTION: dict[str, Any] = {
    "apiVersion": "kyverno.io/v2",
    "kind": "PolicyException",
    "metadata": {"name": "legacy", "namespace": "ops"},
    "spec": {
        "match": {"any": [{"resources": {"kinds": ["Pod"], "names": ["old-*"]}}]},
        "exceptions": [{"policyName": "need-team", "ruleNames": ["team"]}],
    },
}

FAILURE = (
    "validation error: a team is needed. rule team failed at path /metadata/labels/"
)


@pytest.mark.parametrize(
    ("name", "known", "status", "message"),
    [
        # docs/behaviour/engine 8.7: no space before the first key.
        ("old-a", True, SKIP, "rule is skipped due to policy exceptionsops/legacy"),
        (
            "new-a",
            True,
            FAIL,
            FAILURE,
        ),
        # docs/behaviour/engine 8.7: without the namespace's labels, no exception
        # matches.
        (
            "old-a",
            False,
            FAIL,
            FAILURE,
        ),
    ],
)
def test_exception_covers_the_named_rules(
    name: str,
    known: bool,  # noqa: FBT001 - a column of the table
    status: str,
    message: str,
) -> None:
    policy, exception = decode(POLICY), decode(EXCEPTION)
    assert isinstance(policy, ClusterPolicy)
    assert isinstance(exception, PolicyException)
    linked = link_policy(compile_policy(policy, [exception]))
    engine = Engine(
        OFFLINE, Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
    )
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    request = Request(kind="Pod", name=name, object=pod, namespace_known=known)
    found = engine.explain(linked, engine.open(request)).results
    assert [(status, message)] == [(r.status, r.message) for r in found]


def test_exception_that_names_a_policy_twice_is_reported_once() -> None:
    named = EXCEPTION["spec"]["exceptions"] * 2
    raw = {**EXCEPTION, "spec": {**EXCEPTION["spec"], "exceptions": named}}
    policy, exception = decode(POLICY), decode(raw)
    assert isinstance(policy, ClusterPolicy)
    assert isinstance(exception, PolicyException)
    rule = compile_policy(policy, [exception]).rules[0]
    assert [one.key for one in rule.exceptions] == ["ops/legacy"]


@pytest.mark.parametrize(
    ("annotations", "status"),
    [
        ({"kyverno-mp.io/reason": "until the vendor mends it"}, SKIP),
        ({"kyverno-mp.io/expires": "2026-01-01T00:00:01Z"}, SKIP),
        ({"kyverno-mp.io/expires": "2026-01-01T00:00:00Z"}, FAIL),
        ({"kyverno-mp.io/expires": "2025-01-01T00:00:00Z"}, FAIL),
        ({"kyverno-mp.io/expires": "tomorrow"}, FAIL),
        ({"kyverno-mp.io/expire": "2027-01-01T00:00:00Z"}, FAIL),
    ],
)
@pytest.mark.parametrize("unusable", [None, {}])
def test_an_expired_exception_exempts_nothing(
    annotations: dict[str, str], status: str, unusable: dict[str, str] | None
) -> None:
    metadata = {**EXCEPTION["metadata"], "annotations": annotations}
    policy, exception = decode(POLICY), decode({**EXCEPTION, "metadata": metadata})
    assert isinstance(policy, ClusterPolicy)
    assert isinstance(exception, PolicyException)
    found = None if unusable is None else dict(unusable)
    linked = link_policy(compile_policy(policy, [exception], unusable=found))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    engine = Engine(OFFLINE, Clock(now=lambda: now, monotonic_ns=lambda: 0))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old-a"}}
    request = Request(kind="Pod", name="old-a", object=pod, namespace_known=True)
    for _ in range(2):
        (result,) = engine.explain(linked, engine.open(request)).results
        assert result.status == status
    if found is not None:
        invalid = list(exception.expiry_problems())
        assert list(found) == ["ops/legacy"] * bool(invalid)


def test_the_clock_is_read_only_for_matching_exceptions_that_expire() -> None:
    """Otherwise each rule with exceptions would pay for those of other teams."""
    reads = []

    def now() -> datetime:
        reads.append(1)
        return datetime(2026, 1, 1, tzinfo=UTC)

    engine = Engine(OFFLINE, Clock(now=now, monotonic_ns=lambda: 0))
    counts = []
    for name, annotations in (
        ("old-a", {}),
        ("new-a", {"kyverno-mp.io/expires": "2027-01-01T00:00:00Z"}),
        ("old-a", {"kyverno-mp.io/expires": "2027-01-01T00:00:00Z"}),
    ):
        metadata = {**EXCEPTION["metadata"], "annotations": annotations}
        policy, exception = decode(POLICY), decode({**EXCEPTION, "metadata": metadata})
        assert isinstance(policy, ClusterPolicy)
        assert isinstance(exception, PolicyException)
        linked = link_policy(compile_policy(policy, [exception]))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        request = Request(kind="Pod", name=name, object=pod, namespace_known=True)
        before = len(reads)
        engine.explain(linked, engine.open(request))
        counts.append(len(reads) - before)
    assert counts == [0, 0, 1]
