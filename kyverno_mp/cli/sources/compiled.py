"""Check and compile the policies that files contain, each on its own.

Room: cli. Takes: the documents of a PolicySet, exceptions. Gives: Compiled: policies
ready to run, and the refused ones with all their problems. Next: apply/evaluate.
May touch: nothing outside its arguments.
Source: docs/behaviour/cli 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace as replaced

from kyverno_mp.cli.sources.policies import AnyCleanup, PolicySet
from kyverno_mp.compiler.autogen import expand
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import condition_faults
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.policy.check import check
from kyverno_mp.policy.cluster_policy import AnyPolicy
from kyverno_mp.policy.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid


@dataclass(slots=True)
class Compiled:
    """Policies ready to run, and those refused at compile time."""

    policies: list[CompiledPolicy] = field(default_factory=list)
    cleanups: list[CleanupIR] = field(default_factory=list)
    invalid: list[tuple[str, PolicyInvalid]] = field(default_factory=list)
    """(policy name, all its problems)."""
    invalid_rules: int = 0
    """Rules of the policies that were refused; the banner counts them."""


def compile_all(
    documents: Sequence[AnyPolicy],
    exceptions: Sequence[PolicyException],
    cleanups: Sequence[AnyCleanup] = (),
) -> Compiled:
    """Check and compile every policy separately: an invalid one affects no other."""
    compiled = Compiled()
    for document in documents:
        try:
            _refuse_problems(document)
            policy = compile_policy(document, exceptions, document.written_key)
            compiled.policies.append(_without_generated(policy, document))
        except PolicyInvalid as error:
            compiled.invalid.append((document.metadata.name, error))
            compiled.invalid_rules += len(list(expand(document)))
    if cleanups:
        _compile_cleanups(compiled, cleanups)
    return compiled


def _compile_cleanups(compiled: Compiled, cleanups: Sequence[AnyCleanup]) -> None:
    """KYVERNO: the meaning of clean-up policies is checked at admission only."""
    from kyverno_mp.compiler.cleanup import compile_cleanup

    for cleanup in cleanups:
        try:
            compiled.cleanups.append(compile_cleanup(cleanup))
        except PolicyInvalid as error:
            compiled.invalid.append((cleanup.metadata.name, error))


def _without_generated(policy: CompiledPolicy, document: AnyPolicy) -> CompiledPolicy:
    """Remove CEL from the rules of a policy that the API server enforces itself.

    KYVERNO: the status of a file is trusted; such a rule yields no result
    (docs/behaviour/cli 4). In a cluster such a policy is in no webhook, so only the
    command line needs this.
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


def compile_admission(found: PolicySet) -> list[AdmissionPolicyIR]:
    """Compile the API server's own policies, each with its bindings."""
    if not found.admission:
        return []
    # PERF: loads CEL.
    from kyverno_mp.compiler.admission_policy import compile_admission_policy

    return [compile_admission_policy(one, found.bindings) for one in found.admission]


def _refuse_problems(document: AnyPolicy) -> None:
    """Raise DocumentInvalid with all problems of the policy."""
    # KYVERNO: without a cluster no kind counts as cluster-scoped.
    computed = expand(document)
    problems = check(document, rules=computed, cluster_kinds=frozenset()).problems
    problems += tuple(condition_faults(document))
    # KYVERNO: a policy without rules is accepted, and does nothing.
    problems = tuple(one for one in problems if one.code != "policy.no_rules")
    if problems:
        raise DocumentInvalid(problems, Where(policy=document.key))
