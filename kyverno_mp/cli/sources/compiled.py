"""Compile the loaded policies, each separately.

Room: cli. Takes: PolicySet, exceptions. Gives: Compiled and the records of each kind.
Next: cli/apply/evaluate.
Source: docs/behaviour/cli 4; docs/behaviour/cel 4.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace as replaced

from kyverno_mp.cli.output.screen import one_line
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import condition_faults
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.check import check
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid

if TYPE_CHECKING:
    from kyverno_mp.ir.authorization import AuthorizationPolicyIR
    from kyverno_mp.ir.cel_policies import AnyCelPolicyIR
    from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
    from kyverno_mp.policy.cel_kinds.served import AnyCelDocument


class Compiled(msgspec.Struct):
    """Policies that are ready to run, and policies rejected by the compiler."""

    policies: list[CompiledPolicy] = []
    cleanups: list[CleanupIR] = []
    invalid: list[tuple[str, PolicyInvalid]] = []
    """(policy name, error with all problems)."""
    invalid_rules: int = 0
    """Number of rules in rejected policies; the banner includes them."""


def require_valid(policies: PolicySet, compiled: Compiled) -> None:
    """Raise CommandFailed with the reasons if any policy or policy file is left out."""
    reasons = [
        f"{path}: {reason}"
        for path, reason in (*policies.failed_paths, *policies.silent)
        if (path, reason) not in policies.foreign
    ]
    reasons += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    reasons += [
        f"policy {policy.metadata.name}, rule {rule.name}: not evaluated: {lacking}"
        for policy in policies.documents
        for rule in policy.spec.rules
        if (lacking := missing_capability(rule, verifies=True))
    ]
    if reasons:
        lines = "".join(f"\n  {one_line(reason)}" for reason in reasons)
        raise CommandFailed(f"policies are left out (--require-valid):{lines}")


def compile_all(
    documents: Sequence[AnyPolicy],
    exceptions: Sequence[PolicyException],
    cleanups: Sequence[AnyCleanupPolicy] = (),
    *,
    verifies: bool = False,
) -> Compiled:
    """Check and compile policies separately, so that errors do not affect others.

    ``verifies``: the caller can verify images; otherwise verifyImages rules are not
    run.
    """
    compiled = Compiled()
    for document in documents:
        try:
            _refuse_problems(document)
            known_as = document.written_key
            policy = compile_policy(document, exceptions, known_as, verifies=verifies)
            compiled.policies.append(_without_generated(policy, document))
        except PolicyInvalid as error:
            compiled.invalid.append((document.metadata.name, error))
            compiled.invalid_rules += len(list(expand(document)))
    if cleanups:
        _compile_cleanups(compiled, cleanups)
    return compiled


def _compile_cleanups(compiled: Compiled, cleanups: Sequence[AnyCleanupPolicy]) -> None:
    """Compile clean-up policies. KYVERNO: semantic checks run only at admission."""
    from kyverno_mp.compiler.cleanup import compile_cleanup

    for cleanup in cleanups:
        try:
            compiled.cleanups.append(compile_cleanup(cleanup))
        except PolicyInvalid as error:
            compiled.invalid.append((cleanup.metadata.name, error))


def _without_generated(policy: CompiledPolicy, document: AnyPolicy) -> CompiledPolicy:
    """Remove the CEL rules of a policy that the API server enforces.

    KYVERNO: the status in a file is trusted, and such a rule has no result
    (docs/behaviour/cli 4). Only the command line needs this, because in a cluster such
    a policy is not in a webhook configuration.
    """
    status = document.status if type(document.status) is dict else {}
    generated = status.get("validatingadmissionpolicy") or {}
    if generated.get("generated") is not True:
        return policy
    rules = tuple(
        replaced(rule, validate=replaced(rule.validate, cel=None))
        if rule.validate is not None
        else rule
        for rule in policy.rules
    )
    return replaced(policy, rules=rules)


def compile_admission(policy_set: PolicySet) -> list[AdmissionPolicyIR]:
    """Compile the API server's own policies, each with its bindings."""
    if not policy_set.admission:
        return []
    # PERF: imports CEL.
    from kyverno_mp.compiler.admission_policy import compile_admission_policy

    return [
        compile_admission_policy(policy, policy_set.bindings)
        for policy in policy_set.admission
    ]


def compile_cel(
    policy_set: PolicySet, exceptions: Sequence[CelPolicyException], compiled: Compiled
) -> list[ValidatingPolicyIR]:
    """Compile ValidatingPolicies; add those that do not compile to ``invalid``."""
    return _compiled(policy_set.validating, exceptions, compiled)


def compile_authorizations(
    policy_set: PolicySet,
    exceptions: Sequence[CelPolicyException],
    compiled: Compiled,
    modes: Collection[str],
) -> "list[AuthorizationPolicyIR]":
    """Compile the policies in the evaluation modes HTTP and Envoy.

    ``modes``: the modes of the given requests. Raises: CommandFailed for a policy of
    these modes that does not compile: as upstream, the run ends. Others are invalid.
    """
    if not policy_set.authorization:
        return []
    # PERF: imports CEL.
    from kyverno_mp.compiler.cel_kinds.authorization import compile_authorization
    from kyverno_mp.expr.cel.authz.library import mode_of

    policies = []
    for document in policy_set.authorization:
        name, mode = document.metadata.name, document.mode
        try:
            policies.append(compile_authorization(document, exceptions))
        except PolicyInvalid as error:
            if mode not in modes:
                compiled.invalid.append((name, error))
                continue
            reason = error.message
            if isinstance(error, DocumentInvalid):
                reason = error.problems[0].upstream or reason
            message = f"failed to compile {mode_of(mode).word} policy {name}: {reason}"
            raise CommandFailed(message) from error
    return policies


def compile_others(
    policy_set: PolicySet, exceptions: Sequence[CelPolicyException], compiled: Compiled
) -> "list[AnyCelPolicyIR]":
    """Compile the other kinds of policies in CEL, like ``compile_cel``."""
    return _compiled(policy_set.cel, exceptions, compiled)


def compile_images(
    policy_set: PolicySet, exceptions: Sequence[CelPolicyException], compiled: Compiled
) -> "list[ImageValidatingPolicyIR]":
    """Compile ImageValidatingPolicies.

    KYVERNO: a policy that does not compile has no result and is not reported
    (docs/behaviour/cel 10.4). Here it is invalid, like policies of other kinds.
    """
    return _compiled(policy_set.images, exceptions, compiled)


def _compiled(
    documents: "Sequence[AnyCelDocument]",
    exceptions: Sequence[CelPolicyException],
    compiled: Compiled,
) -> list[Any]:
    """Return the IR of each policy; add those that do not compile to ``invalid``."""
    if not documents:
        return []
    # PERF: imports CEL.
    from kyverno_mp.compiler.cel_kinds.kinds import row_of

    policies = []
    for document in documents:
        try:
            policies.append(row_of(document.kind).compile(document, exceptions))
        except PolicyInvalid as error:
            compiled.invalid.append((document.metadata.name, error))
    return policies


def _refuse_problems(document: AnyPolicy) -> None:
    """Raise DocumentInvalid with all problems of the policy."""
    # KYVERNO: without a cluster, no kind is treated as cluster-scoped.
    computed = expand(document)
    problems = check(document, rules=computed, cluster_kinds=frozenset()).problems
    problems += tuple(condition_faults(document))
    # KYVERNO: a policy without rules is accepted, and does nothing.
    problems = tuple(
        problem for problem in problems if problem.code != "policy.no_rules"
    )
    if problems:
        raise DocumentInvalid(problems, Where(policy=document.key))
