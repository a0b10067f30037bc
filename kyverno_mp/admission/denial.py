"""Decide whether responses block a request, and say why in Kyverno's words.

Room: admission. Takes: PolicyResponses of the enforcing path. Gives: the denial text,
the warnings. Next: admission.encode. May touch: nothing outside its arguments.
Source: spec/controllers.md 2.7 (block decision), 2.8 (texts); spec/engine.md 6.9.
"""

from collections.abc import Iterable, Mapping, Sequence

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, SKIP, WARNING, PolicyResponse
from kyverno_mp.values.goyaml import block_text

_TOLD = frozenset({FAIL, ERROR, WARNING})


def blocks(response: PolicyResponse) -> bool:
    """Tell whether this policy refuses the request.

    Each policy is judged by its own failurePolicy; Kyverno lets one Fail policy make
    the errors of Ignore policies block too (controllers.md 14.5): we do not copy that.
    """
    if not response.results:
        return False
    if response.action == "Enforce" and response.failed():
        return True
    return response.policy.failure_policy == "Fail" and response.errored()


def denial(request: Request, responses: Sequence[PolicyResponse]) -> str:
    """Return the text of a refusal: every rule that neither passed nor was skipped.

    KYVERNO: a cluster policy and a namespaced one of the same name share one entry, and
    the later one stays (controllers.md 14.10).
    """
    failures: dict[str, Mapping[str, str]] = {}
    for response in responses:
        rules = {
            result.rule: result.message
            for result in response.results
            if result.status not in (PASS, SKIP)
        }
        if rules:
            failures[response.policy.name] = rules
    return denial_text(resource_name(request), failures)


def denial_text(resource: str, failures: Mapping[str, Mapping[str, str]]) -> str:
    """Return the block of text for ``{policy: {rule: message}}``.

    Shape: ``resource`` is ``Pod/default/web`` or ``Namespace//web``.
    """
    return (
        f"\n\nresource {resource} was blocked due to the following policies \n\n"
        + block_text(failures)
    )


def resource_name(request: Request) -> str:
    """Return ``Kind/namespace/name`` of the object that was judged."""
    judged = request.object or request.old_object
    metadata = judged.get("metadata")
    name = metadata.get("name") if type(metadata) is dict else None
    # K8S: a review of a Namespace carries its own name as the namespace.
    namespace = "" if request.kind == "Namespace" else request.namespace
    return f"{request.kind}/{namespace}/{name if type(name) is str else ''}"


def warnings(responses: Iterable[PolicyResponse]) -> list[str]:
    """Return one text for each failed, errored or warning rule."""
    return [
        f"policy {response.policy.name}.{result.rule}: {result.message}"
        for response in responses
        for result in response.results
        if result.status in _TOLD
    ]


def mutation_warnings(responses: Iterable[PolicyResponse]) -> list[str]:
    """Return the warnings of an allowed mutation.

    KYVERNO: with emitWarning a success is told, too (controllers.md 2.6).
    """
    return [
        f"policy {response.policy.name}.{found.rule}: {found.message}"
        for response in responses
        for found in response.results
        if found.status in _TOLD
        or (response.policy.emit_warning and found.status != SKIP)
    ]
