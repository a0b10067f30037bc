"""Check a MutatingPolicy as Kyverno's policy webhook does when it is created.

Room: compiler. Takes: decoded documents. Gives: upstream's messages. Next:
webhook/policy_review.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4; Kyverno pkg/cel/policies/mpol/validate.go;
docs/behaviour/v1.19 5 (since when these kinds are reviewed).
"""

import re
from typing import Final

from kyverno_mp.compiler.cel_kinds.mutating_policy import build_mutating
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy

_PART: Final = re.compile(r"spec\.(?:mutations\[\d+\]|\w+)")


def mutating_refusals(document: MutatingPolicy) -> list[str]:
    """Return upstream's errors when the policy is created, none if it is accepted.

    KYVERNO: the first part of the spec with a faulty expression ends compilation.
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
