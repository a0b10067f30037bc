"""Generate rules charge for the objects that they build, find and copy.

A failure means: a rule in a tenant's namespace occupies the generating process in
proportion to the number of its elements, sources or labels. See charges.py for what is
measured.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.generate.generation import link_generations
from kyverno_mp.program.generate.rule import LinkedGeneration
from kyverno_mp.program.ports import ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from tests.charges.charges import cost_of

pytestmark = pytest.mark.slow

COUNT: Final = 30_000
TARGET: Final = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop"}
LABELS: Final = {f"key{n}": f"value{n}" for n in range(COUNT)}
TRIGGER: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "shop", "labels": LABELS},
    "spec": {"xs": [f"x{n}" for n in range(COUNT)], "few": ["x"] * 1000},
}


def source(number: int, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": f"s{number}", "namespace": "base", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


MANY: Final = [source(number, {"a": "b"}) for number in range(COUNT)]
LABELLED: Final = [source(number, LABELS) for number in range(30)]


class Cluster:
    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._objects = objects

    def objects(self, asked: ObjectQuery, deadline_ns: int) -> Sequence[Any]:
        """Return all objects, as in a cluster where every object is selected."""
        del asked, deadline_ns
        return self._objects


def clones(**selector: Any) -> dict[str, Any]:
    return {
        "namespace": "shop",
        "cloneList": {
            "kinds": ["v1/ConfigMap"],
            "namespace": "base",
            "selector": selector,
        },
    }


def each(of: str, **pattern: Any) -> dict[str, Any]:
    return {"foreach": [{"list": f"request.object.spec.{of}", **TARGET, **pattern}]}


WIDE: Final = {f"k{n}": "v" for n in range(1000)}
RULES: Final[dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "an object with variables": (
        {
            **TARGET,
            "name": "made",
            "data": {
                "data": {
                    f"k{n}": "{{ request.object.metadata.name }}" for n in range(2000)
                }
            },
        },
        [],
    ),
    "an object for each element": (
        each("xs", name="a{{ elementIndex }}", data={"data": {"a": "{{ element }}"}}),
        [],
    ),
    "wide objects for each element": (
        each("few", name="a{{ elementIndex }}", data={"data": WIDE, **WIDE}),
        [],
    ),
    "labels for each element": (
        each(
            "few",
            name="a{{ elementIndex }}",
            data={"metadata": {"labels": "{{ request.object.metadata.labels }}"}},
        ),
        [],
    ),
    "a source of many": (
        {**TARGET, "name": "a", "clone": {"namespace": "base", "name": "s29999"}},
        MANY,
    ),
    "a source of many for each element": (
        each(
            "few",
            name="a{{ elementIndex }}",
            clone={"namespace": "base", "name": "s29999"},
        ),
        MANY,
    ),
    "a clone of many labels for each element": (
        each(
            "few",
            name="a{{ elementIndex }}",
            clone={"namespace": "base", "name": "s0"},
        ),
        LABELLED,
    ),
    "many clones": (clones(), MANY),
    "clones by a label": (clones(matchLabels={"a": "b"}), MANY),
    "clones by wildcards": (
        clones(matchLabels={f"*k{n}*": f"*{n}?x" for n in range(20)}),
        LABELLED,
    ),
    "clones of many labels": (clones(), LABELLED),
}


def linked(body: dict[str, Any]) -> LinkedGeneration:
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"name": "r", "match": match, "generate": body}]},
    }
    policy = decode(raw)
    assert isinstance(policy, ClusterPolicy)
    (rule,) = link_generations(compile_policy(policy, []))
    return rule


@pytest.mark.parametrize("title", RULES)
def test_generate_rules_charge_for_their_output(title: str) -> None:
    body, objects = RULES[title]
    rule = linked(body)
    data = ClusterData(objects=Cluster(objects))
    request = Request(kind="Namespace", object=TRIGGER)

    def work(runtime: Runtime) -> None:
        before = runtime.steps_left
        for _ in range(300):
            scope = RequestContext(request, data, runtime).rule_scope("r")
            assert rule.generate(request, scope)
            if before - runtime.steps_left > 20_000:
                return

    cost = cost_of(work)
    assert cost.outcome in {"done", "expr.steps", "expr.bytes"}
    assert cost.faults() == []
