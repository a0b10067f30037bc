"""Refuse a namespaced CEL policy that takes too much memory when it is linked.

Room: compiler. Takes: decoded documents without faults. Gives: the rejection.
Next: webhook/policy_review.py. May touch: nothing outside its arguments.
"""

from kyverno_mp.compiler.cel_kinds.image_validating_policy import compile_image_policy
from kyverno_mp.compiler.cel_kinds.index import (
    encode_image_policy,
    encode_mutating_policy,
    encode_validating_policy,
)
from kyverno_mp.compiler.cel_kinds.mutating_policy import compile_mutating_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.compiler.linked_size import why_too_large
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import AnyValidatingPolicy


def too_large(
    document: AnyValidatingPolicy | MutatingPolicy | ImageValidatingPolicy,
) -> list[str]:
    """Return the reason to reject a namespaced policy; none for a cluster-wide policy.

    Raises: PolicyInvalid.
    """
    namespace = document.metadata.namespace
    if not namespace:
        return []
    if isinstance(document, MutatingPolicy):
        encoded = encode_mutating_policy(compile_mutating_policy(document))
    elif isinstance(document, ImageValidatingPolicy):
        encoded = encode_image_policy(compile_image_policy(document))
    else:
        encoded = encode_validating_policy(compile_validating_policy(document))
    text = why_too_large(encoded, namespace)
    return [text] if text else []
