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

import msgspec

from kyverno_mp.expr.effects import EFFECT_PURE, EFFECT_REGISTRY
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.match import FilterIR, KindIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.kube.events import Reference
from kyverno_mp.kube.policy_events import CEL_POLICY_VERSION, POLICY_VERSION
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.cel_policies.scans import is_derived as is_derived_mutating
from kyverno_mp.program.cel_policies.scans import is_scanned as is_scanned_mutating
from kyverno_mp.program.reporting import VALIDATE
from kyverno_mp.program.validating_policy.scans import is_derived
from kyverno_mp.program.validating_policy.scans import is_scanned as is_scanned_cel
from kyverno_mp.reports.digests import (
    DIGEST_BYTES,
    AnyCelIR,
    digest_of_policy,
    digest_of_rule,
)
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.named import Named, is_derived_rule, is_scannable, names
from kyverno_mp.reports.unscanned import is_disabled, unscanned_keys
from kyverno_mp.results.entries import KYVERNO, Place, merge_key_of
from kyverno_mp.snapshot.cel_segments import (
    GeneratingSegment,
    ImageSegment,
    MutatingSegment,
    ValidatingSegment,
)
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY, VALIDATING_POLICY


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
    cel_generation: int = 0
    """Generation of the CEL policies; 0: not known yet."""
    mutating_generation: int = 0
    """Generation of the MutatingPolicies; 0: not known yet."""
    generating_generation: int = 0
    """Generation of the GeneratingPolicies, which are reported but not scanned."""
    image_generation: int = 0
    """Generation of the ImageValidatingPolicies; 0: not known yet."""
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

    @property
    def generations(self) -> tuple[int, ...]:
        """The generations of all segments, in the order of CelSegments."""
        return (
            self.generation,
            self.cel_generation,
            self.mutating_generation,
            self.generating_generation,
            self.image_generation,
        )

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


class CelSegments(msgspec.Struct, frozen=True):
    """The segments of CEL policies; None: unknown, so the rows of its kind stay."""

    validating: ValidatingSegment | None = None
    mutating: MutatingSegment | None = None
    generating: GeneratingSegment | None = None
    images: ImageSegment | None = None

    @property
    def parts(self) -> tuple[PolicySegment | None, ...]:
        """The segment of each kind."""
        return (self.validating, self.mutating, self.generating, self.images)

    @property
    def generations(self) -> tuple[int, ...]:
        """Return the generation of each segment; 0 if it is unknown."""
        return tuple(0 if part is None else part.generation for part in self.parts)


def plan_of(
    segment: PolicySegment,
    types: Iterable[str],
    admission: tuple[ScannedRule, ...],
    unknown: frozenset[str],
    in_cel: CelSegments,
) -> Plan:
    """Return the plan.

    ``types``: the scanned types of rules, and the source of MUTATING_POLICY.
    """
    scanned: list[ScannedRule] = list(admission)
    derived = {rule.key for rule in admission}
    live = set(derived)
    references = {
        (rule.policy.kind, rule.policy.name): rule.policy for rule in admission
    }
    reported = frozenset(types)
    places = {rule.key: (rule.policy.name, "", rule.policy.kind) for rule in admission}
    for policy, rule in rules_of(segment):
        if not rule.name:
            unknown |= {KYVERNO}
            continue
        key = key_of_names((KYVERNO, policy.key, rule.name))
        live.add(key)
        places[key] = policy.key, rule.name, KYVERNO
        if is_scanned(policy, rule, reported):
            scanned.append(scanned_rule(policy, rule, key))
            references[KYVERNO, policy.key] = scanned[-1].policy
            if is_derived_rule(policy, rule):
                derived.add(key)
    of_cel = (
        (
            VALIDATING_POLICY.source,
            in_cel.validating,
            _validating_rules(in_cel.validating, reported),
        ),
        (
            MUTATING_POLICY.source,
            in_cel.mutating,
            _mutating_rules(in_cel.mutating, reported),
        ),
    )
    for source, policies, rules in of_cel:
        if policies is None:
            unknown |= {source}
        for one, is_on, is_own in rules:
            live.add(one.key)
            places[one.key] = name_of(one.policy), "", source
            if is_on:
                scanned.append(one)
                references[source, name_of(one.policy)] = one.policy
            if is_own:
                derived.add(one.key)
    for source, keys in unscanned_keys(in_cel.generating, in_cel.images):
        if keys is None:
            unknown |= {source}
        else:
            live |= keys
    generations = in_cel.generations
    return Plan(
        generation=segment.generation,
        cel_generation=generations[0],
        mutating_generation=generations[1],
        generating_generation=generations[2],
        image_generation=generations[3],
        rules=tuple(scanned),
        admission=admission,
        derived=frozenset(derived),
        live=frozenset(live),
        unknown=unknown,
        references=references,
        places=places,
        undecoded=sum(len(part.undecoded) for part in (segment, *in_cel.parts) if part),
    )


def of_reviews(plan: Plan) -> Plan:
    """Return the plan for reports whose rows are all from reviews."""
    images = None if plan.images is None else of_reviews(plan.images)
    return msgspec.structs.replace(plan, derived=frozenset(), images=images)


def name_of(policy: Reference) -> str:
    """Return the policy's name in rows."""
    return "/".join(filter(None, (policy.namespace, policy.name)))


def _validating_rules(
    segment: ValidatingSegment | None, types: frozenset[str]
) -> Iterator[tuple[ScannedRule, bool, bool]]:
    """Yield each ValidatingPolicy, whether it is scanned, and whether it is derived."""
    for ir in () if segment is None else cel_policies_of(segment):
        is_on = is_scanned_policy(ir, types)
        is_own = is_on and ir.policy.is_decoded and is_derived(ir)
        yield scanned_policy(ir), is_on, is_own


def _mutating_rules(
    segment: MutatingSegment | None, types: frozenset[str]
) -> Iterator[tuple[ScannedRule, bool, bool]]:
    """Yield each MutatingPolicy, whether it is scanned, and whether it is derived."""
    for ir in () if segment is None else mutating_policies_of(segment):
        is_on = MUTATING_POLICY.source in types and is_scanned_mutating(ir)
        is_own = is_on and ir.policy.is_decoded and is_derived_mutating(ir)
        yield scanned_policy(ir), is_on, is_own


def rules_of(segment: PolicySegment) -> Iterator[tuple[PolicyIR, RuleIR]]:
    """Yield the rules of the policies that are reported."""
    for position in range(segment.policy_count):
        policy = segment.policy(position)
        if is_disabled(policy):
            continue
        for number in range(segment.rules_of(position)):
            yield policy, segment.rule(position, number)


def cel_policies_of(segment: ValidatingSegment) -> Iterator[ValidatingPolicyIR]:
    """Yield the ValidatingPolicies that are reported."""
    for position in range(segment.policy_count):
        ir = segment.record(position)
        if not is_disabled(ir.policy):
            yield ir


def mutating_policies_of(segment: MutatingSegment) -> Iterator[MutatingPolicyIR]:
    """Yield the MutatingPolicies that are reported."""
    for position in range(segment.policy_count):
        ir = segment.record(position)
        if not is_disabled(ir.policy):
            yield ir


def is_scanned_policy(ir: ValidatingPolicyIR, types: frozenset[str]) -> bool:
    """Return whether a CEL policy is evaluated on existing objects."""
    return VALIDATE in types and is_scanned_cel(ir)


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
