"""Only Kyverno can change objects that Kyverno manages (protectManagedResources)."""

import json

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.program.matching.filters import UserExclusions
from kyverno_mp.webhook.configured import Exclusions
from kyverno_mp.webhook.review.protection import REFUSAL, Protection
from tests.unit.webhook.review.test_service import Bench

MANAGED = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "kyverno"}}}
OTHER = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "helm"}}}
OWN = "system:serviceaccount:kv:background"
EMPTIER = "system:serviceaccount:kube-system:namespace-controller"


@pytest.mark.parametrize(
    ("operation", "user", "new", "old", "refused"),
    [
        ("CREATE", "me", MANAGED, None, True),
        ("UPDATE", "me", OTHER, MANAGED, True),
        ("UPDATE", "me", MANAGED, OTHER, True),
        ("DELETE", "me", None, MANAGED, True),
        ("DELETE", EMPTIER, None, MANAGED, False),
        ("UPDATE", EMPTIER, MANAGED, MANAGED, True),
        ("UPDATE", OWN, MANAGED, MANAGED, False),
        ("UPDATE", "system:serviceaccount:kv2:background", MANAGED, OTHER, True),
        ("UPDATE", "me", OTHER, OTHER, False),
        ("UPDATE", "me", {"metadata": {"labels": "x"}}, {"metadata": None}, False),
        ("CONNECT", "me", {}, None, False),
    ],
)
def test_users_that_can_change_protected_objects(
    operation: str,
    user: str,
    new: object,
    old: object,
    refused: bool,  # noqa: FBT001 - a table
) -> None:
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": operation,
        "userInfo": {"username": user},
        "object": new,
        "oldObject": old,
    }
    body = json.dumps({"request": request}).encode()
    assert Protection("kv").refuses(decode(body)) is refused


def test_protection_precedes_the_filters() -> None:
    everything = Exclusions("[*/*,*,*]", UserExclusions())
    parts = {"protection": Protection("kv"), "filters": everything}
    answer = Bench(None, **parts).ask(object=MANAGED)
    assert answer["allowed"] is False
    assert answer["status"]["message"] == REFUSAL
    assert Bench(None, **parts).ask(object=OTHER)["allowed"] is True
