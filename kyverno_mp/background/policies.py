"""Compile the policies whose rules run in the background.

Room: background. Takes: policies and PolicyExceptions as the API server stores them.
Gives: StoredPolicy, which the informer keeps; ReadyPolicy, linked once per version.
Next: background/generate/generator.py, background/generate/policy_events.py,
background/mutate/mutator.py. May touch: nothing outside its arguments, and its own
memory.
Source: docs/behaviour/controllers 5.4, 5.5, 5.7.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.linked_size import exceptions_over_budget
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule, Spec
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.mutation import ForEachGeneration, Generation
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.program.generate.generation import link_generations
from kyverno_mp.program.generate.rule import LinkedGeneration
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutation import link_mutations
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import parse_kind

IrT = TypeVar("IrT", MutatingPolicyIR, GeneratingPolicyIR)


class PolicyMetadata(msgspec.Struct, rename="camel"):
    """The metadata that is kept for a policy of any kind."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


class _RuleHead(msgspec.Struct):
    generate: msgspec.Raw = msgspec.Raw(b"")
    mutate: msgspec.Raw = msgspec.Raw(b"")


class _SpecHead(msgspec.Struct):
    rules: list[_RuleHead] | None = None


class _Head(msgspec.Struct):
    metadata: PolicyMetadata
    spec: _SpecHead


_HEAD: Final = msgspec.json.Decoder(_Head)


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy that has a generate or a mutate rule."""

    kind: str
    key: Key
    uid: str
    metadata_generation: int
    raw: bytes

    @property
    def name(self) -> str:
        """``name`` or ``namespace/name``, as in UpdateRequests."""
        return policy_name(self.key)


def policy_name(key: Key) -> str:
    """Return ``name`` or ``namespace/name``."""
    return f"{key[0]}/{key[1]}" if key[0] else key[1]


def policy_key(name: str) -> Key:
    """Return the key of ``name`` or ``namespace/name``."""
    namespace, _, bare = name.rpartition("/")
    return namespace, bare


def tenant_of(name: str) -> str:
    """Return the tenant of a policy: its namespace, or the cluster policy itself."""
    namespace, _, bare = name.rpartition("/")
    return f"{namespace}/" if namespace else bare


def stored_policy(resource: Resource, raw: bytes | msgspec.Raw) -> StoredPolicy | None:
    """Read a policy; return None if none of its rules can run in the background.

    Raises: msgspec.DecodeError.
    """
    head = _HEAD.decode(raw)
    rules = head.spec.rules or ()
    if not any(bytes(rule.generate) or bytes(rule.mutate) for rule in rules):
        return None
    return kept_policy(resource, head.metadata, raw)


def kept_policy(
    resource: Resource, metadata: PolicyMetadata, raw: bytes | msgspec.Raw
) -> StoredPolicy | None:
    """Return the kept form of a policy; None while it is being deleted."""
    if metadata.deletion_timestamp:
        return None
    return StoredPolicy(
        kind=resource.kind,
        key=(metadata.namespace, metadata.name),
        uid=metadata.uid,
        metadata_generation=metadata.generation,
        raw=bytes(raw),
    )


class GenerateRule(msgspec.Struct, frozen=True):
    """One linked generate rule, with its settings for synchronisation."""

    linked: LinkedGeneration
    options: Generation
    existing: bool
    """generateExisting of the rule or of the policy."""

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.linked.ir.name

    @property
    def ir(self) -> RuleIR:
        """The compiled record."""
        return self.linked.ir

    @property
    def synchronizes(self) -> bool:
        """Whether later changes are synchronised."""
        return self.options.synchronize

    @property
    def copies_data(self) -> bool:
        """Whether the rule has data, not only clones."""
        return any(pattern.data is not None for pattern in self._patterns)

    @property
    def deletes_with_policy(self) -> bool:
        """Whether objects are deleted with the rule; only synchronised data can be."""
        return (
            self.synchronizes
            and self.copies_data
            and not self.options.orphan_downstream_on_policy_delete
        )

    @property
    def deletes_on_delete(self) -> bool:
        """Whether the rule lists DELETE, so that deletions generate objects."""
        return any(
            "DELETE" in filter_ir.operations for filter_ir in self.ir.match.filters
        )

    @property
    def targets(self) -> frozenset[bytes]:
        """Return the identities of the generated objects, without their content."""
        identities = (
            (
                getattr(pattern, "list", ""),
                *(pattern.api_version, pattern.kind, pattern.namespace, pattern.name),
                *(pattern.clone.raw(), pattern.clone_list.raw()),
            )
            for pattern in self._patterns
        )
        return frozenset(
            msgspec.json.encode(identity, order="sorted") for identity in identities
        )

    @property
    def source_namespaces(self) -> frozenset[str] | None:
        """Return the namespaces of the sources; None if not known yet."""
        namespaces = {
            pattern.clone_list.namespace
            if pattern.clone_list.kinds
            else pattern.clone.namespace
            for pattern in self._patterns
            if pattern.clone_list.kinds or pattern.clone.name
        }
        return (
            None
            if any("{{" in namespace for namespace in namespaces)
            else frozenset(namespaces)
        )

    def downstream_kinds(self) -> list[tuple[str, str]] | None:
        """Return (apiVersion, kind) of the generated objects; None if not known yet."""
        found_kinds: dict[tuple[str, str], None] = {}
        for pattern in self._patterns:
            kinds = [(pattern.api_version, pattern.kind)]
            if pattern.clone_list.kinds:
                kinds = [_split(each) for each in pattern.clone_list.kinds]
            for api_version, kind in kinds:
                if "{{" in f"{api_version}{kind}" or not kind:
                    return None
                found_kinds[api_version, kind] = None
        return list(found_kinds)

    @property
    def _patterns(self) -> Iterable[Generation | ForEachGeneration]:
        return self.options.foreach or (self.options,)


def _split(kind_text: str) -> tuple[str, str]:
    """Split a kind of a cloneList, e.g. ``v1/Secret`` or ``apps/v1/Deployment``."""
    group, version, kind, _ = parse_kind(kind_text)
    if version in ("", "*"):
        return "", kind
    return (f"{group}/{version}" if group not in ("", "*") else version), kind


class MutateRule(msgspec.Struct, frozen=True):
    """One linked rule that mutates existing objects."""

    linked: LinkedMutation
    on_policy_update: bool

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.linked.ir.name

    @property
    def target_kinds(self) -> list[str] | None:
        """Return the kinds of its targets; None if not known yet."""
        mutate = self.linked.ir.mutate
        kinds = []
        for target in (mutate.targets if mutate else None) or ():
            kind = parse_kind(str(target.selected.source.get("kind") or "")).kind
            if not kind or "{{" in kind or "*" in kind:
                return None
            kinds.append(kind)
        return kinds


Version = tuple[str, int, tuple[str, ...]]
"""uid and generation of a policy, and its PolicyExceptions with their versions."""


class ReadyPolicy(msgspec.Struct, frozen=True):
    """A compiled and linked policy, with its background rules only."""

    stored: StoredPolicy
    ir: PolicyIR
    generates: Mapping[str, GenerateRule]
    mutates: Mapping[str, MutateRule]
    server_side_apply: bool
    version: Version


def has_rule(rule: str, policy: ReadyPolicy) -> bool:
    """Return whether a policy has a background rule of this name."""
    return rule in policy.generates or rule in policy.mutates


def ready_policy(
    stored: StoredPolicy,
    exceptions: Iterable[bytes] = (),
    version: Version = ("", 0, ()),
) -> ReadyPolicy:
    """Compile and link a policy; ignore exceptions over their steps or memory.

    Raises: PolicyInvalid with the reason.
    """
    read = _read_exceptions(exceptions)
    with bounded(CompileBudget()):
        policy, compiled = _compiled(stored, read)
    return _linked(stored, compiled, policy.spec, version)


def _compiled(
    stored: StoredPolicy, exceptions: list[PolicyException]
) -> tuple[AnyPolicy, CompiledPolicy]:
    examined = examine(msgspec.json.decode(stored.raw))
    policy = examined.document
    if not isinstance(policy, AnyPolicy) or examined.problems:
        reason = "; ".join(map(str, examined.problems)) or "the document is no policy"
        raise PolicyInvalid("background.policy", reason, Where(policy=stored.name))
    compiled = compile_policy(policy, exceptions, unusable={})
    return policy, _within_budget(compiled, stored.name)


def _within_budget(compiled: CompiledPolicy, name: str) -> CompiledPolicy:
    """Return the policy without the exceptions over their memory budget."""
    exceptions = (exception for rule in compiled.rules for exception in rule.exceptions)
    dropped = exceptions_over_budget(exceptions, name)
    if not dropped:
        return compiled
    rules = tuple(
        replace(
            rule,
            exceptions=tuple(
                exception
                for exception in rule.exceptions
                if exception.key not in dropped
            ),
        )
        for rule in compiled.rules
    )
    return replace(compiled, rules=rules)


def affordable(compiled: IrT) -> IrT:
    """Return a policy in CEL without the exceptions over their memory budget."""
    dropped = exceptions_over_budget(compiled.exceptions, compiled.policy.key)
    kept = tuple(each for each in compiled.exceptions if each.key not in dropped)
    return replace(compiled, exceptions=kept)


def typed(raw: Json, resource: Resource) -> dict[str, Json]:
    """Return an object with its kind. K8S: the items of a list may lack it."""
    document = {**raw, "kind": resource.kind, "apiVersion": resource.api_version}
    document.pop("status", None)
    return document


def _read_exceptions(raws: Iterable[bytes]) -> list[PolicyException]:
    """Return the exceptions by key; which ones fit a budget depends on the order."""
    documents = (examine(msgspec.json.decode(raw)).document for raw in raws)
    exceptions = [
        document for document in documents if isinstance(document, PolicyException)
    ]
    return sorted(exceptions, key=lambda exception: exception.key)


def _linked(
    stored: StoredPolicy, compiled: CompiledPolicy, spec: Spec, version: Version
) -> ReadyPolicy:
    rules = {rule.name: rule for rule in spec.rules}
    generates = {
        generation.ir.name: GenerateRule(generation, body, _existing(body, spec))
        for generation in link_generations(compiled)
        if (body := rules[generation.ir.name].generate) is not None
    }
    mutates = {
        mutation.ir.name: MutateRule(
            mutation, _on_update(rules.get(mutation.ir.name), spec)
        )
        for mutation in link_mutations(compiled)
        if mutation.is_existing
    }
    return ReadyPolicy(
        *(stored, compiled.policy, generates, mutates, spec.use_server_side_apply),
        version,
    )


def _existing(body: Generation, spec: Spec) -> bool:
    of_rule = body.generate_existing
    return spec.generate_existing if of_rule is None else of_rule


def _on_update(rule: Rule | None, spec: Spec) -> bool:
    of_rule = None
    if rule is not None and rule.mutate is not None:
        of_rule = rule.mutate.mutate_existing_on_policy_update
    return spec.mutate_existing_on_policy_update if of_rule is None else of_rule
