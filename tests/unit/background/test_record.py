"""The ConfigMap of the pool has room for the policies of all tenants."""

from typing import Any

from kyverno_mp.background.register import RuleKinds, RuleRegister
from kyverno_mp.errors import KubeRefused
from tests.unit.background.world import (
    CONFIG_MAPS,
    new_cluster,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_RECORD = f"{CONFIG_MAPS.format('kyverno')}/kyverno-mp-background"
_CONFIG_MAP_BYTES_MAX = 1024 * 1024


def _rules(number: int) -> RuleKinds:
    """Return as many rules as a policy may have, with the longest names."""
    return {
        f"{number}-{one}-".ljust(63, "x"): [("v1", "ConfigMap")] for one in range(1000)
    }


def _is_rejected(register: RuleRegister, number: int) -> bool:
    try:
        register.record(f"evil/p{number}", _rules(number))
    except KubeRefused as error:
        return error.code == "background.record_full"
    return False


def _fill(register: RuleRegister) -> int:
    """Record policies of one namespace until one is rejected; return their number."""
    return next(number for number in range(20) if _is_rejected(register, number))


def test_a_tenant_with_many_rules(api: FakeApi) -> None:
    """Others can still record their rules, and generate."""
    new_cluster(api)
    with term(api) as one:
        one.settle()
        register = one.background.register
        filled = _fill(register)
        assert filled > 3
        for number in range(50):
            register.record(f"n{number}/p", {"r": [("v1", "ConfigMap")]})
        policy(api, rule(data={"data": {"a": "b"}}))
        one.settle()
        request(api, trigger(api))
        one.settle()
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-t")
        assert requests_left(api) == []
        found = stored(api, _RECORD)
        assert found is not None
        size = sum(map(len, found["data"].values()))
        # The record of GeneratingPolicies, in the same ConfigMap, may be as large.
        assert size < _CONFIG_MAP_BYTES_MAX / 2
        assert "p" in register.policies()


def test_a_full_record_shrinks(api: FakeApi) -> None:
    """Rules can always be removed, and others recorded afterwards."""
    new_cluster(api)
    with term(api) as one:
        register = one.background.register
        filled = _fill(register)
        register.record("evil/p0", {"r": None})
        register.record("evil/p1", {})
        register.record(f"evil/p{filled}", _rules(filled))
        register.record("evil/p1", _rules(1))
        assert _is_rejected(register, 0)
        assert register.of("evil/p0") == {"r": None}
