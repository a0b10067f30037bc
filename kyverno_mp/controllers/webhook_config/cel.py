"""Compute the webhooks of the policies of policies.kyverno.io.

Room: controllers. Takes: decoded policies, WebhookOptions. Gives: webhooks of the
validating and of the mutating configuration. Next:
controllers/webhook_config/controller.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 9; docs/behaviour/controllers 3.1; Kyverno
pkg/controllers/webhook/validating.go at v1.18.2.

The API server accepts a configuration as a whole or not at all, so text from the author
of one policy is registered only if the API server accepts it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kyverno_mp.controllers.cel_copies import AnySpec, copies_of
from kyverno_mp.controllers.webhook_config.cel_conditions import conditions_of
from kyverno_mp.controllers.webhook_config.cel_documents import cel_name_of
from kyverno_mp.controllers.webhook_config.options import (
    WebhookOptions,
    client_config,
    namespace_selector,
)
from kyverno_mp.controllers.webhook_config.resources import exemptions, unique
from kyverno_mp.controllers.webhook_config.rules import (
    ALL_OPERATIONS,
    Entry,
    rules_of,
    rules_of_parts,
)
from kyverno_mp.controllers.webhook_config.selectors import merged, selectors_of
from kyverno_mp.controllers.webhook_config.versions import NamedVersions
from kyverno_mp.limits import (
    INDEX_KEYS_PER_FILTER_MAX,
    WEBHOOK_PATH_CHARACTERS_MAX,
    WEBHOOK_TIMEOUT_S_MAX,
)
from kyverno_mp.policy.cel_kinds.admission_policy import NamedRuleWithOperations
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy, MutatingPolicy
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    REVIEWED_CEL_KINDS,
    PolicyKind,
    ReviewPath,
)


def _paths(of: Callable[[PolicyKind], ReviewPath | None]) -> dict[str, tuple[str, str]]:
    """Return the name and the path of the webhooks of each kind that has them."""
    paths: dict[str, tuple[str, str]] = {}
    for row in REVIEWED_CEL_KINDS:
        review = of(row)
        if review is not None:
            paths[row.cluster.kind] = review.webhook, review.path
            namespaced = review.namespaced_webhook, review.namespaced_path
            paths[row.namespaced.kind] = namespaced
    return paths


_VALIDATING: Final = _paths(lambda row: row.validating)
_MUTATING: Final = _paths(lambda row: row.mutating)
_NAME_LABEL: Final = "kubernetes.io/metadata.name"


@dataclass(slots=True)
class _Webhook:
    """A webhook under construction; ``own`` is its policy if it serves only one."""

    failure_policy: str
    names: list[str] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    entries: set[Entry] = field(default_factory=set)
    versions: NamedVersions = field(default_factory=NamedVersions)
    conditions: Sequence[Json] = ()
    own: AnyServedPolicy | None = None
    selectors: tuple[Json, Json] = ({}, {})
    """The selectors of namespaces and of objects of all its policies."""

    def has_room(self, policy: AnyServedPolicy) -> bool:
        """Return whether one more policy can share the webhook."""
        path = "/".join((*self.names, _path_of(policy)))
        fits = len(path) <= WEBHOOK_PATH_CHARACTERS_MAX
        return fits and self.versions.agree(chain.from_iterable(_parts_of(policy)))

    @property
    def is_narrow(self) -> bool:
        """Whether a selector limits it."""
        return any(self.selectors)

    def take(self, policy: AnyServedPolicy) -> None:
        """Add one policy."""
        self.names.append(_path_of(policy))
        self.namespaces.add(policy.metadata.namespace)
        entries = frozenset(chain.from_iterable(_parts_of(policy)))
        self.entries |= entries
        self.versions.add(entries)


def cel_webhooks(
    policies: Iterable[AnyServedPolicy], options: WebhookOptions
) -> list[Json]:
    """Return the validating webhooks, sorted by name."""
    return _all_rendered(policies, _VALIDATING, options)


def cel_mutating_webhooks(
    policies: Iterable[AnyServedPolicy], options: WebhookOptions
) -> list[Json]:
    """Return the mutating webhooks, sorted by name.

    KYVERNO: the reinvocationPolicy of a policy is not registered.
    """
    return [
        {**one, "reinvocationPolicy": "Never"}
        for one in _all_rendered(filter(_mutates, policies), _MUTATING, options)
    ]


def _all_rendered(
    policies: Iterable[AnyServedPolicy],
    bases: Mapping[str, tuple[str, str]],
    options: WebhookOptions,
) -> list[Json]:
    if not options.auto_update:
        return []
    by_kind: dict[str, list[AnyServedPolicy]] = {}
    for policy in policies:
        if policy.kind in bases and _is_ours(policy):
            by_kind.setdefault(policy.kind, []).append(policy)
    taken: set[str] = set()
    found = [
        _rendered(webhook, bases[kind], taken, options)
        for kind in sorted(by_kind)
        for webhook in _webhooks(by_kind[kind], options)
        if webhook.entries
    ]
    return sorted(found, key=lambda webhook: str(webhook["name"]))


def _path_of(policy: AnyServedPolicy) -> str:
    """Return a policy's part of a path, with its namespace.

    Upstream's paths contain no namespaces, so a worker cannot detect that it lacks a
    policy.
    """
    return "/".join(filter(None, (policy.metadata.namespace, policy.metadata.name)))


def _mutates(policy: AnyServedPolicy) -> bool:
    """Return whether a policy can change objects, if its kind can."""
    if not isinstance(policy, ImageValidatingPolicy):
        return True
    given = policy.spec.validation_configurations
    return given is None or given.mutate_digest


def _is_ours(policy: AnyServedPolicy) -> bool:
    evaluation = policy.spec.evaluation
    admission = None if evaluation is None else evaluation.admission
    is_off = admission is not None and admission.enabled is False
    if is_off:
        return False
    if isinstance(policy, GeneratingPolicy):
        return True
    if is_generated(policy.status):
        return False
    return isinstance(policy, MutatingPolicy) or policy.mode != JSON_MODE


def _webhooks(
    policies: Iterable[AnyServedPolicy], options: WebhookOptions
) -> Iterator[_Webhook]:
    """Yield the webhooks of one kind, those for single policies first.

    Upstream lists the policies of both failure policies in both paths. Here, each path
    lists only its own policies, so no policy is evaluated twice. A path that would be
    too long is split, and policies that name different versions of a resource do not
    share a webhook. Nor do policies with different selectors, so that each webhook has
    those of its policies; upstream registers the last policy's selectors for all.
    """
    shared: dict[tuple[str, str], list[_Webhook]] = {}
    for policy in sorted(policies, key=cel_name_of):
        failure_policy = "Ignore" if options.force_ignore else _failure_policy(policy)
        conditions = conditions_of(policy) if options.fine_grained else []
        selectors = selectors_of(policy)
        if conditions or _is_exact(policy) or _timeout_of(policy):
            own = _Webhook(failure_policy, conditions=conditions, own=policy)
            own.selectors = selectors
            own.take(policy)
            yield own
            continue
        open_ones = shared.setdefault((failure_policy, json_text(list(selectors))), [])
        webhook = next((one for one in open_ones if one.has_room(policy)), None)
        if webhook is None:
            webhook = _Webhook(failure_policy, selectors=selectors)
            open_ones.append(webhook)
        webhook.take(policy)
    # Those without selectors first, so that they keep the short names.
    yield from sorted(chain.from_iterable(shared.values()), key=lambda w: w.is_narrow)


def _failure_policy(policy: AnyServedPolicy) -> str:
    """Return the failure policy. KYVERNO: GeneratingPolicies never block requests."""
    if isinstance(policy, GeneratingPolicy):
        return "Ignore"
    return policy.spec.failure_policy


def _rendered(
    webhook: _Webhook,
    place: tuple[str, str],
    taken: set[str],
    options: WebhookOptions,
) -> Json:
    """Return a webhook. ``place``: the start of its name, and its path."""
    base, path = place
    name = f"{base}-{webhook.failure_policy.lower()}"
    own = webhook.own
    key = "/".join(sorted(set(webhook.names)))
    if own is not None:
        parts = ("finegrained", own.metadata.namespace, own.metadata.name)
        name = "-".join((name, *filter(None, parts)))
    name = unique(name, f"{'/'.join(sorted(webhook.namespaces))}/{key}", taken)
    taken.add(name)
    found: Json = {
        "name": name,
        "clientConfig": client_config(options, f"{path}/{key}"),
        "rules": rules_of_parts(_parts_of(own))
        if own is not None
        else rules_of(webhook.entries, ephemeral=False),
        "failurePolicy": webhook.failure_policy,
        "matchPolicy": "Exact" if own and _is_exact(own) else "Equivalent",
        "namespaceSelector": _namespace_selector(webhook, options),
        "objectSelector": merged(webhook.selectors[1], options.object_selector or {}),
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": options.timeout_s,
        "admissionReviewVersions": ["v1"],
    }
    if own is not None:
        found["timeoutSeconds"] = _timeout_of(own) or options.timeout_s
    names = [condition["name"] for condition in webhook.conditions]
    conditions = [
        *webhook.conditions,
        *exemptions(webhook.failure_policy, webhook.entries, names),
    ]
    if conditions:
        found["matchConditions"] = conditions
    return found


def _namespace_selector(webhook: _Webhook, options: WebhookOptions) -> Json:
    """Return the selector of namespaces.

    1.19: namespaced policies receive only objects of their own namespaces.
    """
    selector = merged(webhook.selectors[0], namespace_selector(options))
    namespaces = sorted(filter(None, webhook.namespaces))
    if not namespaces:
        return selector
    within = {"key": _NAME_LABEL, "operator": "In", "values": namespaces}
    return merged(selector, {"matchExpressions": [within]})


def _parts_of(policy: AnyServedPolicy) -> list[list[Entry]]:
    """Return the entries of the policy, then those of each of its autogen copies."""
    specs: list[AnySpec] = [policy.spec, *(spec for _, spec in copies_of(policy))]
    constraints = (spec.match_constraints for spec in specs)
    # KYVERNO: every operation can affect previously generated objects.
    widened = isinstance(policy, GeneratingPolicy)
    return [
        [
            entry
            for rule in constraint.resource_rules
            for entry in _entries_of_rule(rule, widened=widened)
        ]
        for constraint in constraints
        if constraint is not None
    ]


def _entries_of_rule(
    rule: NamedRuleWithOperations, *, widened: bool
) -> Iterator[Entry]:
    """Yield the entries of a rule; skip those that the API server would reject.

    ``widened``: for every operation.
    """
    operations: tuple[str, ...] = ALL_OPERATIONS
    if "*" not in rule.operations and not widened:
        operations = tuple(one for one in ALL_OPERATIONS if one in rule.operations)
    scope = rule.scope if rule.scope in ("Namespaced", "Cluster") else "*"
    resources = [one for one in rule.resources if one.partition("/")[0]]
    count = len(rule.api_groups) * len(rule.api_versions) * len(resources)
    if count > INDEX_KEYS_PER_FILTER_MAX:
        # With a wildcard version, the API server could send objects in a version that
        # the rule does not name.
        versions = {*filter(None, rule.api_versions)}
        if len(versions) > INDEX_KEYS_PER_FILTER_MAX:
            versions = {"*"}
        for version in versions:
            for operation in operations:
                yield Entry("*", version, "*", "*", scope, operation)
        return
    for group in rule.api_groups:
        for version in filter(None, rule.api_versions):
            for one in resources:
                resource, _, subresource = one.partition("/")
                for operation in operations:
                    yield Entry(group, version, resource, subresource, scope, operation)


def _is_exact(policy: AnyServedPolicy) -> bool:
    constraints = policy.spec.match_constraints
    return constraints is not None and constraints.match_policy == "Exact"


def _timeout_of(policy: AnyServedPolicy) -> int:
    own = policy.spec.webhook_configuration
    given = own.timeout_seconds if own is not None else None
    return min(max(given, 1), WEBHOOK_TIMEOUT_S_MAX) if given else 0
