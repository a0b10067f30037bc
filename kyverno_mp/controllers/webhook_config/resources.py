"""Compute the two webhook configurations for resources under policies.

Room: controllers. Takes: policies in force, a Directory, WebhookOptions. Gives:
Desired, both configurations. Next: controllers/webhook_config/reconcile.py.
Source: docs/behaviour/controllers 3.2-3.4; Kyverno pkg/controllers/webhook at v1.18.2.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kyverno_mp.compiler.webhook_conditions import are_accepted_everywhere
from kyverno_mp.controllers.webhook_config.collect import KnownEntries, concerns
from kyverno_mp.controllers.webhook_config.options import (
    MUTATING,
    VALIDATING,
    WebhookOptions,
    client_config,
    configuration,
    namespace_selector,
)
from kyverno_mp.controllers.webhook_config.rules import (
    ALL_OPERATIONS,
    CREATE_UPDATE,
    Entry,
    rules_of,
)
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.limits import MATCH_CONDITIONS_MAX, WEBHOOK_TIMEOUT_S_MAX
from kyverno_mp.policy.cel_kinds.generated import kept_status
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.match_conditions import unregistrable
from kyverno_mp.values.jsonvalue import Json

RESOURCE_VALIDATING: Final = "kyverno-resource-validating-webhook-cfg"
RESOURCE_MUTATING: Final = "kyverno-resource-mutating-webhook-cfg"
_NAME_LENGTH_MAX: Final = 253
_EXEMPT_NAME: Final = "kyverno-mp-spared"
_EXEMPT: Final[tuple[tuple[Callable[[Entry], bool], str], ...]] = (
    (
        lambda entry: entry.resource == "leases",
        '!(request.resource.resource == "leases")',
    ),
    (
        lambda entry: entry.resource.endswith("reviews"),
        '!request.resource.resource.endsWith("reviews")',
    ),
    (
        lambda entry: entry.resource == "events",
        '!(request.resource.resource == "events")',
    ),
)
"""Resources that a rule for all resources must never block while we do not answer:
without leases no controller is elected, and without reviews no request is authorized.
If a policy of the webhook names one of these kinds, the webhook still receives it."""


_BOOTSTRAP_NAME: Final = "kyverno-exclude-bootstrap-resources"
_BOOTSTRAP: Final = (
    '!(request.resource.group == "" && request.resource.resource == "nodes") && '
    '!(request.resource.group == "certificates.k8s.io" && '
    'request.resource.resource == "certificatesigningrequests")'
)


class _EntriesOf(Protocol):
    """Returns the entries that the webhook must match for one policy."""

    def __call__(self, policy: AnyPolicy, *, mutating: bool) -> Iterable[Entry]: ...


@dataclass(slots=True)
class _Webhook:
    """A webhook under construction; ``policy`` is set if it serves only that policy."""

    failure_policy: str
    timeout_s: int
    conditions: Sequence[Json]
    policy: AnyPolicy | None = None
    entries: set[Entry] = field(default_factory=set)

    def take(self, policy: AnyPolicy, entries: Iterable[Entry]) -> None:
        """Add the entries of one policy."""
        self.entries.update(entries)
        # KYVERNO: the longest time-out applies to all policies of the webhook, and a
        # time-out below the default has no effect (3.3 item 9).
        self.timeout_s = max(self.timeout_s, _timeout_of(policy))


@dataclass(frozen=True, slots=True)
class Desired:
    """The configurations, and the keys of the policies with their own webhooks."""

    validating: Json
    mutating: Json
    ready: frozenset[str]


def desired(
    policies: Sequence[AnyPolicy],
    directory: Directory,
    options: WebhookOptions,
    known_entries: KnownEntries | None = None,
) -> Desired:
    """Compute both configurations for the policies in force.

    Cost: expands every rule of each policy that is not in ``known``, one millisecond
    for ten policies.
    """
    ours = [policy for policy in policies if _is_ours(policy)]
    known_entries = KnownEntries() if known_entries is None else known_entries
    known_entries.keep(ours)

    def entries(policy: AnyPolicy, *, mutating: bool) -> frozenset[Entry]:
        return known_entries.of(policy, directory, mutating=mutating)

    return Desired(
        validating=configuration(
            VALIDATING,
            RESOURCE_VALIDATING,
            _webhooks(ours, entries, options, mutating=False),
            options,
        ),
        mutating=configuration(
            MUTATING,
            RESOURCE_MUTATING,
            _webhooks(ours, entries, options, mutating=True),
            options,
        ),
        ready=frozenset(policy.key for policy in policies),
    )


def failure_policy_of(policy: AnyPolicy, options: WebhookOptions) -> str:
    """Return Fail or Ignore, as registered in the API server."""
    if options.force_ignore:
        return "Ignore"
    own = policy.spec.webhook_configuration
    given = own.failure_policy if own is not None else None
    return given or policy.spec.failure_policy or "Fail"


def _is_ours(policy: AnyPolicy) -> bool:
    """Return whether we evaluate the policy at admission (3.3 item 1)."""
    return policy.spec.admission and not kept_status(policy.kind, policy.status)


def _webhooks(
    policies: Iterable[AnyPolicy],
    entries: _EntriesOf,
    options: WebhookOptions,
    *,
    mutating: bool,
) -> list[Json]:
    if not options.auto_update:
        made = _catch_all(options, mutating=mutating)
    else:
        made = _computed(policies, entries, options, mutating=mutating)
    base = "mutate" if mutating else "validate"
    taken: set[str] = set()
    found = [
        _rendered(one, base, taken, options, mutating=mutating)
        for one in made
        if one.entries
    ]
    return sorted(found, key=lambda webhook: str(webhook["name"]))


def _computed(
    policies: Iterable[AnyPolicy],
    entries: _EntriesOf,
    options: WebhookOptions,
    *,
    mutating: bool,
) -> list[_Webhook]:
    shared = {
        name: _Webhook(name, options.timeout_s, options.match_conditions)
        for name in ("Ignore", "Fail")
    }
    own: list[_Webhook] = []
    for policy in sorted(policies, key=lambda one: one.key):
        if not concerns(policy, mutating=mutating):
            continue
        name = failure_policy_of(policy, options)
        conditions = _conditions_of(policy) if options.fine_grained else []
        webhook = shared[name]
        if conditions:
            webhook = _Webhook(name, options.timeout_s, conditions, policy)
            own.append(webhook)
        webhook.take(policy, entries(policy, mutating=mutating))
    return [*shared.values(), *own]


def _catch_all(options: WebhookOptions, *, mutating: bool) -> list[_Webhook]:
    """Return the permanent webhooks with autoUpdateWebhooks=false (3.2)."""
    operations = CREATE_UPDATE if mutating else ALL_OPERATIONS
    entries = {Entry("*", "*", "*", "*", "*", operation) for operation in operations}
    return [
        _Webhook(name, options.timeout_s, (), entries=set(entries))
        for name in ("Ignore", "Fail")
    ]


def _rendered(
    webhook: _Webhook,
    base: str,
    taken: set[str],
    options: WebhookOptions,
    *,
    mutating: bool,
) -> Json:
    suffix = webhook.failure_policy.lower()
    name, path = f"{base}.kyverno.svc-{suffix}", f"/{base}/{suffix}"
    if webhook.policy is not None:
        key = webhook.policy.key
        name = unique(f"{name}-finegrained-{key.replace('/', '-')}", key, taken)
        path = f"{path}/finegrained/{key}"
    taken.add(name)
    found: Json = {
        "name": name,
        "clientConfig": client_config(options, path),
        "rules": rules_of(webhook.entries),
        "failurePolicy": webhook.failure_policy,
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespace_selector(options),
        "objectSelector": options.object_selector or {},
        "sideEffects": _side_effects(options, mutating=mutating),
        "timeoutSeconds": min(webhook.timeout_s, WEBHOOK_TIMEOUT_S_MAX),
        "admissionReviewVersions": ["v1"],
    }
    if mutating:
        found["reinvocationPolicy"] = "IfNeeded"
    others = [condition["name"] for condition in webhook.conditions]
    conditions = [
        *webhook.conditions,
        *exemptions(webhook.failure_policy, webhook.entries, others),
    ]
    if conditions:
        found["matchConditions"] = conditions
    return found


def _side_effects(options: WebhookOptions, *, mutating: bool) -> str:
    return "NoneOnDryRun" if mutating or options.admission_reports else "None"


def exemptions(
    failure_policy: str, entries: Collection[Entry], others: Iterable[str]
) -> list[Json]:
    """Return conditions for a webhook that may block and matches all resources.

    ``others``: the names of the webhook's other conditions.
    """
    everything = any(
        entry.resource == "*" and entry.subresource in ("", "*") for entry in entries
    )
    if failure_policy != "Fail" or not everything:
        return []
    clauses = [
        clause
        for names, clause in _EXEMPT
        if not any(names(entry) for entry in entries)
    ]
    if not clauses:
        return []
    name, others = _EXEMPT_NAME, set(others)
    while name in others:
        name += "-too"
    return [{"name": name, "expression": " && ".join(clauses)}]


def without_bootstrap(webhooks: Iterable[Json]) -> None:
    """Exclude Nodes and CertificateSigningRequests from webhooks that may block.

    1.19: without nodes no pod of ours can start, so nobody would answer.
    """
    for webhook in webhooks:
        conditions = [*webhook.get("matchConditions", ())]
        names = {condition["name"] for condition in conditions}
        if webhook["failurePolicy"] != "Fail" or _BOOTSTRAP_NAME in names:
            continue
        if len(conditions) <= MATCH_CONDITIONS_MAX:
            conditions.append({"name": _BOOTSTRAP_NAME, "expression": _BOOTSTRAP})
        else:
            # K8S: at most 64 conditions.
            last = conditions[-1]
            expression = f"({last['expression']}) && {_BOOTSTRAP}"
            conditions[-1] = {**last, "expression": expression}
        webhook["matchConditions"] = conditions


def _conditions_of(policy: AnyPolicy) -> list[Json]:
    """Return the match conditions to register, none if the API server would reject one.

    In that case only we evaluate the conditions, so that all other webhooks can be
    registered.
    """
    own = policy.spec.webhook_configuration
    if own is None or unregistrable(policy):
        return []
    if not are_accepted_everywhere(one.expression for one in own.match_conditions):
        return []
    return [
        {"name": match_condition.name, "expression": match_condition.expression}
        for match_condition in own.match_conditions
    ]


def _timeout_of(policy: AnyPolicy) -> int:
    own = policy.spec.webhook_configuration
    given = own.timeout_seconds if own is not None else None
    return given or policy.spec.webhook_timeout_seconds or 0


def unique(name: str, key: str, taken: set[str]) -> str:
    """Return ``name``, with a suffix if another policy has it.

    Upstream gives ClusterPolicy ``a-b`` and Policy ``a/b`` the same name, and the API
    server then rejects the whole configuration. It also rejects names that are too
    long.
    """
    if name not in taken and len(name) <= _NAME_LENGTH_MAX:
        return name
    mark = hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
    return f"{name[: _NAME_LENGTH_MAX - len(mark) - 1].rstrip('-.')}-{mark}"
