"""Check a PolicyException.

Room: policy. Takes: PolicyException. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/engine 8.7 (admission validation).
"""

from kyverno_mp.policy.checks.rules.rule import check_standard
from kyverno_mp.policy.checks.rules.subject import (
    Problems,
    forbidden,
    invalid,
    required,
)
from kyverno_mp.policy.checks.rules.variables import query_faults
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.match import MatchFilters


def check_exception(document: PolicyException) -> Problems:
    """Check user info, match, the named policies and the pod security entries."""
    spec = document.spec
    if spec.background:
        yield from check_no_user_info(spec.match, "spec.match")
    if spec.match.any and spec.match.all:
        detail = "Can't specify any and all together"
        yield invalid("spec.match", "", spec.match, detail)
    for index, target in enumerate(spec.exceptions):
        if not target.policy_name:
            path = f"spec.exceptions[{index}].policyName"
            yield required(path, "", "An exception requires a policy name")
    for index, entry in enumerate(spec.pod_security):
        yield from check_standard(entry, f"spec.podSecurity[{index}]", "")


def condition_faults(document: PolicyException) -> Problems:
    """Yield the queries of the conditions that do not parse.

    KYVERNO: a stored exception with such a query stays, and does not exempt.
    """
    conditions = document.spec.conditions
    if conditions is not None:
        yield from query_faults(conditions.raw(), "spec.conditions")


def check_no_user_info(match: MatchFilters, path: str) -> Problems:
    """Reject user info in background exceptions and clean-up, which have no request."""
    for mode, filters in (("any", match.any), ("all", match.all)):
        for index, entry in enumerate(filters):
            user_fields = (
                ("roles", entry.roles),
                ("clusterRoles", entry.cluster_roles),
                ("subjects", entry.subjects),
            )
            for name, values in user_fields:
                if values:
                    field_path = f"{path}.{mode}[{index}].{name}"
                    yield forbidden(field_path, "", "Usage of user info is forbidden")
