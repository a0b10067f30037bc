"""Exclude the rules that this version of the service does not run.

Room: leader. Takes: a compiled policy. Gives: the rules in force, and the excluded
ones.
Next: leader/policy_store.py; the CLI reports the same before a policy is served.
"""

from typing import Final, TypeVar

import msgspec

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.rules import CompiledPolicy, RuleIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY

UNSUPPORTED: Final = "leader.unsupported"
UNSUPPORTED_KIND: Final = "leader.unsupported_kind"
NO_BACKGROUND: Final = "leader.no_background_pool"
NO_POOL: Final = "(no background pool: KYVERNO_MP_BACKGROUND_WORKERS)"
"""Message for rules that need a pool that this installation does not run."""
_CLEANUP_KINDS: Final = frozenset(CLEANUP_POLICY.names)
_OTHERS: Final = "; its other rules are in force"


def servable(
    compiled: CompiledPolicy, *, has_background: bool
) -> tuple[CompiledPolicy, str]:
    """Exclude the rules that this version cannot evaluate or apply, and name them.

    ``has_background``: a background pool executes the tasks that reviews trigger. The
    other rules stay in force, because requests that they deny would otherwise be
    allowed. Raises: PolicyInvalid if no rule remains, or if an excluded rule might have
    ended the evaluation before the other rules (applyRules One).
    """
    missing = {
        rule.name: missing_feature(rule, has_background=has_background)
        for rule in compiled.rules
    }
    lacking = [
        f"rule {name} needs {feature}" for name, feature in missing.items() if feature
    ]
    if not lacking:
        return compiled, ""
    message = "not supported by this installation: " + ", ".join(lacking)
    rules = tuple(rule for rule in compiled.rules if not missing[rule.name])
    if not rules or compiled.policy.apply_rules == "One":
        raise PolicyInvalid(UNSUPPORTED, message)
    return msgspec.structs.replace(compiled, rules=rules), message + _OTHERS


_P = TypeVar("_P", CompiledPolicy, ValidatingPolicyIR, MutatingPolicyIR)


def left_to_api_server(compiled: _P) -> _P:
    """Return the policy without reviews and scans, for native enforcement.

    KYVERNO: its results are in reports if the generated policy is reported.
    """
    policy = msgspec.structs.replace(compiled.policy, admission=False, background=False)
    return msgspec.structs.replace(compiled, policy=policy)


def missing_feature(rule: RuleIR, *, has_background: bool) -> str:
    """Return the feature that the rule needs but this installation lacks, or ""."""
    if rule.unsupported or has_background:
        return rule.unsupported
    if rule.rule_type == "generate":
        return f"generate {NO_POOL}"
    if rule.mutate is not None and rule.mutate.targets is not None:
        return f"mutate existing {NO_POOL}"
    return ""


def unsupported_kind(kind: str) -> PolicyInvalid:
    """Return the error for a kind of policy that the service does not support."""
    message = f"{kind} is not supported by this version"
    if kind in _CLEANUP_KINDS:
        message = (
            f"{kind}: clean-up policies are not read from folders, only in a cluster"
        )
    return PolicyInvalid(UNSUPPORTED_KIND, message)
