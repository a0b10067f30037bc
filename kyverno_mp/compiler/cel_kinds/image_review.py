"""Check an ImageValidatingPolicy on creation, as Kyverno's policy webhook does.

Room: compiler. Takes: decoded documents. Gives: upstream's messages. Next:
webhook/policy_review.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4; Kyverno pkg/image/verification/evaluator/validate.go.
"""

from kyverno_mp.compiler.cel_kinds.image_validating_policy import expression_problems
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.cel_kinds.validating_review import of_first_part
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy


def image_refusals(document: ImageValidatingPolicy) -> list[str]:
    """Return upstream's errors on creation of the policy; none if it is accepted.

    KYVERNO: compilation stops after the first part of the spec with a faulty
    expression.
    """
    found = of_first_part(expression_problems(document))
    return [*found, *(one.upstream for one in review(document))]
