"""Find policies and rules that the server of this version rejects or skips.

Room: cli. Takes: documents and compiled policies. Gives: Refusals with the server's
codes. Next: command, explain.
Source: leader/policy_store.py and webhook/policy_review.py, which reject policies.
"""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from kyverno_mp.errors import Error, PolicyInvalid
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.leader.servable import (
    NO_BACKGROUND,
    UNSUPPORTED,
    missing_feature,
    servable,
)
from kyverno_mp.policy.cel_kinds.policies import AnyCelPolicy
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument
from kyverno_mp.policy.cel_kinds.validating_policy import (
    JSON_MODE,
    CelPolicyException,
    authorizes,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.policy_review import KINDS_OF_PATH, PolicyReview, ReviewOptions

REFUSED: Final = "webhook.policy_refused"
_PATHS: Final = ("/policyvalidate", "/exceptionvalidate", *KINDS_OF_PATH)
_PATH_OF: Final = {
    kind: path for path in reversed(_PATHS) for kind in KINDS_OF_PATH[path]
}


class Refusal(NamedTuple):
    """A rejected document (``rule`` is "") or a skipped rule."""

    code: str
    message: str
    rule: str = ""


def left_out(compiled: CompiledPolicy) -> Iterator[Refusal]:
    """Yield the rules that the server skips, including autogen rules."""
    try:
        servable(compiled, has_background=True)
        fate = "the server skips this rule"
    except PolicyInvalid:
        fate = "the server rejects the policy"
    for rule in compiled.rules:
        if feature := missing_feature(rule, has_background=True):
            message = f"not supported by this version: {feature}; {fate}"
            yield Refusal(UNSUPPORTED, message, rule.name)


def left_out_without_pool(compiled: CompiledPolicy) -> Iterator[Refusal]:
    """Yield the rules that only a server without a background pool skips."""
    for rule in compiled.rules:
        feature = missing_feature(rule, has_background=False)
        if feature and not rule.unsupported:
            message = f"a server without a background pool skips this rule: {feature}"
            yield Refusal(NO_BACKGROUND, message, rule.name)


def refused_by_webhook(raw: dict[str, Json]) -> Iterator[Refusal]:
    """Yield the answer of the policy webhook if it denies the document.

    The server's own review runs, without data of a cluster. Its clock stands still,
    because a finding must not depend on the machine's speed; steps are bounded.
    """
    path = _PATH_OF.get(str(raw.get("kind", "")))
    if path is None:
        return
    try:
        review = PolicyReview(ReviewOptions(), monotonic_s=lambda: 0.0)
        answer = json.loads(review.answer(path, _review(raw)))
    except Error as error:
        yield Refusal(error.code, error.message)
        return
    response = answer["response"]
    if not response["allowed"]:
        yield Refusal(REFUSED, str(response["status"]["message"]))


def _review(raw: dict[str, Json]) -> bytes:
    """Return the review that the API server would send for a new object."""
    group, _, version = str(raw.get("apiVersion", "")).rpartition("/")
    metadata = raw.get("metadata") or {}
    kind = {"group": group, "version": version, "kind": raw.get("kind")}
    request = {
        "uid": "lint",
        "kind": kind,
        "resource": {"group": group, "version": version, "resource": ""},
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "operation": "CREATE",
        "userInfo": {"username": "lint"},
        "object": raw,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps({**review, "request": request}).encode()


def unserved(
    policy: AnyCelDocument | CelPolicyException,
) -> str:
    """Name the kind of policies if the server does not evaluate it, else ""."""
    if isinstance(policy, AnyCelPolicy | CelPolicyException):
        return ""
    if policy.mode == JSON_MODE:
        return "policies of evaluation mode JSON"
    if authorizes(policy):
        return f"policies of evaluation mode {policy.mode}"
    return ""
