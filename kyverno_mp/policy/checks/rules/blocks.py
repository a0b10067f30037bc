"""Check the combination of match and exclude blocks of one rule.

Room: policy. Takes: a Rule and its index. Gives: problems. Next: policy/check.py. May
touch: nothing outside its arguments. Source: docs/behaviour/engine 10.6 (any/all, empty
filters).
"""

from kyverno_mp.policy.checks.rules.subject import Problems, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.match import ResourceDescription

_EMPTY = ResourceDescription()


def check_blocks(rule: Rule, index: int) -> Problems:
    """Check that any, all and the inline form are not mixed."""
    path = f"spec.rules[{index}]"
    exclude, match = rule.exclude, rule.match
    if exclude is not None:
        if (exclude.any or exclude.all) and exclude.resources != _EMPTY:
            message = "can't specify any/all together with exclude resources"
            yield plain(
                f"{path}.exclude", rule.name, f"path: {path}.exclude.: {message}"
            )
        if exclude.any and exclude.all:
            # KYVERNO: the path contains match instead of exclude (10.6).
            message = "can't specify any and all together"
            yield plain(f"{path}.exclude", rule.name, f"path: {path}.match.: {message}")
    if (match.any or match.all) and match.resources != _EMPTY:
        message = "can't specify any/all together with match resources"
        yield plain(f"{path}.match", rule.name, f"path: {path}.match.: {message}")
    described = [entry.resources for entry in match.any or match.all]
    for resources in described or [match.resources]:
        if resources == _EMPTY:
            message = "match resources not specified"
            reason = f"path: {path}.match.resources.: {message}"
            yield plain(f"{path}.match.resources", rule.name, reason)
