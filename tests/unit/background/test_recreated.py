"""A policy that is deleted and created again at once leaves no objects behind.

The watch may deliver both changes before the pool looks at the policy, so it sees only
a policy with another uid.
"""

from typing import Any

import pytest

from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    new_cluster,
    policy,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
OLD = f"{CONFIG_MAPS.format('a')}/out-t"
NEW = f"{CONFIG_MAPS.format('a')}/new-t"
POLICY_LABEL = "generate.kyverno.io/policy-name"


def _rule(*, sync: bool = True, **body: Json) -> Json:
    return rule(sync=sync, data={"data": {"a": "b"}}, **body)


def _renamed(*, sync: bool) -> Json:
    made = _rule(sync=sync)
    made["generate"]["name"] = "new-{{request.object.metadata.name}}"
    return made


def _again(api: FakeApi, new: Json) -> None:
    """Delete the policy and create another one of its name."""
    api.remove(f"{POLICIES}/p")
    policy(api, new)


@pytest.mark.parametrize("sync", [True, False])
def test_another_target(api: FakeApi, *, sync: bool) -> None:
    new_cluster(api)
    trigger(api)
    policy(api, _rule(generateExisting=True))
    with term(api) as pool:
        pool.settle()
        assert stored(api, OLD)
        _again(api, _renamed(sync=sync))
        pool.settle()
        assert stored(api, OLD) is None
        assert stored(api, NEW)


def test_another_target_while_deletions_are_refused(api: FakeApi) -> None:
    new_cluster(api)
    trigger(api)
    policy(api, _rule(generateExisting=True))
    with term(api) as pool:
        pool.settle()
        _again(api, _renamed(sync=True))
        api.fault(rf"DELETE {OLD}", *[403] * 1000)
        pool.settle()
        assert stored(api, OLD)
        api.faults.clear()
        pool.pass_s(300)
        assert stored(api, OLD) is None
        assert stored(api, NEW)


def test_objects_of_a_rule_without_synchronize_stay(api: FakeApi) -> None:
    new_cluster(api)
    trigger(api)
    policy(api, _rule(sync=False, generateExisting=True))
    with term(api) as pool:
        pool.settle()
        _again(api, _renamed(sync=False))
        pool.settle()
        left = stored(api, OLD)
        assert left
        assert POLICY_LABEL not in left["metadata"]["labels"]


def test_the_same_target_keeps_its_object(api: FakeApi) -> None:
    new_cluster(api)
    trigger(api)
    policy(api, _rule(generateExisting=True))
    with term(api) as pool:
        pool.settle()
        before = stored(api, OLD)
        _again(api, _rule())
        pool.settle()
        assert stored(api, OLD) == before
