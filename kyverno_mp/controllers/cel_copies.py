"""Generate the autogen copies of a policy of policies.kyverno.io, of any kind.

Room: controllers. Takes: a policy. Gives: ``copies_of``.
Next: cel_status.py, controllers/webhook_config/cel.py.
Source: docs/behaviour/cel 7.
"""

from collections.abc import Iterator

from kyverno_mp.compiler.autogen import cel as autogen_cel
from kyverno_mp.compiler.autogen import mutating as autogen_mutating
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicy,
    ImageValidatingPolicySpec,
)
from kyverno_mp.policy.cel_kinds.policies import (
    GeneratingPolicy,
    GeneratingPolicySpec,
    MutatingPolicy,
    MutatingPolicySpec,
)
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import ValidatingPolicySpec

AnySpec = (
    ValidatingPolicySpec
    | MutatingPolicySpec
    | GeneratingPolicySpec
    | ImageValidatingPolicySpec
)


def copies_of(policy: AnyServedPolicy) -> Iterator[tuple[str, AnySpec]]:
    """Yield (name of the autogen configuration, spec) of each copy."""
    if isinstance(policy, GeneratingPolicy):
        return
    if isinstance(policy, MutatingPolicy):
        yield from autogen_mutating.copies_of(policy.spec)
    elif isinstance(policy, ImageValidatingPolicy):
        yield from autogen_cel.copies_of(policy.spec)
    else:
        yield from autogen_cel.copies_of(policy.spec)
