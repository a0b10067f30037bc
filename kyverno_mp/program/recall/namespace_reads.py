"""Determine the rules that depend on the cluster's data about the request's namespace.

Room: program. Takes: records of a policy and of a rule. Gives: reads_namespace; plans
compute it for their candidates. Next: webhook/review/service, which reads the API
server only if it is true.
Source: the readers of Request.namespace_labels and Request.namespace_known; a test
lists their modules.

A new namespace is not published yet when its first objects are reviewed. Rules that
depend neither on its labels nor on its existence have the same result without the
namespace.
"""

from kyverno_mp.ir.rules import ActionIR, PolicyIR, RuleIR
from kyverno_mp.program.matching.match import reads_namespace_labels


def reads_namespace(policy: PolicyIR, rule: RuleIR) -> bool:
    """Return whether the namespace's labels or existence may change the result.

    Without the namespace, CEL fails and no PolicyException matches.
    """
    return (
        bool(rule.exceptions)
        or reads_namespace_labels(rule.match, rule.exclude)
        or _selects(rule.action)
        or _selects(policy.action)
        or _reads_in_body(rule)
    )


def _selects(action: ActionIR) -> bool:
    return any(each.selector is not None for each in action.overrides)


def _reads_in_body(rule: RuleIR) -> bool:
    body = rule.validate
    return body is not None and (body.cel is not None or body.assertion is not None)
