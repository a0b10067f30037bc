"""Policies on Pods for custom workloads, whose templates are found in the object.

Expected: docs/behaviour/v1.19 12.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.compiler.cel_kinds.mutating_policy import compile_mutating_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.policy.cel_kinds.policies import decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import decode_validating_policy
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.group import Group
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from tests.unit.program.test_validating_policy import MATCH, NOW, exception, runtime

TRAINS = "trains.v2.jobs.example.com"
FRESH = "object.spec.containers.all(c, !c.image.endsWith(':latest'))"


def policy(*controllers: str, kind: str = "ValidatingPolicy", **spec: Any) -> Any:
    checked = {"validations": [{"expression": FRESH, "message": "latest"}]}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": MATCH,
            "autogen": {"podControllers": {"controllers": list(controllers)}},
            **(spec or checked),
        },
    }
    if kind == "MutatingPolicy":
        return decode_cel_policy(raw)
    return decode_validating_policy(raw)


def template(image: str = "nginx:1", **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"spec": {"containers": [{"name": "c", "image": image}]}}
    return {**found, "metadata": metadata} if metadata else found


def train(*templates: Any, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobs.example.com/v2",
        "kind": "Train",
        "metadata": {"name": "t", "namespace": "shop"},
        "spec": {"cars": [{"template": {"spec": one}} for one in templates], **spec},
    }


def request(
    new: dict[str, Any], old: dict[str, Any] | None = None, operation: str = "CREATE"
) -> Request:
    kind: dict[str, Any] = {
        "group": "jobs.example.com",
        "version": "v2",
        "kind": "Train",
    }
    resource = {"group": "jobs.example.com", "version": "v2", "resource": "trains"}
    return Request(
        **kind,
        name="t",
        namespace="shop",
        operation=operation,
        object=new,
        old_object=old or {},
        review_request={
            "kind": kind,
            "resource": resource,
            "operation": operation,
            "name": "t",
            "namespace": "shop",
            "object": new or None,
            "oldObject": old,
        },
    )


def result(document: Any, asked: Request, exceptions: Any = ()) -> RuleResult | None:
    linked = LinkedValidatingPolicy(compile_validating_policy(document, exceptions))
    facts = Facts(asked, runtime(), CelPorts(), is_review=True)
    found = linked.results(linked.bodies_for(asked), facts, ReviewShared(asked))
    return found[0] if found else None


def verdict(document: Any, asked: Request, exceptions: Any = ()) -> tuple[str, str]:
    found = result(document, asked, exceptions)
    return ("", "") if found is None else (found.status, found.message)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (train(template(), template()), ("pass", "success")),
        (
            train(template(), template("nginx:latest")),
            ("fail", "latest (pod template at spec.cars[1].template.spec)"),
        ),
        (
            train(deep={"er": [template("a:latest")]}),
            ("fail", "latest (pod template at spec.deep.er[0])"),
        ),
        # Containers have a name and an image, and metadata is an object.
        (train({"spec": {"containers": []}}), ("error", "")),
        (train({"spec": {"containers": [{"name": "c"}]}}), ("error", "")),
        (train({**template(), "metadata": "x"}), ("error", "")),
        # A status may repeat an older template.
        (
            {**train(template()), "status": {"t": template("a:latest")}},
            ("pass", "success"),
        ),
    ],
)
def test_each_template_is_judged(
    given: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Otherwise a custom workload runs what the policy forbids in Pods."""
    status, message = expected
    message = message or (
        "error: extraction mode: no pod template found in jobs.example.com/v2/Train"
    )
    assert verdict(policy(TRAINS), request(given)) == (status, message)


@pytest.mark.parametrize(
    "controllers", [("trains",), ("trains.v2",), ("trains..x",), ("deployments",)]
)
def test_other_names_do_not_concern_the_kind(controllers: tuple[str, ...]) -> None:
    assert verdict(policy(*controllers), request(train(template("a:latest")))) == (
        "",
        "",
    )


def test_expressions_see_a_pod() -> None:
    """The object, the request and the old object are those of a Pod, as in a review."""
    text = (
        "request.kind.kind == 'Pod' && request.resource.resource == 'pods'"
        " && object.kind == 'Pod' && object.apiVersion == 'v1'"
        " && object.metadata.name == 't' && object.metadata.namespace == 'shop'"
        " && request.object == object && oldObject.spec.containers[0].image == 'old:1'"
        " && object.spec.containers[0].image == 'new:1'"
    )
    document = policy(TRAINS, validations=[{"expression": text}])
    rule = {**MATCH["resourceRules"][0], "operations": ["UPDATE"]}
    document = policy(
        TRAINS,
        validations=[{"expression": text}],
        matchConstraints={"resourceRules": [rule]},
    )
    asked = request(train(template("new:1")), train(template("old:1")), "UPDATE")
    assert verdict(document, asked) == ("pass", "success")


def test_deletion_judges_the_old_object() -> None:
    rule = {**MATCH["resourceRules"][0], "operations": ["DELETE"]}
    text = "object == null && oldObject.spec.containers[0].image == 'old:1'"
    document = policy(
        TRAINS,
        validations=[{"expression": text}],
        matchConstraints={"resourceRules": [rule]},
    )
    asked = request({}, train(template("old:1")), "DELETE")
    assert verdict(document, asked) == ("pass", "success")


def test_condition_or_exception_of_one_template_is_not_the_others() -> None:
    """Otherwise one exempt template lets the others through."""
    text = "object.metadata.?labels.free.orValue('') == 'yes'"
    free = template("a:latest", labels={"free": "yes"})
    allowed = [exception(matchConditions=[{"name": "c", "expression": text}])]
    last = "(pod template at spec.cars[1].template.spec)"
    both = request(train(free, template("a:latest")))
    assert verdict(policy(TRAINS), both, allowed) == ("fail", f"latest {last}")
    passing = request(train(free, template()))
    assert verdict(policy(TRAINS), passing, allowed) == ("pass", "success")
    only = request(train(free, free))
    assert verdict(policy(TRAINS), only, allowed)[0] == "skip"
    skipping = policy(
        TRAINS,
        validations=[{"expression": FRESH, "message": "latest"}],
        matchConditions=[{"name": "c", "expression": f"!({text})"}],
    )
    assert verdict(skipping, only) == ("skip", "skip")
    assert verdict(skipping, both) == ("fail", f"latest {last}")


_JSON = st.recursive(
    st.none() | st.booleans() | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abs"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_JSON, st.lists(st.sampled_from("ab") | st.integers(0, 1), max_size=4))
def test_template_is_found_at_every_depth(noise: Any, path: list[str | int]) -> None:
    nested: Any = template("a:latest")
    place = ""
    for step in reversed(path):
        nested = [noise, nested] if isinstance(step, int) else {step: nested}
        place = ("[1]" if isinstance(step, int) else f".{step}") + place
    given = train(x=nested, noise=noise)
    expected = ("fail", f"latest (pod template at spec.x{place})")
    assert verdict(policy(TRAINS), request(given)) == expected


def test_mutation_is_skipped_and_says_so() -> None:
    patch = {
        "patchType": "JSONPatch",
        "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/x', value: 1}]"},
    }
    document = policy(TRAINS, kind="MutatingPolicy", mutations=[patch])
    linked = LinkedMutatingPolicy(compile_mutating_policy(document))
    asked = request(train(template()))
    facts = Facts(asked, runtime(), CelPorts())
    _, copy = linked.evaluate(facts, Shared(asked))
    assert copy.patched is None
    assert copy.result is not None
    assert (copy.result.status, copy.result.message) == (
        "skip",
        "extraction mode: mutation for custom workload CRDs is not yet supported",
    )


def test_status_names_the_controllers() -> None:
    document = policy(TRAINS, "deployments", "deploymentz")
    status = cel_status_of(document, {}, NOW, ready=True, message="")
    targets = {
        name: one["targets"] for name, one in status["autogen"]["configs"].items()
    }
    assert targets["extract"] == [
        {
            "group": "jobs.example.com",
            "version": "v2",
            "resource": "trains",
            "kind": "Train",
        }
    ]
    assert list(targets) == ["defaults", "extract"]


def test_results_of_custom_workloads_are_not_cached_by_fields_of_pods() -> None:
    """Otherwise an object gets the verdict of another one."""
    linked = [
        LinkedValidatingPolicy(compile_validating_policy(policy(TRAINS)))
        for _ in range(3)
    ]
    pods = Request(
        group="",
        version="v1",
        kind="Pod",
        review_request={"resource": {"group": "", "version": "v1", "resource": "pods"}},
    )
    assert Group(linked, pods, {}).recall is not None
    assert Group(linked, request(train(template())), {}).recall is None
