"""Compile one stored ImageValidatingPolicy.

Room: leader. Takes: a StoredDocument, the exceptions in force. Gives: CompileOutcome.
Next: leader/policy_store.py, which also handles the errors.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4, 7, 10.4.
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.compiler.cel_kinds.image_validating_policy import (
    EXCEPTION_NAMES,
    compile_with_exceptions,
)
from kyverno_mp.compiler.cel_kinds.index import encode_image_policy
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.exceptions import in_namespace
from kyverno_mp.leader.servable import UNSUPPORTED_KIND
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicy,
    decode_image_policy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE, CelPolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json


def compile_image_document(
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
    decoded = decode_image_policy(
        in_namespace(raw, document.key[1]), file=document.file
    )
    if decoded.mode not in ("", "Kubernetes", JSON_MODE):
        text = f"evaluation mode {decoded.mode} is not supported by this version"
        raise PolicyInvalid(UNSUPPORTED_KIND, text)
    problems = list(review(decoded))
    if problems:
        raise DocumentInvalid(problems, Where(policy=decoded.metadata.name))
    compiled, unusable = compile_with_exceptions(decoded, exceptions, EXCEPTION_NAMES)
    if force_ignore:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [f"PolicyException {key} is ignored: {one}" for key, one in unusable]
    status = _status_of(document, decoded, compiled, warnings)
    return CompileOutcome(status, encode_image_policy(compiled))


def _status_of(
    source: StoredDocument,
    document: ImageValidatingPolicy,
    compiled: ImageValidatingPolicyIR,
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
        background=False,
        rules=tuple(
            RuleStatus(f"{body.copy}-{name}" if body.copy else name, "verifyImages")
            for body in compiled.bodies
        ),
        generation=source.generation,
    )
