"""Decide which policies of a denied review deny it.

Room: webhook. Takes: a PolicyResponse. Gives: denies. Next: recorder.py,
cli/replay/verdicts.py.
Source: docs/behaviour/controllers 2.7; docs/replay.md (the format).

A recording and its replay share this decision, so they name the same policies.
"""

from kyverno_mp.admission.denial import blocks
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of


def denies(response: PolicyResponse) -> bool:
    """Return whether this policy denies the request.

    The action of a ValidatingPolicy also applies to the errors of its expressions; for
    all other policies, failurePolicy decides about errors.
    """
    if rule_type_of(response.policy.kind) == "validate":
        return response.action == "Enforce" and (
            response.failed() or response.errored()
        )
    return blocks(response)
