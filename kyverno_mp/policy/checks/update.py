"""Check the changes in a policy update, and rules that run on updates.

Room: policy. Takes: the policy before and after. Gives: problems and warnings. Next:
policy/review.py.
Source: docs/behaviour/engine 10.3, 10.6 (generate rule changed on update); Kyverno
pkg/validation/policy/generate.go, ValidateOnPolicyUpdate.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kyverno_mp.policy.checks.rules.subject import Problems, Subject, plain
from kyverno_mp.policy.checks.rules.variables import (
    has_variables,
    user_info_errors,
    variable_errors,
)
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.fields.match import MatchResources

_SYNC: Final = (
    "no synchronization will be performed to the old target resource upon policy "
    "updates: "
)
_STALE: Final = "changes in the generate rule pattern could result in stale targets"
_IMMUTABLE: Final = (
    "changes of immutable fields of a rule spec in a generate rule is disallowed"
)
_ON_UPDATE: Final = (
    "only select variables are allowed in on policy update. Set "
    "spec.mutateExistingOnPolicyUpdate=false to disable update policy mode for this "
    "policy rule: "
)


def generate_changes(policy: AnyPolicy, old: AnyPolicy) -> tuple[str, str]:
    """Return (warning, error) for changes to generate rules, "" for none.

    KYVERNO: a warning alone ends validation with success; an error includes a warning
    without details.
    """
    keeps_match = any(
        rule.generate is not None and rule.generate.synchronize
        for rule in _generating(old.spec.rules)
    )
    old_rules, old_bodies = _fixed_parts(old, keeps_match=keeps_match)
    new_rules, new_bodies = _fixed_parts(policy, keeps_match=keeps_match)
    if not old_bodies <= new_bodies:
        return _SYNC + _STALE, ""
    if not old_rules <= new_rules:
        return _SYNC, _IMMUTABLE
    return "", ""


def check_on_update(subject: Subject, rule: Rule) -> Problems:
    """Check that rules that run on a policy's update do not read a request."""
    mutate = rule.mutate
    if mutate is None or "mutate" not in rule.types():
        return
    on_update = mutate.mutate_existing_on_policy_update
    if on_update is None:
        on_update = subject.policy.spec.mutate_existing_on_policy_update
    if not on_update or not has_variables(subject):
        return
    for changed in subject.rules:
        for error in variable_errors(changed, background=True):
            upstream = f"update event, policy contains invalid variables: {error.text}"
            yield plain("spec", rule.name, upstream, "policy.variable")
    for path, name, message in user_info_errors(subject.rules):
        yield plain(path, name, f"{_ON_UPDATE}{message} ", "policy.background")


def _generating(rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if "generate" in rule.types()]


def _fixed_parts(
    policy: AnyPolicy, *, keeps_match: bool
) -> tuple[set[bytes], set[bytes]]:
    """Return the immutable parts of rules and of generate bodies."""
    rules: set[bytes] = set()
    bodies: set[bytes] = set()
    for rule in _generating(policy.spec.rules):
        assert rule.generate is not None
        body = msgspec.structs.replace(
            rule.generate,
            synchronize=True,
            data=None,
            foreach=None,
            orphan_downstream_on_policy_delete=True,
            generate_existing=None,
        )
        bodies.add(msgspec.json.encode(body))
        match = rule.match if keeps_match else MatchResources()
        bare = msgspec.structs.replace(rule, generate=None, match=match)
        rules.add(msgspec.json.encode(bare))
    return rules, bodies
