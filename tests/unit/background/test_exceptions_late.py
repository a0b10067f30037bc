"""Policies wait for PolicyExceptions that are not listed yet or cannot be listed.

A failure means: a replica that has just taken over generates for exempt triggers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kyverno_mp.settings.settings import Settings
from tests.unit.background import generating_world as cel
from tests.unit.background import world
from tests.unit.background.world import Term, new_cluster, requests_left, stored
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

Json = Any
_SETTINGS = Settings(
    namespace="kyverno", policy_exceptions=True, exception_namespace="*"
)


class _Case(NamedTuple):
    """One kind of policy; ``begin`` stores a policy with its trigger and request."""

    group: str
    version: str
    spec: Json
    begin: Callable[[FakeApi], object]
    informer: Callable[[Any], Any]
    out: str

    def put_exception(self, api: FakeApi) -> None:
        path = f"/apis/{self.group}/{self.version}/namespaces/e/policyexceptions/x"
        api_version = f"{self.group}/{self.version}"
        api.put(path, apiVersion=api_version, kind="PolicyException", spec=self.spec)

    def define(self, api: FakeApi) -> None:
        api.put(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
            f"policyexceptions.{self.group}",
            apiVersion="apiextensions.k8s.io/v1",
            kind="CustomResourceDefinition",
            metadata={},
        )

    def refuse_lists(self, api: FakeApi, *status: int) -> None:
        api.fault(f"GET /apis/{self.group}/.*/policyexceptions", *status)


def _begin_rule(api: FakeApi) -> None:
    world.policy(api, world.rule(data={"data": {"from": "rule"}}))
    world.request(api, world.trigger(api))


def _begin_cel(api: FakeApi) -> None:
    cel.policy(api)
    cel.request(api, cel.trigger(api))


_RULE = _Case(
    *("kyverno.io", "v2"),
    {
        "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
    },
    _begin_rule,
    lambda background: list(background.policies.informers)[-1],
    f"{world.CONFIG_MAPS.format('a')}/out-t",
)
_CEL = _Case(
    *("policies.kyverno.io", "v1beta1"),
    {"policyRefs": [{"name": "p", "kind": "GeneratingPolicy"}]},
    _begin_cel,
    lambda background: background.generating.policies.exceptions[0],
    cel.OUT,
)


def _work(one: Term) -> None:
    one.background.adopt()
    one.background.policy_controllers.work_due()
    one.background.controllers.work_due()


@pytest.fixture(params=[_RULE, _CEL], ids=["rule", "cel"])
def case(request: pytest.FixtureRequest) -> _Case:
    given: _Case = request.param
    return given


@pytest.fixture
def late(api: FakeApi, case: _Case) -> Any:
    """A holder's term in which all informers run except the one for exceptions."""
    new_cluster(api)
    case.begin(api)
    one = Term(api, cluster_data=cel.data_of(api), settings=_SETTINGS)
    informer = case.informer(one.background)
    assert informer.scope.resource.plural == "policyexceptions"
    for known in one.informers:
        if known is not informer:
            known.start()
            assert known.wait_synced(60)
    yield one
    one.stop()


@pytest.mark.parametrize("is_exempt", [True, False])
def test_triggers_wait_for_exceptions(
    api: FakeApi, case: _Case, late: Term, *, is_exempt: bool
) -> None:
    if is_exempt:
        case.put_exception(api)
    _work(late)
    assert stored(api, case.out) is None
    assert requests_left(api) == ["ur"]
    informer = case.informer(late.background)
    informer.start()
    assert informer.wait_synced(60)
    late.pass_s(120.0)
    assert (stored(api, case.out) is None) is is_exempt
    assert requests_left(api) == []


@pytest.mark.parametrize("status", [403, 404])
def test_exceptions_cannot_be_listed(
    api: FakeApi, case: _Case, late: Term, status: int
) -> None:
    """Listing exceptions is forbidden, or their kind is defined but not served."""
    case.define(api)
    case.put_exception(api)
    case.refuse_lists(api, *[status] * 1000)
    informer = case.informer(late.background)
    informer.start()
    wait_for(lambda: informer.failures)
    _work(late)
    assert stored(api, case.out) is None
    assert requests_left(api) == ["ur"]


def test_exception_kind_does_not_exist(api: FakeApi, case: _Case, late: Term) -> None:
    """Otherwise, an older installation without this kind would wait for ever."""
    case.refuse_lists(api, *[404] * 1000)
    informer = case.informer(late.background)
    informer.start()
    wait_for(lambda: informer.failures)
    _work(late)
    assert stored(api, case.out) is not None
