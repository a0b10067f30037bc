"""A rule that gets another target, also by a policy that is created again at once.

After e.g. kubectl replace --force, the watch may deliver the deletion and the creation
before the pool processes the policy, so that the pool sees only a policy with another
uid. Another rule of that policy, or the same target written differently, may generate
the old objects as well, so none is deleted.
"""

import re
from typing import Any

import pytest

from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    Term,
    new_cluster,
    policy,
    request,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
MAPS = CONFIG_MAPS.format("a")
LABEL = "generate.kyverno.io/policy-name"
_OLD, _NEW = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
"""Creation times before and after the change of the rule."""
_SOURCE = f"{CONFIG_MAPS.format('b')}/source"
_CLONE: Json = {"data": None, "clone": {"namespace": "b", "name": "source"}}
_LISTS = r"GET /api/v1/configmaps\?"


def _rule(prefix: str = "out", name: str = "r", **body: Json) -> Json:
    made = rule(name, **{"data": {"data": {"a": "b"}}, **body})
    if body.get("clone"):
        del made["generate"]["data"]
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
    policy(api, *rules, **spec)


def _begin(api: FakeApi, pool: Term, *rules: Json, created: str = _OLD) -> None:
    new_cluster(api)
    api.put(_SOURCE, apiVersion="v1", kind="ConfigMap", data={"c": "d"})
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


def _spelt(**body: Json) -> Json:
    """Return a rule with the same objects as ``_rule``, but another target."""
    made = _rule(**body)
    made["generate"]["name"] = "out-{{ request.object.metadata.name }}"
    return made


def test_another_target(api: FakeApi) -> None:
    """Old objects stay, as after any change of a target; new ones are generated."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        _again(api, _rule("new"))
        pool.settle()
        assert LABEL not in _labels(api, "out-t")
        assert _labels(api, "new-t")[LABEL] == "p"


@pytest.mark.parametrize(
    "rules",
    [
        [_spelt()],
        [_rule("new"), _rule("out", "other")],
        [_rule(**_CLONE)],
        [_rule("new", synchronize=False)],
        [_rule("new", orphanDownstreamOnPolicyDelete=True)],
    ],
    ids=["spelling", "rule", "clone", "unsynchronized", "orphaned"],
)
def test_objects_that_the_new_policy_also_generates(
    api: FakeApi, rules: list[Json]
) -> None:
    """They are the same objects as before."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        before = stored(api, f"{MAPS}/out-t")
        assert before is not None
        _again(api, *rules)
        pool.settle()
        pool.pass_s(4000)
        after = stored(api, f"{MAPS}/out-t")
        assert after is not None
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize("body", [_CLONE, {}, {"synchronize": False}])
def test_a_trigger_processed_before_the_policy(api: FakeApi, body: Json) -> None:
    """What the changed rule has generated is not taken for an old object."""
    with term(api) as pool:
        _begin(api, pool, _rule(**body))
        policy(api, _rule("new", **body), generation=2)
        request(api, trigger(api, "u"))
        pool.catch_up()
        pool.background.controllers.work_due()
        assert _labels(api, "new-u")[LABEL] == "p"
        pool.settle()
        assert _labels(api, "new-u")[LABEL] == "p"
        for name in ("out-s", "out-t"):
            assert LABEL not in _labels(api, name)


@pytest.mark.parametrize("body", [_CLONE, {}, {"synchronize": False}])
def test_a_trigger_processed_during_the_policy(api: FakeApi, body: Json) -> None:
    """What is generated before the old objects are listed is not taken for one."""
    with term(api) as pool:
        _begin(api, pool, _rule(**body))

        def on_request(method: str, target: str) -> None:
            if re.match(_LISTS, f"{method} {target}") and "policy-name" in target:
                api.on_request = lambda _method, _target: None
                request(api, trigger(api, "u"))
                pool.catch_up()
                pool.background.controllers.work_due()
                assert _labels(api, "new-u")[LABEL] == "p"

        policy(api, _rule("new", **body), generation=2)
        pool.catch_up()
        api.on_request = on_request
        pool.settle()
        assert _labels(api, "new-u")[LABEL] == "p"
        for name in ("out-s", "out-t"):
            assert LABEL not in _labels(api, name)


def test_the_holder_stops_after_the_policy_event(api: FakeApi) -> None:
    """The next holder knows nothing of the old policy, and no object is missing."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        _again(api, _spelt())
        pool.catch_up()
        pool.background.adopt()
        pool.background.policy_controllers.work_due()
    with term(api) as pool:
        pool.settle()
        pool.pass_s(4000)
        assert _labels(api, "out-t") is not None


def test_the_same_target(api: FakeApi) -> None:
    """An object that the new policy also generates is not written."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        before = stored(api, f"{MAPS}/out-t")
        _again(api, _rule())
        pool.settle()
        assert stored(api, f"{MAPS}/out-t") == before


def test_rejected_updates(api: FakeApi) -> None:
    """An object keeps its labels until an update is accepted; later edits follow."""
    with term(api) as pool:
        _begin(api, pool, _rule(), _rule("kept", "other"))
        api.fault(rf"PUT {MAPS}/out-t", *[403] * 1000)
        _again(api, _rule("new"), _rule("kept", "other"))
        pool.settle()
        assert LABEL not in _labels(api, "out-s")
        assert _labels(api, "out-t")[LABEL] == "p"
        assert _labels(api, "new-t")[LABEL] == "p"
        policy(api, _rule("new"), _rule("moved", "other"), generation=2)
        pool.pass_s(300)
        for name in ("s", "t"):
            assert LABEL not in _labels(api, f"kept-{name}")
            assert _labels(api, f"moved-{name}")[LABEL] == "p"
        before = stored(api, f"{MAPS}/new-t")
        assert _labels(api, "out-t")[LABEL] == "p"
        api.faults.clear()
        pool.pass_s(300)
        assert LABEL not in _labels(api, "out-t")
        assert stored(api, f"{MAPS}/new-t") == before


def test_an_object_that_is_wanted_again_before_its_update(api: FakeApi) -> None:
    """A repeated update does not remove the labels that the new rule has written."""
    data = {"data": {"from": "{{request.object.metadata.annotations.value}}"}}
    with term(api) as pool:
        _begin(api, pool, _rule(data=data))
        api.fault(rf"PUT {MAPS}/out-t", *[403] * 1000)
        _again(api, _spelt(data=data))
        pool.settle()
        assert _labels(api, "out-t")[LABEL] == "p"
        request(api, trigger(api, value="2"))
        api.faults.clear()
        pool.settle()
        before = stored(api, f"{MAPS}/out-t")
        assert before is not None
        assert before["data"] == {"from": "2"}
        pool.pass_s(300)
        assert stored(api, f"{MAPS}/out-t") == before


@pytest.mark.parametrize("is_again", [True, False])
@pytest.mark.parametrize("created", [_NEW, ""])
def test_rejected_lists(api: FakeApi, created: str, *, is_again: bool) -> None:
    """A later list also has new objects of the changed rule, which keep their labels.

    Clones are generated only by an event of their trigger, which nothing repeats.
    """
    with term(api) as pool:
        _begin(api, pool, _rule(**_CLONE))
        api.fault(_LISTS, *[403] * 1000)
        if is_again:
            api.remove(f"{POLICIES}/p")
        policy(api, _rule("new", **_CLONE), generation=2)
        pool.settle()
        assert _labels(api, "out-t")[LABEL] == "p"
        request(api, trigger(api))
        pool.settle()
        assert _labels(api, "new-t")[LABEL] == "p"
        _dated(api, f"{MAPS}/new-t", created)
        api.faults.clear()
        pool.pass_s(300)
        for name in ("s", "t"):
            assert LABEL not in _labels(api, f"out-{name}")
        assert _labels(api, "new-t")[LABEL] == "p"


def test_a_rule_that_returns_to_its_target(api: FakeApi) -> None:
    """What is left over of the first target is wanted again."""
    with term(api) as pool:
        _begin(api, pool, _rule())
        api.fault(rf"PUT {MAPS}/out-t", *[403] * 1000)
        _again(api, _rule("new"))
        pool.settle()
        policy(api, _rule(), generation=3)
        pool.settle()
        api.faults.clear()
        pool.pass_s(300)
        assert _labels(api, "out-t")[LABEL] == "p"
