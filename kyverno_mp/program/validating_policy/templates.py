"""Find the Pod templates of a custom workload, and judge each as a Pod.

Room: program. Takes: Facts of a request for an object of any kind. Gives: ``of_pods``,
the result for all its templates. Next: evaluate.py, program/image_policies/evaluate.py.
Source: docs/behaviour/v1.19 12; Kyverno pkg/cel/autogen/extract, evaluateExtracted in
pkg/cel/policies/vpol/engine/engine.go at v1.19.1.

A template is recognized by its form, because custom kinds embed the PodTemplateSpec of
Kubernetes. Only ``spec`` is searched: a status may repeat an older template.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.jsonvalue import Json

_POD: Final = {"group": "", "version": "v1", "kind": "Pod"}
_PODS: Final = {"group": "", "version": "v1", "resource": "pods"}
_EXCEPTION: Final = "exception"

Judge = Callable[[Facts, Shared], RuleResult | None]
"""Returns a policy's result for a Pod; None: its conditions do not hold."""


def of_pods(
    facts: Facts, shared: Shared, judge: Judge, rule_type: str
) -> RuleResult | None:
    """Return the first failure or error of a template, otherwise the last result.

    A template that an exception exempts does not exempt the others.
    Raises: BudgetExceeded, DeadlinePassed.
    """
    templates = list(_pods_of(facts))
    if not templates:
        resource = facts.request.object or facts.request.old_object
        kind = f"{resource.get('apiVersion')}/{resource.get('kind')}"
        message = f"extraction mode: no pod template found in {kind}"
        return RuleResult("", rule_type, result.ERROR, cut(f"error: {message}"))
    passed: RuleResult | None = None
    exempt: RuleResult | None = None
    for path, request in templates:
        judged = judge(facts._replace(request=request), type(shared)(request))
        if judged is None:
            continue
        if judged.status in (result.FAIL, result.ERROR):
            judged.message = cut(f"{judged.message} (pod template at {path})")
            return judged
        if judged.rule == _EXCEPTION:
            exempt = exempt or judged
        elif judged.status == result.PASS:
            passed = judged
    return passed or exempt


def _pods_of(facts: Facts) -> Iterator[tuple[str, Request]]:
    """Yield (path of the template, the request of its Pod)."""
    request = facts.request
    new = dict(_templates(request.object, facts.runtime))
    old = dict(_templates(request.old_object, facts.runtime))
    for path in new if request.object else old:
        pods = [
            {} if template is None else _pod(template, request)
            for template in (new.get(path), old.get(path))
        ]
        yield path, _request(request, *pods)


def _templates(
    resource: Mapping[str, Json], runtime: Runtime
) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield (path, template) of each template, in the object's order."""
    waiting: list[tuple[str, Json]] = [("spec", resource.get("spec"))]
    while waiting:
        path, node = waiting.pop()
        runtime.charge(1)
        if type(node) is dict:
            if _is_template(node):
                yield path, node
                continue
            inner = [(f"{path}.{key}", value) for key, value in node.items()]
        elif type(node) is list:
            inner = [(f"{path}[{at}]", value) for at, value in enumerate(node)]
        else:
            continue
        runtime.charge_made(sum(len(name) for name, _ in inner), path)
        waiting += reversed(inner)


def _is_template(node: dict[str, Json]) -> bool:
    spec = node.get("spec")
    if type(spec) is not dict or type(node.get("metadata", {})) is not dict:
        return False
    containers = spec.get("containers")
    return type(containers) is list and bool(containers) and all(map(_is, containers))


def _is(container: Json) -> bool:
    """Return whether a value is a container."""
    if type(container) is not dict:
        return False
    name, image = container.get("name"), container.get("image")
    return type(name) is str and name != "" and type(image) is str


def _pod(template: dict[str, Json], request: Request) -> dict[str, Json]:
    metadata = dict(template.get("metadata", {}))
    metadata["name"] = metadata.get("name") or request.name
    if request.namespace or "namespace" in metadata:
        metadata["namespace"] = metadata.get("namespace") or request.namespace
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template["spec"],
    }


def _request(request: Request, new: dict[str, Json], old: dict[str, Json]) -> Request:
    """Return the request for a template's Pod, with the user and operation."""
    metadata = (new or old)["metadata"]
    pod = copy_of(request)
    pod.group, pod.version, pod.kind = "", "v1", "Pod"
    pod.name, pod.namespace = metadata["name"], metadata.get("namespace", "")
    pod.object, pod.old_object = new, old
    if request.review_request is not None:
        pod.review_request = {
            **request.review_request,
            "kind": _POD,
            "requestKind": _POD,
            "resource": _PODS,
            "requestResource": _PODS,
            "name": pod.name,
            "namespace": pod.namespace,
            "object": new or None,
            "oldObject": old or None,
        }
    return pod
