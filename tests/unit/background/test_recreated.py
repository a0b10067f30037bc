"""A policy that is deleted and created again at once, e.g. by kubectl replace --force.

The watch may deliver both changes before the pool processes the policy, so that the
pool sees only a policy with another uid. Objects that are not older than the new policy
may be its own.
"""

from typing import Any

import pytest

from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    SECRETS,
    Term,
    new_cluster,
    policy,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
MAPS = CONFIG_MAPS.format("a")
LABEL = "generate.kyverno.io/policy-name"
_OLD, _NEW = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def _rule(prefix: str = "out", name: str = "r", **body: Json) -> Json:
    made = rule(name, **{"data": {"data": {"a": "b"}}, **body})
    made["generate"]["name"] = f"{prefix}-{{{{request.object.metadata.name}}}}"
    return made


def _dated(api: FakeApi, path: str, created: str) -> None:
    """Set an object's creation time, which the small API server does not set."""
    found = stored(api, path)
    assert found is not None
    metadata = {**found["metadata"], "creationTimestamp": created}
    api.put(path, **{**found, "metadata": metadata})


def _again(api: FakeApi, *rules: Json, **spec: Json) -> None:
    """Delete the policy, and create another policy with its name."""
    api.remove(f"{POLICIES}/p")
    policy(api, *rules, created=_NEW, **spec)


def _begin(api: FakeApi, pool: Term, *rules: Json, created: str = _OLD) -> None:
    new_cluster(api)
    for name in ("s", "t"):
        trigger(api, name)
    policy(api, *rules, generateExisting=True)
    pool.settle()
    for name in ("s", "t"):
        _dated(api, f"{MAPS}/out-{name}", created)
    pool.settle()


def _labels(api: FakeApi, name: str) -> Json:
    found = stored(api, f"{MAPS}/{name}")
    return None if found is None else found["metadata"]["labels"]


@pytest.mark.parametrize("sync", [True, False])
def test_another_target(api: FakeApi, *, sync: bool) -> None:
    """Old objects are deleted, as after any deletion; new ones are generated."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        _again(api, _rule("new", sync=sync))
        pool.settle()
        assert _labels(api, "out-t") is None
        assert _labels(api, "new-t")[LABEL] == "p"


@pytest.mark.parametrize("created", [_NEW, "", "2026-01-02T00:00:00Z"])
def test_objects_that_may_be_new_stay(api: FakeApi, created: str) -> None:
    """They lose the labels of the rule, like objects of any changed rule."""
    with term(api) as pool:
        _begin(api, pool, _rule(), created=created)
        _again(api, _rule("new"))
        pool.settle()
        assert LABEL not in _labels(api, "out-t")


@pytest.mark.parametrize(
    "body",
    [
        {"synchronize": False},
        {"orphanDownstreamOnPolicyDelete": True},
        {"data": None, "clone": {"namespace": "b", "name": "source"}},
    ],
)
def test_objects_that_outlive_their_policy(api: FakeApi, body: Json) -> None:
    """Objects that stay when a policy is deleted stay here, too."""
    api.put(f"{CONFIG_MAPS.format('b')}/source", apiVersion="v1", kind="ConfigMap")
    given = {name: one for name, one in _rule(**body)["generate"].items() if one}
    with term(api) as pool:
        _begin(
            api, pool, {**_rule(), "generate": {**given, "synchronize": True} | body}
        )
        _again(api, _rule("new"))
        pool.settle()
        assert LABEL not in _labels(api, "out-t")


def test_the_same_target(api: FakeApi) -> None:
    """An object that the new policy also generates is not written."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        before = stored(api, f"{MAPS}/out-t")
        _again(api, _rule())
        pool.settle()
        assert stored(api, f"{MAPS}/out-t") == before


def test_refused_deletions(api: FakeApi) -> None:
    """After a rejection, later edits and retries delete only the objects left over."""
    with term(api) as pool:
        _begin(api, pool, _rule(), _rule("kept", "other"))
        for name in ("s", "t"):
            _dated(api, f"{MAPS}/kept-{name}", _OLD)
        api.fault(rf"DELETE {MAPS}/out-t", *[403] * 1000)
        _again(api, _rule("new"), _rule("kept", "other"))
        pool.settle()
        assert _labels(api, "out-s") is None
        assert _labels(api, "out-t")[LABEL] == "p"
        assert _labels(api, "new-t")[LABEL] == "p"
        # An edit of another rule moves its objects, which stay.
        found = stored(api, f"{POLICIES}/p")
        assert found is not None
        metadata = {**found["metadata"], "generation": 2}
        rules = [_rule("new"), _rule("moved", "other")]
        api.put(
            f"{POLICIES}/p",
            **{**found, "metadata": metadata} | {"spec": {"rules": rules}},
        )
        trigger(api, "u")
        pool.pass_s(300)
        for name in ("s", "t"):
            assert LABEL not in _labels(api, f"kept-{name}")
            assert _labels(api, f"moved-{name}")[LABEL] == "p"
            assert _labels(api, f"new-{name}")[LABEL] == "p"
        before = stored(api, f"{MAPS}/new-t")
        assert _labels(api, "out-t")[LABEL] == "p"
        api.faults.clear()
        pool.pass_s(300)
        assert _labels(api, "out-t") is None
        assert stored(api, f"{MAPS}/new-t") == before
        assert stored(api, f"{SECRETS.format('a')}/t") is not None


def test_refused_lists(api: FakeApi) -> None:
    """Objects that could not be listed are deleted when they can be."""
    lists = r"GET /api/v1/configmaps\?"
    with term(api) as pool:
        _begin(api, pool, _rule())
        api.fault(lists, *[403] * 1000)
        _again(api, _rule("new"))
        pool.settle()
        assert _labels(api, "out-t")[LABEL] == "p"
        api.faults.clear()
        pool.pass_s(300)
        assert _labels(api, "out-t") is None
        assert _labels(api, "new-t")[LABEL] == "p"


def test_a_rule_that_returns_to_its_target(api: FakeApi) -> None:
    """What is left over of the first target is wanted again."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        api.fault(rf"DELETE {MAPS}/out-t", *[403] * 1000)
        _again(api, _rule("new"))
        pool.settle()
        policy(api, _rule(), generation=3)
        pool.settle()
        api.faults.clear()
        pool.pass_s(300)
        assert _labels(api, "out-t")[LABEL] == "p"
