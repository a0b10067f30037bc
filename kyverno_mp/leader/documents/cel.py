"""Compile one stored policy of policies.kyverno.io.

Room: leader. Takes: a StoredDocument, the exceptions in force. Gives: CompileOutcome.
Next: leader/policy_store.py, which also handles the errors.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4, 6, 7; docs/behaviour/controllers 13.
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_validating_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    EXCEPTION_NAMES,
    compile_with_exceptions,
)
from kyverno_mp.compiler.cel_kinds.validating_review import review_problems
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.exceptions import in_namespace
from kyverno_mp.leader.servable import UNSUPPORTED_KIND, left_to_api_server
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.policy.cel_kinds.validating_policy import (
    JSON_MODE,
    AnyValidatingPolicy,
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json


def compile_cel_document(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[CelPolicyException],
    *,
    force_ignore: bool,
    has_background: bool = False,
) -> CompileOutcome:
    """Read, check, compile and encode one policy. Raises: InputError.

    An exception that does not compile, or whose condition would make external calls,
    exempts nothing, and the status reports it.
    """
    del has_background  # for kinds that change further objects
    decoded = decode_validating_policy(
        in_namespace(raw, document.key[1]), file=document.file
    )
    assert not isinstance(decoded, CelPolicyException)
    _refuse_mode(decoded)
    problems = list(review_problems(decoded))
    if problems and decoded.mode != JSON_MODE:
        raise DocumentInvalid(problems, Where(policy=decoded.metadata.name))
    compiled, unusable = compile_with_exceptions(decoded, exceptions, EXCEPTION_NAMES)
    if document.is_from_cluster() and is_generated(decoded.status):
        compiled = left_to_api_server(compiled)
    if force_ignore:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [f"PolicyException {key} is ignored: {one}" for key, one in unusable]
    status = _status_of(document, decoded, compiled, warnings)
    return CompileOutcome(status, encode_validating_policy(compiled))


def _refuse_mode(document: AnyValidatingPolicy) -> None:
    if document.mode not in ("", "Kubernetes", JSON_MODE):
        raise PolicyInvalid(
            UNSUPPORTED_KIND,
            f"evaluation mode {document.mode} is not supported by this version",
        )


def _status_of(
    source: StoredDocument,
    document: AnyValidatingPolicy,
    compiled: ValidatingPolicyIR,
    warnings: Sequence[str],
) -> PolicyStatus:
    kind, namespace, name = source.key
    return PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=len(document.spec.validations),
        mode="enforce" if "Deny" in compiled.actions else "audit",
        background=compiled.policy.background,
        rules=tuple(
            RuleStatus(f"{body.copy}-{name}" if body.copy else name, "validate")
            for body in compiled.bodies
        ),
        generation=source.generation,
    )
