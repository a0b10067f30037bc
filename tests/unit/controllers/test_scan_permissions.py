"""Missing scan permissions appear in the status of a ValidatingPolicy.

A failure means: a policy is Ready although no report will ever be written for it.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.policy_status import InForce, PolicyStatuses
from kyverno_mp.controllers.scan_permissions import scan_permissions
from kyverno_mp.controllers.webhook_config.cel_documents import DecodedCelPolicies
from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.limits import SCAN_PERMISSION_RESOURCES_MAX
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.ports import PermissionTarget
from tests.unit.kube.fake_api import running

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ACCOUNT = "system:serviceaccount:kyverno:scans"


class Granted:
    """Permissions of ``account``, as granted pairs (verb, plural)."""

    def __init__(self, granted: Iterable[tuple[str, str]] = ()) -> None:
        self._granted = frozenset(granted)
        self.asked: list[tuple[str, str]] = []

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        assert account == ACCOUNT
        self.asked.append((verb, target.resource.plural))
        return (verb, target.resource.plural) in self._granted


class Forbidden:
    """An API server that allows no permission checks."""

    def allows(self, _account: str, _verb: str, _target: PermissionTarget) -> bool:
        raise KubeRefused("kube.forbidden", "may not ask")


def raw(*resources: str, group: str = "apps") -> dict[str, Any]:
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": list(resources),
    }
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
        },
    }


def decoded(document: dict[str, Any]) -> AnyServedPolicy:
    (found,) = DecodedCelPolicies().decode([json.dumps(document).encode()])
    return found


def test_missing_permissions_are_named_like_upstreams() -> None:
    missing = scan_permissions(Granted({("list", "widgets")}), ACCOUNT)
    assert missing(decoded(raw("widgets"))) == [
        "get apps/v1, Resource=widgets: ",
        "watch apps/v1, Resource=widgets: ",
    ]
    assert missing(decoded(raw("pods/exec", group="")))[0] == (
        "get /v1, Resource=pods/exec: "
    )


def test_unknown_account_lacks_nothing() -> None:
    granted = Granted()
    assert not scan_permissions(granted, "")(decoded(raw("widgets")))
    assert granted.asked == []


def test_missing_permission_to_ask_is_reported() -> None:
    found = scan_permissions(Forbidden(), ACCOUNT)(decoded(raw("widgets")))
    assert list(found) == ["may not ask"] * 3


def test_resource_checks_of_a_policy_are_bounded() -> None:
    granted = Granted()
    many = raw(
        *(f"kind{number}" for number in range(2 * SCAN_PERMISSION_RESOURCES_MAX))
    )
    scan_permissions(granted, ACCOUNT)(decoded(many))
    assert len({plural for _, plural in granted.asked}) == SCAN_PERMISSION_RESOURCES_MAX


@pytest.mark.parametrize(
    ("missing", "value", "message"),
    [
        ((), "True", "Policy is ready for reporting."),
        (
            ("get a: ",),
            "False",
            "Policy is not ready for reporting, missing permissions: get a: .",
        ),
    ],
)
def test_scanning_policy_without_permissions_is_not_ready(
    missing: tuple[str, ...], value: str, message: str
) -> None:
    status = cel_status_of(
        decoded(raw("widgets")), {}, NOW, ready=True, message="", missing=missing
    )
    told = status["conditionStatus"]
    by_type = {one["type"]: one for one in told["conditions"]}
    found = by_type["RBACPermissionsGranted"]
    assert (found["status"], found["message"]) == (value, message)
    assert by_type["WebhookConfigured"]["status"] == "True"
    assert told["ready"] is (value == "True")


def test_long_list_of_permissions_is_truncated() -> None:
    missing = ["x" * 500] * 10
    status = cel_status_of(
        decoded(raw("widgets")), {}, NOW, ready=True, message="", missing=missing
    )
    found = status["conditionStatus"]["conditions"][1]["message"]
    assert len(found) == 1024


def test_permissions_are_checked_when_a_status_is_written() -> None:
    with running() as api:
        path = "/apis/policies.kyverno.io/v1beta1/validatingpolicies/p"
        api.put(path, **raw("widgets"))
        granted = Granted()
        missing = scan_permissions(granted, ACCOUNT)
        statuses = PolicyStatuses(Objects(api.client()), missing)
        served = {("ValidatingPolicy", "", "p"): InForce(ready=True)}
        for _ in range(2):
            assert statuses.write([decoded(raw("widgets"))], served, NOW).known
        assert [verb for verb, _ in granted.asked] == ["get", "list", "watch"]
        (stored,) = api.objects.values()
        assert stored["status"]["conditionStatus"]["ready"] is False
