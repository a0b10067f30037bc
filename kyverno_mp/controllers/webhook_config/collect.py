"""Compute which kinds and operations each webhook must match for a policy.

Room: controllers. Takes: a policy document and a Directory. Gives: entries.
Next: controllers/webhook_config/resources.py.
Source: docs/behaviour/controllers 3.3 items 1-6; Kyverno
pkg/controllers/webhook/controller.go (mergeWebhook) and utils.go
(collectResourceDescriptions) at v1.18.2.
"""

from collections.abc import Iterable, Iterator, Sequence

from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.controllers.webhook_config.rules import (
    ALL_OPERATIONS,
    ALL_SCOPES,
    CREATE_UPDATE,
    CREATE_UPDATE_DELETE,
    NAMESPACED,
    Entry,
)
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.fields.image_verification import ImageVerification
from kyverno_mp.policy.fields.match import ResourceDescription, ResourceFilter
from kyverno_mp.policy.fields.mutation import ForEachGeneration, Generation
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.kubernetes.policy_kinds import WITH_RULES

Kinds = dict[str, set[str]]
"""Operations by kind selector as written."""


def concerns(policy: AnyPolicy, *, mutating: bool) -> bool:
    """Return whether the policy needs an entry in the configuration (3.3 item 2)."""
    rules = policy.spec.rules
    if mutating:
        return any(_mutates(rule) or _verifies_images(rule) for rule in rules)
    return any(
        "validate" in rule.types()
        or "generate" in rule.types()
        or _mutates_existing(rule)
        or _checks_images(rule)
        for rule in rules
    )


def entries_of(
    policy: AnyPolicy, directory: Directory, *, mutating: bool
) -> Iterator[Entry]:
    """Return the entries that the webhook needs for a policy; ignore unknown kinds."""
    scope = NAMESPACED if policy.kind == WITH_RULES.namespaced.kind else ALL_SCOPES
    for text, operations in kinds_of(policy, mutating=mutating).items():
        for group, version, resource, part, its_scope in _resources(
            text, directory, scope
        ):
            for operation in operations:
                yield Entry(group, version, resource, part, its_scope, operation)


class KnownEntries:
    """Entries of the policies in the last request, each computed once.

    PERF: a changed policy costs its own rules, not all policies' rules
    (perf/propagation.py). Policies and directories are compared by identity.
    """

    def __init__(self) -> None:
        self._directory: Directory | None = None
        self._known: dict[tuple[int, bool], tuple[AnyPolicy, frozenset[Entry]]] = {}
        self.counted = 0
        """The number of computations."""

    def of(
        self, policy: AnyPolicy, directory: Directory, *, mutating: bool
    ) -> frozenset[Entry]:
        """Return the result of ``entries_of``."""
        if directory is not self._directory:
            self._directory, self._known = directory, {}
        key = (id(policy), mutating)
        known = self._known.get(key)
        if known is None:
            self.counted += 1
            entries = frozenset(entries_of(policy, directory, mutating=mutating))
            # A reference to the policy prevents reuse of its id.
            known = self._known[key] = policy, entries
        return known[1]

    def keep(self, policies: Iterable[AnyPolicy]) -> None:
        """Forget the entries of all other policies."""
        kept = {id(policy) for policy in policies}
        for key in [key for key in self._known if key[0] not in kept]:
            del self._known[key]


def kinds_of(policy: AnyPolicy, *, mutating: bool) -> Kinds:
    """Return the kinds of all rules, with autogen rules, and their operations."""
    kinds: Kinds = {}
    default = CREATE_UPDATE if mutating else ALL_OPERATIONS
    for rule in expand(policy):
        if "generate" in rule.types() and rule.generate is not None:
            # KYVERNO: CONNECT is included, because an exec can trigger a generate rule
            # (3.3 item 3).
            _merge(kinds, _matched(rule, ALL_OPERATIONS))
            for kind in _targets(rule.generate):
                _add(kinds, kind, CREATE_UPDATE_DELETE)
        elif _counts(rule, mutating=mutating):
            _merge(kinds, _matched(rule, default))
    return kinds


def _counts(rule: Rule, *, mutating: bool) -> bool:
    # KYVERNO: image checks belong to both configurations (3.3 item 3, verifyImages).
    if _checks_images(rule):
        return True
    if mutating:
        return _mutates(rule) or _verifies_images(rule) or _verifies_manifests(rule)
    return "validate" in rule.types() or _mutates_existing(rule)


def _matched(rule: Rule, default: Sequence[str]) -> Kinds:
    found: Kinds = {}
    for resources in _descriptions(rule):
        for kind in resources.kinds:
            _add(found, kind, resources.operations or default)
    for entry in rule.exclude.any if rule.exclude is not None else ():
        if _is_plain(entry):
            _subtract(found, entry.resources)
    return found


def _descriptions(rule: Rule) -> Iterator[ResourceDescription]:
    yield rule.match.resources
    for entry in (*rule.match.all, *rule.match.any):
        yield entry.resources


def _is_plain(entry: ResourceFilter) -> bool:
    """Return whether an exclusion has kinds and operations only (3.3 item 4).

    An empty exclusion excludes nothing at evaluation. Upstream registers nothing for
    its rule, so the rule never runs.
    """
    resources = entry.resources
    return bool(resources.kinds or resources.operations) and not (
        entry.roles
        or entry.cluster_roles
        or entry.subjects
        or resources.name
        or resources.names
        or resources.namespaces
        or resources.annotations
        or resources.selector is not None
        or resources.namespace_selector is not None
    )


def _subtract(kinds: Kinds, resources: ResourceDescription) -> None:
    for kind in resources.kinds or tuple(kinds):
        if kind in kinds:
            kinds[kind] -= set(resources.operations or ALL_OPERATIONS)


def _targets(generation: Generation) -> Iterator[str]:
    blocks: tuple[Generation | ForEachGeneration, ...] = (
        generation,
        *(generation.foreach or ()),
    )
    for block in blocks:
        if block.kind:
            yield block.kind
        else:
            yield from block.clone_list.kinds or ()


def _resources(
    text: str, directory: Directory, scope: str
) -> Iterator[tuple[str, str, str, str, str]]:
    selector = parse_kind(text)
    if selector.kind == "*":
        yield selector.group, selector.version, "*", selector.subresource, scope
        return
    for one in directory.find(selector):
        its_scope = NAMESPACED if one.namespaced else ALL_SCOPES
        yield one.group, one.version, one.plural, one.subresource, its_scope


def _mutates(rule: Rule) -> bool:
    return "mutate" in rule.types() and not _mutates_existing(rule)


def _mutates_existing(rule: Rule) -> bool:
    return rule.mutate is not None and rule.mutate.targets is not None


def _verifies_images(rule: Rule) -> bool:
    return any(
        verify_image != ImageVerification() for verify_image in rule.verify_images
    )


def _checks_images(rule: Rule) -> bool:
    return any(
        verify_image.verify_digest or verify_image.required
        for verify_image in rule.verify_images
    )


def _verifies_manifests(rule: Rule) -> bool:
    manifests = rule.validate.manifests if rule.validate is not None else None
    return manifests is not None and bool(manifests.attestors)


def _merge(kinds: Kinds, other: Kinds) -> None:
    for kind, operations in other.items():
        _add(kinds, kind, operations)


def _add(kinds: Kinds, kind: str, operations: Iterable[str]) -> None:
    kinds.setdefault(kind, set()).update(operations)
