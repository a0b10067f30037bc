"""Compile one stored document, and report which of its rules are in force.

Room: leader. Takes: a StoredDocument, the exceptions in force. Gives: CompileOutcome:
the encoded policy and its status. Next: leader/policy_store.py, which also handles the
errors.
Source: docs/behaviour/controllers 3.8 (ready, rulecount).
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.servable import (
    UNSUPPORTED,
    left_to_api_server,
    servable,
    unsupported_kind,
)
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.limits import STATUS_TEXT_LENGTH_MAX
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.jsonvalue import Json


def compile_document(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[PolicyException],
    *,
    force_ignore: bool,
    has_background: bool,
) -> CompileOutcome:
    """Read, check, compile and encode one policy; ``raw`` is the document's content.

    Raises: InputError.
    """
    decoded, warnings = read(raw, file=document.file)
    if not isinstance(decoded, AnyPolicy):
        raise unsupported_kind(document.key[0])
    unusable: dict[str, str] = {}
    compiled = compile_policy(decoded, exceptions, verifies=True, unusable=unusable)
    ignored = (
        f"PolicyException {key} is ignored: {reason}"
        for key, reason in unusable.items()
    )
    warnings = (*warnings, *ignored)
    if document.is_from_cluster() and is_generated(raw.get("status")):
        compiled = left_to_api_server(compiled)
    compiled, lacking = servable(compiled, has_background=has_background)
    if force_ignore:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    encoded = encode_policy(compiled)
    status = _status_of(document, decoded, compiled, warnings)
    if lacking:
        status = msgspec.structs.replace(
            status, ready=False, message=clip(lacking), code=UNSUPPORTED
        )
    return CompileOutcome(status, encoded)


def clip(message: str) -> str:
    """Return the start of a string, up to the length limit of a status."""
    if len(message) <= STATUS_TEXT_LENGTH_MAX:
        return message
    return message[:STATUS_TEXT_LENGTH_MAX] + "..."


def _status_of(
    source: StoredDocument,
    document: AnyPolicy,
    compiled: CompiledPolicy,
    warnings: Sequence[str],
) -> PolicyStatus:
    policy = compiled.policy
    actions = [policy.action, *(rule.action for rule in compiled.rules)]
    enforces = any(
        action.action == "Enforce"
        or any(override.action == "Enforce" for override in action.overrides)
        for action in actions
    )
    kind, namespace, name = source.key
    return PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=len(document.spec.rules),
        mode="enforce" if enforces else "audit",
        background=policy.background,
        rules=tuple(RuleStatus(rule.name, rule.rule_type) for rule in compiled.rules),
        generation=source.generation,
    )
