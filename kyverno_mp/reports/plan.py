"""Plan which rules are scanned, which kinds they match, and which results may stay.

Room: reports. Takes: the policies of one generation. Gives: Plan, is_scanned. Next:
reports/scan/coordinator.py follows the plan, reports/scan/evaluator.py evaluates the
same rules.
Source: docs/behaviour/controllers 6.3, 6.4, 6.6; docs/behaviour/engine 8.5.

Each rule in force is one of two:
- *derived*: only scans produce rows. A row that the last evaluation did not produce is
  outdated.
- other: its rows stay in a report until a scan or a review produces a new one.
Rows of rules that are not in force are removed. A policy that cannot be decoded has an
error row for each object that it matches; as far as its match or the names of its rules
cannot be decoded, either, its rows stay.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from kyverno_mp.expr.effects import EFFECT_PURE, EFFECT_REGISTRY
from kyverno_mp.ir.match import FilterIR, KindIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.kube.events import Reference
from kyverno_mp.kube.policy_events import CEL_POLICY_VERSION, POLICY_VERSION
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.reporting import VALIDATE
from kyverno_mp.reports.digests import (
    DIGEST_BYTES,
    AnyCelIR,
    digest_of_policy,
    digest_of_rule,
)
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.named import Named, is_derived_rule, is_scannable, names
from kyverno_mp.reports.scanned_kinds import (
    MAIN_SCANS,
    InCel,
    is_disabled,
    reported_in,
)
from kyverno_mp.results.entries import KYVERNO, Place, merge_key_of
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.kubernetes.policy_kinds import REVIEWED_CEL_KINDS

_TYPES: Final = frozenset({VALIDATE})
"""The types of ``rules`` that scans evaluate in the main lane."""


class ScannedRule(msgspec.Struct, frozen=True):
    """The data kept about a scanned rule.

    ``digest``: of everything that its results depend on, except other data.
    """

    namespace: str
    kinds: tuple[KindIR, ...]
    digest: bytes
    reads_labels: bool
    reads_data: bool
    """Whether the rule reads ConfigMaps, global context or responses of API calls."""
    named: tuple[Named, ...] = ()
    document: bytes = b""
    """An admission policy of the API server, which is sent with each batch."""
    key: bytes = b""
    """The rule's key, see reports/fingerprints.py."""
    policy: Reference = Reference("", "", "")
    """The policy, for Events."""

    def may_match(self, resource: Resource) -> bool:
        """Return whether objects of the resource can match."""
        if self.namespace and not resource.namespaced:
            return False
        return any(names(kind, resource) for kind in self.kinds) or any(
            kind.is_of(resource) for kind in self.named
        )


class SharedPolicy(msgspec.Struct, frozen=True):
    """The rules of a policy that both lanes scan."""

    main: tuple[ScannedRule, ...]
    images: tuple[ScannedRule, ...]
    keys: frozenset[bytes]
    signature: bytes

    def is_shared_for(self, resource: Resource) -> bool:
        """Return whether both lanes evaluate the policy for objects of a resource."""
        return all(
            any(rule.may_match(resource) for rule in rules)
            for rules in (self.main, self.images)
        )


class Plan(msgspec.Struct, frozen=True):
    """The scanned rules of one generation of the policies."""

    generation: int = 0
    cel_generations: Mapping[str, int] = {}
    """Generations of the policies in CEL by segment; 0: not known yet."""
    rules: tuple[ScannedRule, ...] = ()
    admission: tuple[ScannedRule, ...] = ()
    """The policies of the API server itself; also part of ``rules``."""
    derived: frozenset[bytes] = frozenset()
    """Keys of the derived rules, see reports/fingerprints.py."""
    live: Container[bytes] = frozenset()
    """Keys of all reported rules in force."""
    unknown: frozenset[str] = frozenset()
    """Sources of rows whose policies cannot be read now; these rows stay."""
    references: Mapping[tuple[str, str], Reference] = {}
    """The scanned policies, by the source and policy of a row."""
    images: "Plan | None" = None
    """The plan of image rules, which are scanned separately; None: no such rules."""
    places: Mapping[bytes, Place] = {}
    """The places of rows, by key. Places of CEL policies lack the names of rules."""
    undecoded: int = 0
    """Number of policies that cannot be decoded."""
    shared: Mapping[tuple[str, str], SharedPolicy] = {}
    """The policies with rules in both lanes, by the source and policy of a row."""

    def of(self, resource: Resource) -> list[ScannedRule]:
        """Return the rules that may match a resource."""
        return [rule for rule in self.rules if rule.may_match(resource)]

    def documents_of(self, resource: Resource) -> tuple[bytes, ...]:
        """Return the admission policies that an evaluator needs for a resource."""
        return tuple(
            rule.document for rule in self.admission if rule.may_match(resource)
        )

    @property
    def named(self) -> frozenset[Named]:
        """The resources that policies with matchConstraints name.

        KYVERNO: names with ``*`` and subresources are ignored.
        """
        return frozenset(
            kind for rule in self.rules for kind in rule.named if kind.is_one
        )

    @property
    def selectors(self) -> list[KindSelector]:
        """The kinds to scan that rules name, without duplicates."""
        selectors = dict.fromkeys(
            KindSelector(kind.group, kind.version, kind.kind, "")
            for rule in self.rules
            for kind in rule.kinds
            if is_scannable(kind)
        )
        return list(selectors)


def plan_of(
    segment: PolicySegment,
    types: frozenset[str],
    admission: tuple[ScannedRule, ...],
    unknown: frozenset[str],
    in_cel: InCel,
) -> Plan:
    """Return the plan. ``types``: the reported types of rules.

    Of rules that mutate, only those in CEL are scanned.
    """
    scanned: list[ScannedRule] = list(admission)
    derived = {rule.key for rule in admission}
    live = set(derived)
    references = {
        (rule.policy.kind, rule.policy.name): rule.policy for rule in admission
    }
    places = {rule.key: (rule.policy.name, "", rule.policy.kind) for rule in admission}
    for policy, rule in rules_of(segment):
        if not rule.name:
            unknown |= {KYVERNO}
            continue
        key = key_of_names((KYVERNO, policy.key, rule.name))
        live.add(key)
        places[key] = policy.key, rule.name, KYVERNO
        if is_scanned(policy, rule, types & _TYPES):
            scanned.append(scanned_rule(policy, rule, key))
            references[KYVERNO, policy.key] = scanned[-1].policy
            if is_derived_rule(policy, rule):
                derived.add(key)
    scans = {scan.kind: scan for scan in MAIN_SCANS}
    for kind in REVIEWED_CEL_KINDS:
        part, scan = in_cel[kind.segment], scans.get(kind)
        if part is None:
            unknown |= {kind.source}
        elif scan is None:
            policies = (ir.policy for ir in reported_in(part))
            live |= {key_of_names(merge_key_of(policy, "")) for policy in policies}
        else:
            for ir in reported_in(part):
                one = scanned_policy(ir)
                live.add(one.key)
                places[one.key] = name_of(one.policy), "", kind.source
                if kind.rule_type in types and scan.is_scanned(ir):
                    scanned.append(one)
                    references[kind.source, name_of(one.policy)] = one.policy
                    if ir.policy.is_decoded and scan.is_derived(ir):
                        derived.add(one.key)
    parts = [segment, *filter(None, in_cel.values())]
    return Plan(
        generation=segment.generation,
        cel_generations=generations_of(in_cel),
        rules=tuple(scanned),
        admission=admission,
        derived=frozenset(derived),
        live=frozenset(live),
        unknown=unknown,
        references=references,
        places=places,
        undecoded=sum(len(part.undecoded) for part in parts),
    )


def generations_of(in_cel: InCel) -> dict[str, int]:
    """Return the generation of each segment; 0 if it is unknown."""
    return {
        name: 0 if part is None else part.generation for name, part in in_cel.items()
    }


def of_reviews(plan: Plan) -> Plan:
    """Return the plan for reports whose rows are all from reviews."""
    images = None if plan.images is None else of_reviews(plan.images)
    return msgspec.structs.replace(plan, derived=frozenset(), images=images)


def name_of(policy: Reference) -> str:
    """Return the policy's name in rows."""
    return "/".join(filter(None, (policy.namespace, policy.name)))


def rules_of(segment: PolicySegment) -> Iterator[tuple[PolicyIR, RuleIR]]:
    """Yield the rules of the policies that are reported."""
    for position in range(segment.policy_count):
        policy = segment.policy(position)
        if is_disabled(policy):
            continue
        for number in range(segment.rules_of(position)):
            yield policy, segment.rule(position, number)


def scanned_policy(ir: AnyCelIR) -> ScannedRule:
    """Return a CEL policy as a rule of the plan."""
    policy = ir.policy
    matched = [body.constraints for body in ir.bodies if body.constraints is not None]
    return ScannedRule(
        namespace=policy.namespace,
        kinds=(),
        digest=digest_of_policy(ir),
        # ``namespaceObject`` is available in every expression.
        reads_labels=True,
        reads_data=ir.effects & ~EFFECT_REGISTRY != EFFECT_PURE,
        named=tuple(
            dict.fromkeys(
                Named(group, version, resource)
                for constraints in matched
                for rule in constraints.rules
                for group in rule.groups
                for version in rule.versions
                for resource in rule.resources
            )
        ),
        key=key_of_names(merge_key_of(policy, "")),
        policy=Reference(
            CEL_POLICY_VERSION, policy.kind, policy.name, policy.namespace, policy.uid
        ),
    )


def is_scanned(policy: PolicyIR, rule: RuleIR, types: frozenset[str]) -> bool:
    """Return whether a rule is evaluated on existing objects."""
    return policy.background and rule.rule_type in types and not is_disabled(policy)


def scanned_rule(policy: PolicyIR, rule: RuleIR, key: bytes) -> ScannedRule:
    """Return a rule as a rule of the plan."""
    blocks = [rule.match, *(exception.match for exception in rule.exceptions)]
    if rule.exclude is not None:
        blocks.append(rule.exclude)
    filters = [filter_ir for block in blocks for filter_ir in block.filters]
    return ScannedRule(
        namespace=policy.namespace,
        kinds=tuple(
            dict.fromkeys(kind for each in rule.match.filters for kind in each.kinds)
        ),
        digest=digest_of_rule(policy, rule),
        reads_labels=_reads_labels(filters, rule),
        reads_data=rule.effects & ~EFFECT_REGISTRY != EFFECT_PURE,
        key=key,
        policy=Reference(
            POLICY_VERSION, policy.kind, policy.name, policy.namespace, policy.uid
        ),
    )


def _reads_labels(filters: Iterable[FilterIR], rule: RuleIR) -> bool:
    if rule.validate is not None and rule.validate.cel is not None:
        # ``namespaceObject`` is available in every CEL expression.
        return True
    return any(filter_ir.namespace_selector is not None for filter_ir in filters)


def signature_of(rules: Iterable[ScannedRule]) -> bytes:
    """Return a digest of everything that the results of these rules depend on."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for rule in rules:
        digest.update(rule.digest)
    return digest.digest()
