"""A rule that cannot be evaluated yet says what it lacks."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.policy.capabilities import missing_capability, missing_policy_capability
from kyverno_mp.policy.cluster_policy import Rule, Spec


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ({"validate": {"pattern": {}}}, ""),
        ({"mutate": {"patchStrategicMerge": {"spec": {}}}}, ""),
        ({"generate": {"kind": "ConfigMap"}}, ""),
        ({"verifyImages": [{}]}, "verifyImages"),
        ({"validate": {"cel": {}}}, "validate.cel"),
        ({"validate": {"manifests": {"attestors": [{}]}}}, "validate.manifests"),
        (
            {
                "validate": {"pattern": {}},
                "celPreconditions": [{"name": "a", "expression": "b"}],
            },
            "celPreconditions",
        ),
    ],
)
def test_rule(body: dict[str, Any], missing: str) -> None:
    rule = msgspec.convert({"name": "r", "match": {}, **body}, Rule)
    assert missing_capability(rule) == missing


def test_policy() -> None:
    conditions = [{"name": "a", "expression": "true"}]
    raw = {"webhookConfiguration": {"matchConditions": conditions}}
    assert missing_policy_capability(msgspec.convert(raw, Spec)) == "matchConditions"
    assert missing_policy_capability(Spec()) == ""
