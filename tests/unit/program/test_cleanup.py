"""Which objects a clean-up policy would delete."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.cleanup import compile_cleanup
from kyverno_mp.policy.documents.cleanup_policy import (
    CleanupPolicy,
    ClusterCleanupPolicy,
)
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.cleanup import LinkedCleanup
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request

CLOCK = Clock(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"old": "yes"}},
    "spec": {"containers": [{"name": "c", "image": "nginx:1.25"}]},
}


def judge(kind: str = "ClusterCleanupPolicy", **spec: Any) -> tuple[str, str]:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    document = decode(
        {
            "apiVersion": "kyverno.io/v2",
            "kind": kind,
            "metadata": {"name": "c", "namespace": "other"},
            "spec": {"schedule": "* * * * *", "match": match, **spec},
        }
    )
    assert isinstance(document, CleanupPolicy | ClusterCleanupPolicy)
    request = Request(kind="Pod", namespace="shop", object=POD)
    context = Engine(OFFLINE, CLOCK).open(request)
    found = LinkedCleanup(compile_cleanup(document)).evaluate(context)
    assert (found.rule, found.rule_type) == ("c", "Deletion")
    return found.status, found.message


def conditions(key: str, value: str) -> dict[str, Any]:
    return {"all": [{"key": key, "operator": "Equals", "value": value}]}


YES = ("pass", "resource matched")
NO = ("fail", "resource did not match")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, YES),
        ({"kind": "CleanupPolicy"}, NO),
        ({"match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}}, NO),
        ({"exclude": {"any": [{"resources": {"names": ["web"]}}]}}, NO),
        ({"exclude": {"any": [{"resources": {"names": ["api"]}}]}}, YES),
        ({"conditions": conditions("{{ target.metadata.labels.old }}", "yes")}, YES),
        ({"conditions": conditions("{{ target.metadata.labels.old }}", "no")}, NO),
        ({"conditions": conditions("{{ request.namespace }}", "shop")}, YES),
        ({"conditions": conditions("{{ images.containers.c.tag }}", "1.25")}, YES),
    ],
)
def test_verdict(spec: dict[str, Any], expected: tuple[str, str]) -> None:
    assert judge(**spec) == expected


def test_context_is_loaded() -> None:
    entry = {"name": "wanted", "variable": {"value": "yes"}}
    held = conditions("{{ target.metadata.labels.old }}", "{{ wanted }}")
    assert judge(context=[entry], conditions=held) == YES


def test_an_undecidable_condition_is_an_error() -> None:
    status, message = judge(conditions=conditions("{{ target.none.at.all }}", "x"))
    assert status == "error"
    assert message
