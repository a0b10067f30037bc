"""Data that the leader cannot read is reported by name, reason and age."""

from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.cluster import CEL_RESOURCES
from kyverno_mp.leader.control.health import (
    FailingResource,
    LeaderHealth,
    stale_resources,
)
from kyverno_mp.leader.control.metrics import LeaderMetrics
from tests.unit.kube.fake_api import running
from tests.waiting import wait_for


def test_denied_resource_is_named_until_it_is_served() -> None:
    with running() as api:
        informers = [
            Informer(
                api.client(), WatchScope(resource=core(plural)), whole, pause_s_max=0.1
            )
            for plural in ("secrets", "configmaps")
        ]
        metrics = LeaderMetrics(api.client())
        metrics.informers = informers
        assert metrics.failing(1) == ()
        api.fault("GET /api/v1/secrets", *[403] * 10_000)
        for informer in informers:
            informer.start()
        try:
            wait_for(lambda: informers[0].failures > 0)
            told = metrics.failing(5)
            wait_for(lambda: informers[0].failures > 1)
            again = metrics.failing(9)
            with api.lock:
                api.faults.clear()
            wait_for(lambda: informers[0].synced and not informers[0].failures)
            served = metrics.failing(12)
        finally:
            for informer in informers:
                informer.stop()
    assert informers[0].last_error
    assert told == again == (FailingResource("secrets", 5, informers[0].last_error),)
    assert served == ()


def test_unserved_kind_is_no_failure() -> None:
    """An older installation lacks the kind; a forbidden kind is named in full."""
    with running() as api:
        informers = [
            Informer(api.client(), WatchScope(resource=one), whole, pause_s_max=0.1)
            for one in (CEL_RESOURCES["ValidatingPolicy"], CEL_EXCEPTIONS)
        ]
        metrics = LeaderMetrics(api.client())
        metrics.informers = informers
        api.fault("GET .*/validatingpolicies", *[404] * 10_000)
        api.fault("GET .*/policyexceptions", *[403] * 10_000)
        for informer in informers:
            informer.start()
        try:
            wait_for(lambda: all(informer.failures for informer in informers))
            told = metrics.failing(5)
        finally:
            for informer in informers:
                informer.stop()
    assert [one.resource for one in told] == ["policyexceptions.policies.kyverno.io"]
    health = LeaderHealth(trusted=True, confirmed_ns=5, failing=told)
    [text] = stale_resources(health, now_ns=5 + 100 * 10**9)
    assert text.endswith("policies may be old")
