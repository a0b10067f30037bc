"""A rule that cannot be evaluated yet names the missing capability."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.cluster_policy import Rule


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ({"validate": {"pattern": {}}}, ""),
        ({"mutate": {"patchStrategicMerge": {"spec": {}}}}, ""),
        ({"generate": {"kind": "ConfigMap"}}, ""),
        ({"verifyImages": [{}]}, "verifyImages"),
        ({"validate": {"cel": {}}}, ""),
        ({"validate": {"manifests": {"attestors": [{}]}}}, "validate.manifests"),
    ],
)
def test_rule(body: dict[str, Any], missing: str) -> None:
    rule = msgspec.convert({"name": "r", "match": {}, **body}, Rule)
    assert missing_capability(rule) == missing
