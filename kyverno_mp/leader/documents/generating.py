"""Compile one stored GeneratingPolicy.

Room: leader. Takes: a StoredDocument, the exceptions in force. Gives: CompileOutcome.
Next: leader/policy_store.py, which also handles the errors.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4, 10.2.

Workers find the requests that trigger a policy; the background pool reads and evaluates
the policy itself, with its exceptions.
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_generating_policy
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_GENERATING,
    compile_generating_with,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.cel_kinds.validating_policy import names_policy
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.exceptions import in_namespace
from kyverno_mp.leader.servable import NO_POOL, UNSUPPORTED
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy
from kyverno_mp.policy.cel_kinds.served import decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json


def compile_generating_document(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[CelPolicyException],
    *,
    force_ignore: bool,
    has_background: bool,
) -> CompileOutcome:
    """Read, check, compile and encode one policy. Raises: InputError."""
    del force_ignore  # these policies never cause a denial
    decoded = decode_served(in_namespace(raw, document.key[1]), file=document.file)
    assert isinstance(decoded, GeneratingPolicy)
    problems = list(review(decoded))
    if problems:
        raise DocumentInvalid(problems, Where(policy=decoded.metadata.name))
    named = [one for one in exceptions if names_policy(one, decoded)]
    compiled, unusable = compile_generating_with(
        decoded, named, EXCEPTION_NAMES_OF_GENERATING
    )
    if not has_background:
        raise PolicyInvalid(UNSUPPORTED, f"generate {NO_POOL}")
    warnings = [f"PolicyException {key} is ignored: {one}" for key, one in unusable]
    kind, namespace, name = document.key
    status = PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=len(decoded.spec.generate),
        background=False,
        rules=(RuleStatus(name, "generate"),),
        generation=document.generation,
    )
    # A worker needs only the match constraints of the trigger.
    served = msgspec.structs.replace(compiled, exceptions=())
    return CompileOutcome(status, encode_generating_policy(served))
