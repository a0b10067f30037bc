"""Decide whether responses block a request, and write the denial as Kyverno does.

Room: admission. Takes: PolicyResponses of the enforcing path. Gives: the denial text,
the warnings. Next: admission.encode.
Source: docs/behaviour/controllers 2.7 (block decision), 2.8 (messages);
docs/behaviour/engine 6.9.

Failures of enforcing rules block; errors block if the policy's failurePolicy is Fail.
Reviews that cannot be evaluated are answered by webhook/review/review.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kyverno_mp.program.request import Request
from kyverno_mp.program.result import (
    ERROR,
    FAIL,
    PASS,
    SKIP,
    WARNING,
    PolicyResponse,
    SharedResponses,
)
from kyverno_mp.values.go.goyaml import block_text

_TOLD = frozenset({FAIL, ERROR, WARNING})


def blocks(response: PolicyResponse) -> bool:
    """Return whether this policy denies the request.

    Each policy's own failurePolicy decides. In Kyverno, one Fail policy makes the
    errors of Ignore policies block, too (docs/behaviour/controllers 14.5); we do not
    copy this.
    """
    if not response.results or response.is_relaxed:
        return False
    if response.action == "Enforce" and response.failed():
        return True
    return response.policy.failure_policy == "Fail" and response.errored()


class AdmissionVerdict(NamedTuple):
    """The verdict on a list of responses; it does not depend on the requester."""

    with_results: tuple[PolicyResponse, ...]
    """The responses with something to report."""
    denied: str
    """The policies and rules that deny, as text; empty if the request is allowed."""
    is_gradual: bool = False
    """Whether a policy is put into force gradually, so that it may not deny yet."""


def verdict_of(responses: Sequence[PolicyResponse]) -> AdmissionVerdict:
    """Return the verdict on the enforcing responses.

    PERF: equal denials share their responses (program/plans/batch.py), and building the
    text takes 6 us.
    """
    if type(responses) is not SharedResponses:
        return _verdict(responses)
    verdict: AdmissionVerdict | None = responses.derived.get(AdmissionVerdict)
    if verdict is None:
        verdict = responses.derived[AdmissionVerdict] = _verdict(responses)
    return verdict


def _verdict(responses: Sequence[PolicyResponse]) -> AdmissionVerdict:
    with_results = tuple([response for response in responses if response.results])
    denied = (
        block_text(_failures(with_results)) if any(map(blocks, with_results)) else ""
    )
    is_gradual = bool(denied) and any(
        response.policy.rollout is not None for response in with_results
    )
    return AdmissionVerdict(with_results, denied, is_gradual)


def denial(request: Request, denied: str) -> str:
    """Return the text of a denial; ``denied`` is the text from AdmissionVerdict."""
    return _framed(resource_name(request), denied)


def _failures(
    responses: Iterable[PolicyResponse],
) -> dict[str, Mapping[str, str]]:
    """Return every rule that neither passed nor was skipped.

    KYVERNO: a cluster policy and a namespaced policy of the same name share one entry;
    the later one wins (docs/behaviour/controllers 14.10).
    """
    failures: dict[str, Mapping[str, str]] = {}
    for response in responses:
        if response.is_relaxed:
            continue
        rules = {
            result.rule: result.message
            for result in response.results
            if result.status not in (PASS, SKIP)
        }
        if rules:
            failures[response.policy.name] = rules
    return failures


def _framed(resource: str, denied: str) -> str:
    head = f"resource {resource} was blocked due to the following policies"
    return f"\n\n{head} \n\n{denied}"


def resource_name(request: Request) -> str:
    """Return ``Kind/namespace/name`` of the object under review."""
    resource = request.object or request.old_object
    metadata = resource.get("metadata")
    name = metadata.get("name") if type(metadata) is dict else None
    # K8S: a review of a Namespace carries the Namespace's own name as its namespace.
    namespace = "" if request.kind == "Namespace" else request.namespace
    return f"{request.kind}/{namespace}/{name if type(name) is str else ''}"


def warnings(responses: Iterable[PolicyResponse]) -> list[str]:
    """Return one text for each failed, errored or warning rule.

    A policy that is not enforced yet warns like an auditing one: with emitWarning.
    """
    return [
        f"policy {response.policy.name}.{result.rule}: {result.message}"
        for response in responses
        if not response.is_relaxed or response.policy.emit_warning
        for result in response.results
        if result.status in _TOLD
    ]


def mutation_warnings(responses: Iterable[PolicyResponse]) -> list[str]:
    """Return the warnings of an allowed mutation.

    KYVERNO: with emitWarning, successes are reported, too (docs/behaviour/controllers
    2.6).
    """
    return [
        f"policy {response.policy.name}.{rule_result.rule}: {rule_result.message}"
        for response in responses
        for rule_result in response.results
        if rule_result.status in _TOLD
        or (response.policy.emit_warning and rule_result.status != SKIP)
    ]


def image_warnings(responses: Iterable[PolicyResponse]) -> list[str]:
    """Return the warnings of verifyImages rules of an allowed request.

    KYVERNO: a failure is reported only for images that ``skipImageReferences`` names.
    With emitWarning, every result except a skip is reported (docs/behaviour/images
    2.6).
    """
    return [
        f"policy {response.policy.name}.{rule_result.rule}: {rule_result.message}"
        for response in responses
        for rule_result in response.results
        if rule_result.warns
        or (response.policy.emit_warning and rule_result.status != SKIP)
    ]
