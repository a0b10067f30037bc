"""A query of CEL's authorizer is sent as a SubjectAccessReview."""

from typing import Any

import pytest

from kyverno_mp.egress.authority import spec_of
from kyverno_mp.program.ports import AccessQuery


@pytest.mark.parametrize(
    ("attributes", "spec"),
    [
        (
            {"path": "/metrics", "verb": "get"},
            {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
        ),
        (
            {"group": "", "resource": "pods", "verb": "list", "fieldSelector": "a=b"},
            {
                "resourceAttributes": {
                    "group": "",
                    "resource": "pods",
                    "verb": "list",
                    "fieldSelector": {"rawSelector": "a=b"},
                }
            },
        ),
    ],
)
def test_spec(attributes: dict[str, str], spec: dict[str, Any]) -> None:
    asked = AccessQuery(
        user="alice", groups=("devs",), extra={"k": ["v"]}, attributes=attributes
    )
    assert spec_of(asked) == {
        "user": "alice",
        "groups": ["devs"],
        "extra": {"k": ["v"]},
        **spec,
    }
