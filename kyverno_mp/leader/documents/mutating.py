"""Compile one stored MutatingPolicy.

Room: leader. Takes: a StoredDocument, the exceptions in force. Gives: CompileOutcome.
Next: leader/policy_store.py, which also handles the errors.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4, 7, 10.1.
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_mutating_policy
from kyverno_mp.compiler.cel_kinds.mutating_policy import (
    compile_mutating_with_exceptions,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.cel_kinds.validating_policy import EXCEPTION_NAMES
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.exceptions import in_namespace
from kyverno_mp.leader.servable import NO_POOL, UNSUPPORTED, left_to_api_server
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
from kyverno_mp.policy.cel_kinds.served import decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json


def compile_mutating_document(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[CelPolicyException],
    *,
    force_ignore: bool,
    has_background: bool,
) -> CompileOutcome:
    """Read, check, compile and encode one policy. Raises: InputError.

    An exception that does not compile, or whose condition would make external calls,
    exempts nothing, and the status reports it.
    """
    decoded = decode_served(in_namespace(raw, document.key[1]), file=document.file)
    assert isinstance(decoded, MutatingPolicy)
    problems = list(review(decoded))
    if problems:
        raise DocumentInvalid(problems, Where(policy=decoded.metadata.name))
    compiled, unusable = compile_mutating_with_exceptions(
        decoded, exceptions, EXCEPTION_NAMES
    )
    if compiled.mutates_existing and not has_background:
        raise PolicyInvalid(UNSUPPORTED, f"mutate existing {NO_POOL}")
    if document.is_from_cluster() and is_generated(decoded.status):
        compiled = left_to_api_server(compiled)
    if force_ignore:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [f"PolicyException {key} is ignored: {one}" for key, one in unusable]
    status = _status_of(document, decoded, compiled, warnings)
    return CompileOutcome(status, encode_mutating_policy(compiled))


def _status_of(
    source: StoredDocument,
    document: MutatingPolicy,
    compiled: MutatingPolicyIR,
    warnings: Sequence[str],
) -> PolicyStatus:
    kind, namespace, name = source.key
    return PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=len(document.spec.mutations),
        background=compiled.policy.background,
        rules=tuple(
            RuleStatus(f"{body.copy}-{name}" if body.copy else name, "mutate")
            for body in compiled.bodies
        ),
        generation=source.generation,
    )
