"""Plan which image rules are scanned, in a separate lane.

Room: reports. Takes: the policies of one generation. Gives: image_plan_of,
with_images, is_scanned_rule. Next: reports/scan/image_lane.py follows the plan,
reports/scan/images.py evaluates the same rules.
Source: docs/behaviour/controllers 6.3, 6.4; docs/behaviour/images 2.1, 8; Kyverno
pkg/controllers/report/utils/scanner.go.

These rules read registries, so they are scanned separately. The plan does not affect
the rows of other rules in a report.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.named import is_derived_rule
from kyverno_mp.reports.plan import (
    Plan,
    ScannedRule,
    SharedPolicy,
    generations_of,
    name_of,
    rules_of,
    scanned_policy,
    scanned_rule,
    signature_of,
)
from kyverno_mp.reports.scanned_kinds import IMAGE_SCAN, is_disabled, reported_in
from kyverno_mp.results.entries import KYVERNO
from kyverno_mp.snapshot.cel_segments import ImageSegment
from kyverno_mp.snapshot.policies import PolicySegment

_TYPE: Final = "verifyImages"


class _Everything:
    """Contains any key."""

    def __contains__(self, _key: object) -> bool:
        return True


_EVERYTHING: Final = _Everything()


def image_plan_of(segment: PolicySegment, images: ImageSegment | None) -> Plan:
    """Return the plan of the lane; ``images`` None: the policies are unknown."""
    scanned, derived, references = [], set(), {}
    for policy, rule in rules_of(segment):
        if not is_scanned_rule(policy, rule):
            continue
        key = key_of_names((KYVERNO, policy.key, rule.name))
        image_rule = scanned_rule(policy, rule, key)
        scanned.append(image_rule)
        references[KYVERNO, policy.key] = image_rule.policy
        if is_derived_rule(policy, rule):
            derived.add(key)
    kind = IMAGE_SCAN.kind
    for ir in filter(IMAGE_SCAN.is_scanned, reported_in(images)):
        image_rule = scanned_policy(ir)
        scanned.append(image_rule)
        references[kind.source, name_of(image_rule.policy)] = image_rule.policy
        if ir.policy.is_decoded and IMAGE_SCAN.is_derived(ir):
            derived.add(image_rule.key)
    return Plan(
        generation=segment.generation,
        cel_generations=generations_of({kind.segment: images}),
        rules=tuple(scanned),
        derived=frozenset(derived),
        live=_EVERYTHING,
        references=references,
    )


def with_images(plan: Plan, images: Plan) -> Plan:
    """Return the plan of the main lane with the plan of the image lane."""
    shared = _shared(plan, images)
    # The image rows are placed among the rows of the main lane.
    images = msgspec.structs.replace(images, places=plan.places, shared=shared)
    return msgspec.structs.replace(plan, images=images, shared=shared)


def _shared(plan: Plan, images: Plan) -> dict[tuple[str, str], SharedPolicy]:
    main, image_rules = _by_policy(plan), _by_policy(images)
    return {
        key: SharedPolicy(
            tuple(rules),
            tuple(image_rules[key]),
            frozenset(rule.key for rule in (*rules, *image_rules[key])),
            signature_of((*rules, *image_rules[key])),
        )
        for key, rules in main.items()
        if key in image_rules
    }


def _by_policy(plan: Plan) -> Mapping[tuple[str, str], list[ScannedRule]]:
    """Return the rules of ClusterPolicies and Policies."""
    keys = {
        reference: key
        for key, reference in plan.references.items()
        if key[0] == KYVERNO
    }
    by_policy: dict[tuple[str, str], list[ScannedRule]] = {}
    for rule in plan.rules:
        key = keys.get(rule.policy)
        if key is not None:
            by_policy.setdefault(key, []).append(rule)
    return by_policy


def is_scanned_rule(policy: PolicyIR, rule: RuleIR) -> bool:
    """Return whether a rule verifies the images of existing objects."""
    if rule.rule_type != _TYPE or rule.verify_images is None or rule.unsupported:
        return False
    return policy.background and not is_disabled(policy)
