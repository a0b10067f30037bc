"""Link the scanned rules for one kind; failures become errors in reports.

Room: reports. Takes: the current policies, a Resource. Gives: ScannedPolicy, link.
Next: reports/scan/evaluator.py evaluates them. May touch: the log.
Source: docs/behaviour/controllers 6.4; docs/behaviour/engine 8.5.

A policy that cannot be linked has an error for each object that it may match. Other
policies are not affected.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.engine import LinkedPolicy, link_policy
from kyverno_mp.program.images.rule import LinkedImageRule
from kyverno_mp.program.images.verification import link_image_rules
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult, not_evaluated
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.named import names
from kyverno_mp.reports.plan import is_scanned
from kyverno_mp.reports.policies.images import is_scanned_rule
from kyverno_mp.results.entries import merge_key_of
from kyverno_mp.snapshot.policies import PolicySegment

_log = logging.getLogger(__name__)
Test = Callable[[Request], bool]


@dataclass(frozen=True, slots=True)
class ScannedPolicy:
    """The scanned rules of a policy. ``tests``: whether each of them matches.

    Either ``linked`` or ``failure`` is set; ``failure``: why the policy cannot be
    linked.
    """

    ir: PolicyIR
    rules: tuple[RuleIR, ...]
    tests: tuple[Test, ...]
    linked: LinkedPolicy | None = None
    failure: Exception | None = None

    @property
    def keys(self) -> list[bytes]:
        """The keys of the rules, see reports/fingerprints.py."""
        return [key_of_names(merge_key_of(self.ir, rule.name)) for rule in self.rules]

    def not_evaluated(self, request: Request, failure: Exception) -> list[RuleResult]:
        """Return an error for each rule that may match."""
        return _not_evaluated(self.rules, self.tests, request, failure)


@dataclass(frozen=True, slots=True)
class ScannedImages:
    """The image rules of a policy. ``linked`` or ``failure``: see ScannedPolicy."""

    ir: PolicyIR
    rules: tuple[RuleIR, ...]
    tests: tuple[Test, ...]
    linked: tuple[LinkedImageRule, ...] = ()
    failure: Exception | None = None

    def not_evaluated(self, request: Request, failure: Exception) -> list[RuleResult]:
        """Return an error for each rule that may match."""
        return _not_evaluated(self.rules, self.tests, request, failure)


def link(
    segment: PolicySegment, resource: Resource, types: frozenset[str]
) -> Iterator[ScannedPolicy]:
    """Yield the policies that may match a resource. ``types``: scanned rule types."""
    for policy, rules in _named(segment, resource):
        scanned = tuple(
            _in_background(rule) for rule in rules if is_scanned(policy, rule, types)
        )
        if scanned:
            yield _linked(policy, scanned)


def link_images(segment: PolicySegment, resource: Resource) -> Iterator[ScannedImages]:
    """Yield the policies whose image rules may match a resource."""
    for policy, rules in _named(segment, resource):
        scanned = tuple(
            _in_background(rule) for rule in rules if is_scanned_rule(policy, rule)
        )
        if scanned:
            yield _linked_images(policy, scanned)


def _named(
    segment: PolicySegment, resource: Resource
) -> Iterator[tuple[PolicyIR, list[RuleIR]]]:
    for position in range(segment.policy_count):
        rules = [
            segment.rule(position, number)
            for number in range(segment.rules_of(position))
            if any(
                names(kind, resource)
                for filter_ir in segment.rule_head(position, number).match.filters
                for kind in filter_ir.kinds
            )
        ]
        if rules:
            yield segment.policy(position), rules


def _linked_images(policy: PolicyIR, rules: tuple[RuleIR, ...]) -> ScannedImages:
    tests = tuple(_test(policy, rule) for rule in rules)
    try:
        linked = tuple(link_image_rules(CompiledPolicy(policy, rules)))
    except Exception as error:  # noqa: BLE001 - the other policies have results
        _log.exception("policy %s cannot be linked", policy.key)
        return ScannedImages(policy, rules, tests, failure=error)
    return ScannedImages(policy, rules, tests, linked)


def _linked(policy: PolicyIR, rules: tuple[RuleIR, ...]) -> ScannedPolicy:
    try:
        linked = link_policy(CompiledPolicy(policy, rules))
    except Exception as error:  # noqa: BLE001 - the other policies have results
        _log.exception("policy %s cannot be linked", policy.key)
        tests = tuple(_test(policy, rule) for rule in rules)
        return ScannedPolicy(policy, rules, tests, failure=error)
    rule_irs = tuple(rule.ir for rule in linked.rules)
    return ScannedPolicy(
        policy, rule_irs, tuple(rule.matches for rule in linked.rules), linked
    )


def _not_evaluated(
    rules: Iterable[RuleIR], tests: Iterable[Test], request: Request, failure: Exception
) -> list[RuleResult]:
    return [
        not_evaluated(rule, failure)
        for rule, test in zip(rules, tests, strict=True)
        if _may_match(test, request)
    ]


def _test(policy: PolicyIR, rule: RuleIR) -> Test:
    try:
        return link_match(
            rule.match, rule.exclude, policy_namespace=policy.namespace
        ).matches
    except Exception:  # noqa: BLE001 - unknown: rather an error too many
        return lambda _request: True


def _may_match(test: Test, request: Request) -> bool:
    try:
        return test(request)
    except Exception:  # noqa: BLE001 - unknown: rather an error too many
        return True


def _in_background(rule: RuleIR) -> RuleIR:
    """Drop the exceptions that only apply to reviews."""
    exceptions = tuple(
        exception for exception in rule.exceptions if exception.background
    )
    if len(exceptions) == len(rule.exceptions):
        return rule
    return msgspec.structs.replace(rule, exceptions=exceptions)
