"""Decide which policies of policies.kyverno.io share a webhook.

Room: controllers. Takes: decoded policies of one kind, WebhookOptions. Gives:
is_registered, CelWebhook. Next: controllers/webhook_config/cel.py.
Source: docs/behaviour/controllers 3.5; k8s apiserver, webhook/matchconditions.

Each webhook costs the API server a call for each request, so policies with equal
settings share one. A request that the author of a policy excluded must not reach us for
that policy: while we are down, it would be denied.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.compiler.webhook_conditions import are_cheap
from kyverno_mp.controllers.webhook_config.cel_conditions import conditions_of
from kyverno_mp.controllers.webhook_config.cel_documents import cel_name_of
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.rules import ALL_OPERATIONS, Entry
from kyverno_mp.controllers.webhook_config.selectors import selectors_of
from kyverno_mp.controllers.webhook_config.versions import NamedVersions
from kyverno_mp.limits import (
    INDEX_KEYS_PER_FILTER_MAX,
    JOINED_CONDITIONS_CHARACTERS_MAX,
    JOINED_CONDITIONS_MAX,
    WEBHOOK_PATH_CHARACTERS_MAX,
    WEBHOOK_TIMEOUT_S_MAX,
)
from kyverno_mp.policy.cel_kinds.admission_policy import NamedRuleWithOperations
from kyverno_mp.policy.cel_kinds.generated import kept_status
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy, evaluation_mode_of
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import ROW_OF

_ANY_NAME: Final = "kyverno-mp-any-policy"
_GROUPS: Final = ".groups"


class _Settings(NamedTuple):
    """What the policies of a webhook have in common.

    ``selectors``: those of namespaces and of objects, as JSON. ``apart``: differs for
    policies that never share, "" for a policy that needs nothing of its own.
    """

    failure_policy: str
    selectors: str
    is_exact: bool = False
    timeout_s: int = 0
    apart: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether no policy of the webhook has settings of its own."""
        return not (self.is_exact or self.timeout_s or self.apart)


@dataclass(slots=True)
class CelWebhook:
    """A webhook under construction."""

    settings: _Settings
    selectors: tuple[Json, Json]
    """The selectors of namespaces and of objects of all its policies."""
    names: list[str] = field(default_factory=list)
    policies: list[AnyServedPolicy] = field(default_factory=list)
    entries: set[Entry] = field(default_factory=set)
    versions: NamedVersions = field(default_factory=NamedVersions)
    alternatives: list[Sequence[Json]] = field(default_factory=list)
    """The different conditions of its policies; a request meets some of them."""

    def has_room(self, policy: AnyServedPolicy, conditions: Sequence[Json]) -> bool:
        """Return whether one more policy can share the webhook."""
        path = "/".join((*self.names, path_of(policy)))
        if len(path) > WEBHOOK_PATH_CHARACTERS_MAX:
            return False
        if not self.versions.agree(chain.from_iterable(parts_of(policy))):
            return False
        joined = [*self.alternatives, conditions]
        text = _any_of(joined)
        return conditions in self.alternatives or (
            len(joined) <= JOINED_CONDITIONS_MAX
            and len(text) <= JOINED_CONDITIONS_CHARACTERS_MAX
            and text.count(_GROUPS) <= JOINED_CONDITIONS_MAX
        )

    @property
    def own(self) -> AnyServedPolicy | None:
        """Its policy, if it serves only one, with settings of its own."""
        is_own = len(self.policies) == 1 and not self.settings.is_plain
        return self.policies[0] if is_own else None

    @property
    def is_narrow(self) -> bool:
        """Whether a selector limits it."""
        return any(self.selectors)

    @property
    def namespaces(self) -> set[str]:
        """The namespaces of its policies."""
        return {policy.metadata.namespace for policy in self.policies}

    @property
    def conditions(self) -> list[Json]:
        """The conditions to register."""
        if len(self.alternatives) <= 1:
            return [*chain.from_iterable(self.alternatives)]
        return [{"name": _ANY_NAME, "expression": _any_of(self.alternatives)}]

    def take(self, policy: AnyServedPolicy, conditions: Sequence[Json]) -> None:
        """Add one policy."""
        self.policies.append(policy)
        self.names.append(path_of(policy))
        entries = frozenset(chain.from_iterable(parts_of(policy)))
        self.entries |= entries
        self.versions.add(entries)
        if conditions not in self.alternatives:
            self.alternatives.append(conditions)


def _any_of(alternatives: Iterable[Sequence[Json]]) -> str:
    """Return an expression that is true if one of the alternatives is met.

    K8S: of several conditions a false one decides, even if another one fails, as for
    ``&&``.
    """
    return " || ".join(
        "(" + " && ".join(f"({condition['expression']})" for condition in one) + ")"
        for one in alternatives
    )


def is_registered(policy: AnyServedPolicy) -> bool:
    """Return whether a policy needs a webhook."""
    evaluation = policy.spec.evaluation
    admission = None if evaluation is None else evaluation.admission
    row = ROW_OF[policy.kind]
    is_off = admission is not None and admission.enabled is False
    if is_off or kept_status(policy.kind, policy.status):
        return False
    return not (row.judges_payloads and evaluation_mode_of(policy) == JSON_MODE)


def webhooks_of(
    policies: Iterable[AnyServedPolicy], options: WebhookOptions, *, joins: bool
) -> Iterator[CelWebhook]:
    """Yield the webhooks of one kind, those with settings of policies first.

    ``joins``: policies with equal settings share a webhook, and their conditions are
    joined. Upstream registers a webhook for each policy with settings of its own.

    Upstream lists the policies of both failure policies in both paths. Here, each path
    lists only its own policies, so no policy is evaluated twice. A path that would be
    too long is split, and policies that name different versions of a resource do not
    share a webhook. Nor do policies with different selectors, so that each webhook has
    those of its policies; upstream registers the last policy's selectors for all.
    """
    shared: dict[_Settings, list[CelWebhook]] = {}
    for policy in sorted(policies, key=cel_name_of):
        conditions = conditions_of(policy) if options.fine_grained else []
        selectors = selectors_of(policy)
        settings = _Settings(
            "Ignore" if options.force_ignore else _failure_policy(policy),
            json_text(list(selectors)),
            _is_exact(policy),
            _timeout_of(policy),
            _apart(policy, conditions, joins=joins),
        )
        open_ones = shared.setdefault(settings, [])
        webhook = next(
            (one for one in open_ones if one.has_room(policy, conditions)), None
        )
        if webhook is None:
            webhook = CelWebhook(settings, selectors)
            open_ones.append(webhook)
        webhook.take(policy, conditions)
    # Those without selectors first, so that they keep the short names.
    found = chain.from_iterable(shared.values())
    yield from sorted(found, key=lambda w: (w.settings.is_plain, w.is_narrow))


def _apart(policy: AnyServedPolicy, conditions: Sequence[Json], *, joins: bool) -> str:
    """Return what a policy shares a webhook by, beyond its other settings.

    Conditions are joined only for the same resources of the same namespace: otherwise
    the API server would ask us about, and while we are down deny, requests that the
    author of one policy excluded and that no other policy concerns. Nor are they joined
    where policies change the object in turn.
    """
    if not conditions and (joins or not (_is_exact(policy) or _timeout_of(policy))):
        return ""
    if not joins:
        return f"policy {path_of(policy)}"
    entries = sorted(set(chain.from_iterable(parts_of(policy))))
    alike = f"conditions {policy.metadata.namespace} {entries}"
    if are_cheap(str(condition["expression"]) for condition in conditions):
        return alike
    return f"{alike} {json_text(list(conditions))}"


def _failure_policy(policy: AnyServedPolicy) -> str:
    """Return the failure policy. KYVERNO: generating policies never block requests."""
    spec: Any = policy.spec
    return str(spec.failure_policy) if row_of(policy.kind).denies else "Ignore"


def path_of(policy: AnyServedPolicy) -> str:
    """Return a policy's part of a path, with its namespace.

    Upstream's paths contain no namespaces, so a worker cannot detect that it lacks a
    policy.
    """
    return "/".join(filter(None, (policy.metadata.namespace, policy.metadata.name)))


def parts_of(policy: AnyServedPolicy) -> list[list[Entry]]:
    """Return the entries of the policy, then those of each of its autogen copies."""
    row = row_of(policy.kind)
    specs: list[Any] = [policy.spec, *(spec for _, spec in row.copies_of(policy))]
    constraints = (spec.match_constraints for spec in specs)
    # KYVERNO: every operation can affect previously generated objects.
    widened = row.synchronizes is not None
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
