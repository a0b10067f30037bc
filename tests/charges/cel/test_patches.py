"""Patches, merges, differences and podSecurity are charged, even hostile ones."""

from typing import Any

import pytest

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.template.leaves import Hole
from kyverno_mp.ir.rules import PodSecurityExcludeIR, PodSecurityIR
from kyverno_mp.limits import PATCH_ANSWER_BYTES_MAX
from kyverno_mp.program.mutate.anchors import prepare, preprocess
from kyverno_mp.program.mutate.strategic import StrategicPatch
from kyverno_mp.program.pod_security.evaluate import evaluate
from kyverno_mp.values.patches.json_additions import Additions, add_all, link_additions
from kyverno_mp.values.patches.json_diff import diff
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.values.patches.strategic_merge import merge
from tests.charges.cel import gauge

_LONG = list(range(100_000))


def _pod(containers: list[Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": containers},
    }


def _containers(count: int, **more: Any) -> list[Any]:
    return [{"name": f"c{i}", "image": "nginx:1", **more} for i in range(count)]


_BAD = {
    "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
    "ports": [{"hostPort": 80}],
}
_NESTED: Any = 1
for _ in range(400):
    _NESTED = {"a": _NESTED}
_MANY = _pod(_containers(4000))
_PORTS = _containers(1, ports=[{"containerPort": i} for i in range(400)])
_ANCHORED = {"spec": {"containers": [{"(name)": "*", "image": "x"}]}}
_GLOBAL = {"spec": {"containers": [{"<(image)": "*:1", "name": "x", "env": []}]}}


def _op(op: str, path: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **more}


def _added(path: str, value: Any = 1) -> Additions:
    linked = link_additions([_op("add", path, value=value)])
    assert linked is not None
    return linked


_NAMED_EACH = StrategicPatch(
    {"spec": {"containers": [{"name": Hole(0), "image": "x", "env": [{"name": "e"}]}]}},
    has_holes=True,
)

_WORKS: dict[str, gauge.Work] = {
    "additions to a long list": lambda p: add_all(
        {"l": _LONG}, [_added("/l/-")] * 20_000, p
    ),
    "additions to many long lists": lambda p: add_all(
        {str(i): _LONG for i in range(200)}, [_added(f"/{i}/-") for i in range(200)], p
    ),
    "additions far below": lambda p: add_all(
        {"a": _NESTED}, [_added("/a" * 15 + "/b")] * 20_000, p
    ),
    "elements of a foreach": lambda p: _NAMED_EACH.apply_each(
        _MANY, [[f"c{i}"] for i in range(4000)], p
    ),
    "new elements of a foreach": lambda p: _NAMED_EACH.apply_each(
        _MANY, [[f"new{i}"] for i in range(4000)], p
    ),
    "adds to a long list": lambda p: apply_patch(
        {"l": _LONG}, [_op("add", "/l/0", value=1)] * 2000, p
    ),
    "many small operations": lambda p: apply_patch(
        {"a": 1}, [_op("replace", "/a", value=2)] * 20_000, p
    ),
    "missing removes": lambda p: apply_patch({}, [_op("remove", "/a/b")] * 20_000, p),
    "deep paths": lambda p: apply_patch(
        {"a": _NESTED}, [_op("add", "/a" * 390 + "/b", value=1)] * 500, p
    ),
    "deep parents": lambda p: apply_patch(
        {}, [_op("add", f"/{i}" + "/b" * 500, value=1) for i in range(200)], p
    ),
    "padding": lambda p: apply_patch(
        {}, [_op("add", f"/l{i}/9999/a", value=1) for i in range(500)], p
    ),
    "copies": lambda p: apply_patch(
        {"l": _LONG[:90_000]},
        [_op("copy", f"/m{i}", **{"from": "/l"}) for i in range(500)],
        p,
    ),
    "tests": lambda p: apply_patch(
        {"l": _LONG}, [_op("test", "/l", value=[*_LONG])] * 100, p
    ),
    "slashes": lambda p: apply_patch({}, [_op("add", "/" * 1_000_000, value=1)] * 9, p),
    "elements that match": lambda p: StrategicPatch(_ANCHORED, has_holes=False).apply(
        _MANY, (), p
    ),
    "elements with a global anchor": lambda p: StrategicPatch(
        _GLOBAL, has_holes=False
    ).apply(_MANY, (), p),
    "preprocessing": lambda p: preprocess(prepare(_ANCHORED), _MANY, p),
    "elements by name": lambda p: merge(
        _MANY, {"spec": {"containers": _containers(4000, env=[])}}, spend=p
    ),
    "elements by two keys": lambda p: merge(
        _pod(_PORTS), {"spec": {"containers": _PORTS}}, spend=p
    ),
    "elements without keys": lambda p: merge(
        _pod([{"image": "a"}] * 2000), {"spec": {"containers": []}}, spend=p
    ),
    "a large patch": lambda p: merge(
        {}, {"data": {str(i): {"a": None} for i in range(50_000)}}, spend=p
    ),
    "a difference everywhere": lambda p: diff(
        {"l": _LONG}, {"l": [i + 1 for i in _LONG]}, p
    ),
    "a difference far below": lambda p: diff(
        {"a" * 100_000: _LONG}, {"a" * 100_000: [i + 1 for i in _LONG]}, p
    ),
    "a part that stands everywhere": lambda p: diff(
        {}, {str(i): _MANY for i in range(1000)}, p
    ),
    "containers that break all": lambda p: evaluate(
        PodSecurityIR("restricted"), _pod(_containers(1000, **_BAD)), "Pod",
        rule="r", spend=p,
    ),
    "excludes": lambda p: evaluate(
        PodSecurityIR(
            "restricted",
            exclude=(
                PodSecurityExcludeIR("Capabilities", images=("ngin?x*", "*:*[", "n*")),
                PodSecurityExcludeIR("Privileged Containers", images=("*",)),
            ),
        ),
        _pod(_containers(1000, **_BAD)), "Pod", rule="r", spend=p,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _WORKS)
def test_work_is_charged(name: str) -> None:
    found = gauge.problem(_WORKS[name])
    assert not found, found


@pytest.mark.parametrize("name", _WORKS)
def test_memory_is_charged(name: str) -> None:
    found = gauge.memory_problem(_WORKS[name], grace=2 << 20)
    assert not found, found


def test_answer_size_is_bounded() -> None:
    text = "x" * 100_000
    budget = gauge.RuleBudget()
    budget.bytes_left = PATCH_ANSWER_BYTES_MAX
    with pytest.raises(BudgetExceeded):
        diff({}, {str(i): {"a": text} for i in range(100)}, budget)
    small = gauge.RuleBudget()
    assert diff({}, {"a": {"b": text}}, small)
    assert small.bytes >= len(text)
