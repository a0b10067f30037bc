"""Decide whether a failure blocks: compute the effective failure action.

Room: program. Takes: ActionIR of policy and rules, namespace and its labels. Gives:
"Enforce" or "Audit". Next: program/engine.py.
Source: docs/behaviour/engine 6.9. Upstream's policy cache (per rule) and its response
compute the action differently, and both ways are kept.
"""

from collections.abc import Iterable, Mapping

from kyverno_mp.ir.match import SelectorIR
from kyverno_mp.ir.rules import ActionIR, OverrideIR, PolicyIR, RuleIR
from kyverno_mp.values.kubernetes.selector import compile_selector
from kyverno_mp.values.wildcard import matches

ENFORCE = "Enforce"
AUDIT = "Audit"


def selector_matches(selector: SelectorIR, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector; an invalid selector never matches."""
    if selector.error:
        return False
    terms = [(t.key, t.operator, t.values) for t in selector.terms]
    return compile_selector(selector.labels, terms)(labels)


def _namespace_listed(override: OverrideIR, namespace: str) -> bool:
    return any(matches(pattern, namespace) for pattern in override.namespaces)


def rule_action(
    policy: PolicyIR, rule: RuleIR, namespace: str, labels: Mapping[str, str]
) -> str:
    """Return the action of one rule, which makes it enforcing or auditing.

    KYVERNO: an override with namespaces and a selector matches if either matches (6.9).
    """
    for override in rule.action.overrides or policy.action.overrides:
        if (
            (not override.namespaces and override.selector is None)
            or _namespace_listed(override, namespace)
            or (
                override.selector is not None
                and selector_matches(override.selector, labels)
            )
        ):
            return override.action
    return rule.action.action or policy.action.action or AUDIT


def _overridden(
    action: ActionIR, namespace: str, labels: Mapping[str, str]
) -> str | None:
    for override in action.overrides:
        selected = override.selector is None or selector_matches(
            override.selector, labels
        )
        if not override.namespaces:
            if selected:
                return override.action
        elif selected and _namespace_listed(override, namespace):
            return override.action
    return None


def response_action(
    policy: PolicyIR,
    actions: Iterable[tuple[str, str, ActionIR]],
    namespace: str,
    labels: Mapping[str, str],
) -> str:
    """Return the action of a whole response.

    The first rule with an explicit action decides.

    ``actions``: (rule name, rule type, action) of the rules to consider, in order.
    """
    for _name, rule_type, action in actions:
        if rule_type not in ("validate", "verifyImages"):
            continue
        chosen = _overridden(action, namespace, labels) or action.action
        if chosen:
            return chosen
    chosen = _overridden(policy.action, namespace, labels) or policy.action.action
    return chosen or AUDIT


def is_static(policy: PolicyIR, rule: RuleIR) -> bool:
    """Return whether ``rule_action`` is the same for every namespace."""
    return not (rule.action.overrides or policy.action.overrides)
