"""No value of a Secret is in the status, an Event or the log of a clean-up run."""

import logging
from typing import Any

import pytest

from kyverno_mp.program.secrecy import WITHHELD
from tests.unit.cleanup.cluster import (
    Recorded,
    condition_of,
    config_map,
    controller,
    dependencies_of,
    names,
    policy,
    serve_kinds,
)
from tests.unit.kube.fake_api import FakeApi
from tests.unit.queues.turned_clock import TurnedClock

Json = Any
_VALUE = "hunter2-is-the-password"
_SECRETS = {"any": [{"resources": {"kinds": ["Secret"]}}]}
_BY_WEBHOOK = f'admission webhook "w" denied the request: data.key is {_VALUE}'
_BY_RBAC = 'secrets "one" is forbidden: User "u" cannot delete resource "secrets"'


def _run(api: FakeApi, **spec: Json) -> Recorded:
    """Run a policy on Secrets once."""
    serve_kinds(api)
    policy(api, match=_SECRETS, **spec)
    config_map(api, "one", plural="secrets", data={"key": _VALUE})
    clock, recorded = TurnedClock(), Recorded()
    clock.turn(61)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
    assert names(api, "secrets") == ["a/one"]
    return recorded


@pytest.mark.parametrize(
    "key",
    [
        "{{ time_parse('1', target.data.key) }}",
        "{{ target.data.key | semver_compare(@, '>1') }}",
        "{{ parse_json(target.data.key) }}",
    ],
)
def test_failed_conditions(
    api: FakeApi, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """Otherwise, a user who can read policies but no Secrets could read a Secret."""
    caplog.set_level(logging.DEBUG)
    failing = [{"key": key, "operator": "Equals", "value": "1"}]
    recorded = _run(api, conditions={"all": failing})
    message = condition_of(api)["message"]
    assert "Secret/a/one cannot be decided: " in message
    assert message.endswith(WITHHELD)
    assert _VALUE not in message
    assert _VALUE not in str(recorded.events)
    assert _VALUE not in caplog.text


@pytest.mark.parametrize("code", [400, 403, 422])
def test_deletions_denied_by_webhooks(
    api: FakeApi, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """A webhook's denial may quote the object."""
    caplog.set_level(logging.DEBUG)
    refusal = {"code": code, "reason": "Refused", "message": _BY_WEBHOOK}
    api.fault("DELETE .*/secrets/one", refusal)
    recorded = _run(api)
    [note] = recorded.notes()
    assert note.endswith(WITHHELD)
    assert _VALUE not in condition_of(api)["message"]
    assert _VALUE not in caplog.text


def test_missing_permissions_are_named(api: FakeApi) -> None:
    """Otherwise, the operator would not know which permission to grant."""
    refusal = {"code": 403, "reason": "Forbidden", "message": _BY_RBAC}
    api.fault("DELETE .*/secrets/one", refusal)
    [note] = _run(api).notes()
    assert _BY_RBAC in note
