"""What the leader cannot read is known by name, reason and age."""

from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.control.health import FailingResource
from kyverno_mp.leader.control.metrics import LeaderMetrics
from tests.unit.kube.fake_api import running, wait_for


def test_a_resource_that_is_refused_is_named_until_it_is_served() -> None:
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
