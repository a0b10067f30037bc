"""A namespaced policy has no string that fills the memory of every worker.

A failure means: a tenant stores messages of a megabyte, or an administrator may not.
"""

import copy
from typing import Any

import pytest

from tests.unit.webhook.review.test_policy_author import (
    ALL,
    Cluster,
    cleanup,
    in_cel,
    legacy,
    review,
)

Json = Any
LIMIT = 64 * 1024
LONG = "ä" * (LIMIT // 2) + "x"
RULE = "spec.rules[0].validate"


def validate(**fields: Json) -> Json:
    return legacy({"validate": {"message": "m", **fields}})


PLACES: dict[str, tuple[Json, str]] = {
    "message": (validate(message=LONG, deny={}), f"{RULE}.message (rule r)"),
    "pattern": (
        validate(pattern={"metadata": {"labels": {"a": LONG}}}),
        f"{RULE}.pattern.metadata.labels.a (rule r)",
    ),
    "key of a pattern": (
        validate(pattern={"metadata": {"labels": {LONG: "a"}}}),
        f"{RULE}.pattern.metadata.labels (rule r)",
    ),
    "list": (
        validate(anyPattern=[{"kind": "x"}, {"kind": LONG}]),
        f"{RULE}.anyPattern[1].kind (rule r)",
    ),
    "CEL": (
        in_cel(
            "ValidatingPolicy", validations=[{"expression": "true", "message": LONG}]
        ),
        "spec.validations[0].message",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_long_text_is_rejected_with_its_path(name: str) -> None:
    raw, path = PLACES[name]
    reason = review(raw, Cluster([ALL]))
    assert reason.startswith(f"{path}: ")
    assert "64 KiB" in reason
    assert "[policy.long_text]" in reason


def test_text_at_the_limit_is_accepted() -> None:
    raw = validate(message="ä" * (LIMIT // 2), deny={})
    assert "long_text" not in review(raw, Cluster([ALL]))
    assert "long_text" not in review(cleanup("ConfigMap"), Cluster([ALL]))


def test_administrators_have_no_such_limit() -> None:
    raw = validate(message=LONG, deny={})
    raw["kind"] = "ClusterPolicy"
    del raw["metadata"]["namespace"]
    assert "long_text" not in review(raw, Cluster([ALL]))


def test_stored_policy_can_still_get_labels() -> None:
    """Controllers of other programs write metadata; only new content is checked."""
    old = validate(message=LONG, deny={})
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"team": "a"}
    assert "long_text" not in review(new, Cluster([ALL]), old)
    new["spec"]["rules"][0]["name"] = "other"
    assert "long_text" in review(new, Cluster([ALL]), old)


def test_content_of_generated_objects_is_not_limited() -> None:
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "made",
        "namespace": "team",
        "data": {"data": {"a": LONG}},
    }
    assert "long_text" not in review(legacy({"generate": made}), Cluster([ALL]))
