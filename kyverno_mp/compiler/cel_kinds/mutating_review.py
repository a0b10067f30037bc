"""Check a MutatingPolicy on creation, as Kyverno's policy webhook does.

Room: compiler. Takes: decoded documents. Gives: upstream's messages. Next:
webhook/policy_review.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4; Kyverno pkg/cel/policies/mpol/validate.go;
docs/behaviour/v1.19 5 (the version that introduced reviews of these kinds).
"""

import re
from typing import Final

from kyverno_mp.compiler.cel_kinds.mutating_policy import build_mutating
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy

_PART: Final = re.compile(r"spec\.(?:mutations\[\d+\]|\w+)")


def mutating_refusals(document: MutatingPolicy) -> list[str]:
    """Return upstream's errors on creation of the policy; none if it is accepted.

    KYVERNO: compilation stops after the first part of the spec with a faulty
    expression.
    """
    found: list[str] = []
    first = ""
    for problem in build_mutating(document).problems:
        part = _PART.match(problem.path)
        name = problem.path if part is None else part[0]
        first = first or name
        if name == first:
            found.append(problem.upstream)
    return [*found, *(one.upstream for one in review(document))]
