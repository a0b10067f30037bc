"""The policies of a namespace take a share of the time of scans.

A failure means: a tenant whose policy takes a second for each of thousands of objects
delays the reports of all others by hours; or the tenant's results never arrive.
"""

from typing import Any

import pytest

from kyverno_mp.limits import (
    POOL_TENANT_S,
    POOL_TENANT_SHARE,
    POOL_TENANTS_S,
    POOL_TENANTS_SHARE,
)
from kyverno_mp.pool import tenant_time
from kyverno_mp.pool.tenant_time import TenantTime
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_validating_policies import vpol
from tests.unit.reports.world import (
    World,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ns(self) -> int:
        return round(self.now_s * 10**9)


def spend(tenants: TenantTime, clock: Clock, namespace: str, seconds: float) -> None:
    with tenants.charged(namespace):
        clock.now_s += seconds


def test_a_namespace_that_has_used_its_time_gets_a_share() -> None:
    clock = Clock()
    tenants = TenantTime(clock.now_ns)
    spend(tenants, clock, "a", POOL_TENANT_S + 1)
    late = tenants.why_not("a")
    assert late is not None
    assert late.code == "pool.tenant_time"
    assert tenants.why_not("b") is None
    assert tenants.why_not("") is None
    clock.now_s += 0.9 / POOL_TENANT_SHARE
    assert tenants.why_not("a") is not None
    clock.now_s += 0.2 / POOL_TENANT_SHARE
    assert tenants.why_not("a") is None


def test_time_that_is_not_used_does_not_add_up() -> None:
    clock = Clock()
    tenants = TenantTime(clock.now_ns)
    spend(tenants, clock, "a", 1)
    clock.now_s += 10**6
    spend(tenants, clock, "a", POOL_TENANT_S + 1)
    assert tenants.why_not("a") is not None


def test_all_namespaces_share_half_of_the_time() -> None:
    clock = Clock()
    tenants = TenantTime(clock.now_ns)
    for number in range(POOL_TENANTS_S):
        spend(tenants, clock, f"n{number}", 1 / (1 - POOL_TENANTS_SHARE))
        assert tenants.why_not("") is None
    assert tenants.why_not("other") is not None
    spend(tenants, clock, "", 10)
    assert tenants.why_not("other") is None


def test_the_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_time, "POOL_TENANT_NAMESPACES_MAX", 10)
    clock = Clock()
    tenants = TenantTime(clock.now_ns)
    for number in range(100):
        spend(tenants, clock, f"n{number}", 0)
    assert len(tenants._left) == 10


@pytest.mark.parametrize(
    "costly",
    [policy("costly", namespace="a"), vpol("costly", namespace="a")],
    ids=["Policy", "NamespacedValidatingPolicy"],
)
def test_other_results_do_not_wait_for_a_costly_policy(
    costly: Any, api: FakeApi, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.serve(policy("p"), costly)
    given = [pod(api, f"x{number}") for number in range(3)]
    monkeypatch.setattr(tenant_time, "POOL_TENANT_S", 0)
    monkeypatch.setattr(TenantTime, "_share_of", lambda *_: 1e-9)
    with term(api, world) as one:
        one.settle()
        found = [results(report_of(api, raw)) for raw in given]
        assert all(("p", "r", "fail") in rows for rows in found)
        assert sum(map(len, found)) == len(given) + 1
        monkeypatch.setattr(tenant_time, "POOL_TENANT_S", POOL_TENANT_S)
        monkeypatch.setattr(TenantTime, "_share_of", lambda *_: 1e9)
        one.pass_s(10)
        assert {len(results(report_of(api, raw))) for raw in given} == {2}


@pytest.fixture
def world(api: FakeApi) -> World:
    return new_cluster(api)
