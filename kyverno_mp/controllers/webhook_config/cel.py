"""Compute the webhooks of ValidatingPolicies and NamespacedValidatingPolicies.

Room: controllers. Takes: policies as JSON, WebhookOptions. Gives: webhooks of the
validating configuration. Next: webhook_config/controller.py.
May touch: nothing outside its arguments, the log.
Source: docs/behaviour/cel 9; docs/behaviour/controllers 3.1; Kyverno
pkg/controllers/webhook/validating.go at v1.18.2.

A configuration is accepted as a whole or not at all, so nothing that the author of one
policy writes may get into it unless the API server accepts it.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec

from kyverno_mp.compiler.autogen_cel import copies_of
from kyverno_mp.compiler.match import build_selector
from kyverno_mp.compiler.webhook_conditions import are_accepted_everywhere
from kyverno_mp.controllers.policy_status import PolicyName
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
from kyverno_mp.controllers.webhook_config.versions import NamedVersions
from kyverno_mp.errors import InputError
from kyverno_mp.limits import (
    INDEX_KEYS_PER_FILTER_MAX,
    MATCH_CONDITIONS_MAX,
    WEBHOOK_PATH_CHARACTERS_MAX,
    WEBHOOK_TIMEOUT_S_MAX,
)
from kyverno_mp.policy.admission_policy import NamedRuleWithOperations
from kyverno_mp.policy.fields.meta import LabelSelector, NamedExpression
from kyverno_mp.policy.generated import is_generated
from kyverno_mp.policy.validating_policy import (
    JSON_MODE,
    VALIDATING_POLICY_KINDS,
    AnyValidatingPolicy,
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.selector import is_label_key

_log = logging.getLogger(__name__)
_BASES: Final = {
    "ValidatingPolicy": ("vpol.validate.kyverno.svc", "/vpol"),
    "NamespacedValidatingPolicy": ("nvpol.validate.kyverno.svc", "/nvpol-keys"),
}
_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_KINDS_OF_COPIES: Final = {
    "cronjobs": {"cronjobs": ("batch/v1", "CronJob")},
    "defaults": {
        "daemonsets": ("apps/v1", "DaemonSet"),
        "deployments": ("apps/v1", "Deployment"),
        "jobs": ("batch/v1", "Job"),
        "replicasets": ("apps/v1", "ReplicaSet"),
        "statefulsets": ("apps/v1", "StatefulSet"),
    },
}
_PODS: Final = {"pods": ("v1", "Pod")}


class DecodedCelPolicies:
    """The last decoded policies; an unchanged text yields the same object."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, AnyValidatingPolicy | None] = {}

    def decode(self, documents: Iterable[bytes]) -> tuple[AnyValidatingPolicy, ...]:
        """Return the policies; log and leave out every other document."""
        known, self._decoded = self._decoded, {}
        for text in documents:
            found = known[text] if text in known else _decoded(text)
            self._decoded[text] = found
        return tuple(one for one in self._decoded.values() if one is not None)

    @staticmethod
    def in_force(
        policies: Sequence[AnyValidatingPolicy], kept: Mapping[PolicyName, str]
    ) -> list[AnyValidatingPolicy]:
        """Return the policies in the versions that workers evaluate."""
        found = [one for one in policies if cel_name_of(one) not in kept]
        earlier = (
            _decoded(text.encode())
            for name, text in kept.items()
            if name[0] in VALIDATING_POLICY_KINDS
        )
        return [*found, *(one for one in earlier if one is not None)]


def cel_name_of(policy: AnyValidatingPolicy) -> PolicyName:
    """Return the key of a policy in Served."""
    return policy.kind, policy.metadata.namespace, policy.metadata.name


@dataclass(slots=True)
class _Webhook:
    """A webhook under construction; ``own``: the one policy that it is for."""

    failure_policy: str
    names: list[str] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    entries: set[Entry] = field(default_factory=set)
    versions: NamedVersions = field(default_factory=NamedVersions)
    conditions: Sequence[Json] = ()
    own: AnyValidatingPolicy | None = None

    def has_room(self, policy: AnyValidatingPolicy) -> bool:
        """Return whether one more policy can share the webhook."""
        path = "/".join((*self.names, _path_of(policy)))
        fits = len(path) <= WEBHOOK_PATH_CHARACTERS_MAX
        return fits and self.versions.agree(chain.from_iterable(_parts_of(policy)))

    def take(self, policy: AnyValidatingPolicy) -> None:
        """Add one policy."""
        self.names.append(_path_of(policy))
        self.namespaces.add(policy.metadata.namespace)
        entries = frozenset(chain.from_iterable(_parts_of(policy)))
        self.entries |= entries
        self.versions.add(entries)


def cel_webhooks(
    policies: Iterable[AnyValidatingPolicy], options: WebhookOptions
) -> list[Json]:
    """Return the webhooks of both kinds, sorted by name."""
    if not options.auto_update:
        return []
    by_kind: dict[str, list[AnyValidatingPolicy]] = {}
    for policy in policies:
        if _is_ours(policy):
            by_kind.setdefault(policy.kind, []).append(policy)
    taken: set[str] = set()
    found = [
        _rendered(webhook, kind, taken, options)
        for kind in sorted(by_kind)
        for webhook in _webhooks(by_kind[kind], options)
        if webhook.entries
    ]
    return sorted(found, key=lambda webhook: str(webhook["name"]))


def _path_of(policy: AnyValidatingPolicy) -> str:
    """Return a policy's part of a path, with its namespace.

    Upstream names no namespaces, so a worker cannot know that it lacks a policy.
    """
    return "/".join(filter(None, (policy.metadata.namespace, policy.metadata.name)))


def _is_ours(policy: AnyValidatingPolicy) -> bool:
    evaluation = policy.spec.evaluation
    admission = None if evaluation is None else evaluation.admission
    is_off = admission is not None and admission.enabled is False
    return not (is_off or is_generated(policy.status) or policy.mode == JSON_MODE)


def _webhooks(
    policies: Iterable[AnyValidatingPolicy], options: WebhookOptions
) -> Iterator[_Webhook]:
    """Yield the webhooks of one kind, those for single policies first.

    Upstream names the policies of both failure policies in both paths; here each path
    names its own, so no policy is evaluated twice. A path that would be too long is
    split, and policies that name other versions of a resource share no webhook.
    """
    shared: dict[str, list[_Webhook]] = {}
    for policy in sorted(policies, key=cel_name_of):
        failure_policy = (
            "Ignore" if options.force_ignore else policy.spec.failure_policy
        )
        conditions = _conditions_of(policy) if options.fine_grained else []
        if conditions or _is_exact(policy) or _timeout_of(policy):
            own = _Webhook(failure_policy, conditions=conditions, own=policy)
            own.take(policy)
            yield own
            continue
        open_ones = shared.setdefault(failure_policy, [])
        webhook = next((one for one in open_ones if one.has_room(policy)), None)
        if webhook is None:
            webhook = _Webhook(failure_policy)
            open_ones.append(webhook)
        webhook.take(policy)
    for open_ones in shared.values():
        yield from open_ones


def _rendered(
    webhook: _Webhook, kind: str, taken: set[str], options: WebhookOptions
) -> Json:
    base, path = _BASES[kind]
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
        "objectSelector": options.object_selector or {},
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": options.timeout_s,
        "admissionReviewVersions": ["v1"],
    }
    if own is not None:
        found["timeoutSeconds"] = _timeout_of(own) or options.timeout_s
        found["objectSelector"] = _merged(
            _registrable(own.spec.match_constraints.object_selector)
            if own.spec.match_constraints
            else {},
            options.object_selector or {},
        )
    names = [one["name"] for one in webhook.conditions]
    conditions = [
        *webhook.conditions,
        *exemptions(webhook.failure_policy, webhook.entries, names),
    ]
    if conditions:
        found["matchConditions"] = conditions
    return found


def _namespace_selector(webhook: _Webhook, options: WebhookOptions) -> Json:
    """Return the selector of namespaces.

    1.19: namespaced policies get the objects of their own namespaces alone. Selectors
    of policies that share a webhook are not registered: we evaluate them.
    """
    selector = namespace_selector(options)
    own = webhook.own
    if own is not None and own.spec.match_constraints is not None:
        given = own.spec.match_constraints.namespace_selector
        selector = _merged(_registrable(given), selector)
    namespaces = sorted(filter(None, webhook.namespaces))
    if not namespaces:
        return selector
    within = {"key": _NAME_LABEL, "operator": "In", "values": namespaces}
    return _merged(selector, {"matchExpressions": [within]})


def _registrable(selector: LabelSelector | None) -> Json:
    """Return a policy's selector, an empty one if the API server would refuse it."""
    compiled = build_selector(selector)
    if selector is None or compiled is None or compiled.error:
        return {}
    return selector.raw()


def _merged(first: Json, second: Json) -> Json:
    """Return a selector that matches what both match.

    KYVERNO: of two values for one label the second counts.
    """
    labels = {**(first.get("matchLabels") or {}), **(second.get("matchLabels") or {})}
    terms = [
        *(first.get("matchExpressions") or ()),
        *(second.get("matchExpressions") or ()),
    ]
    found: Json = {}
    if labels:
        found["matchLabels"] = labels
    if terms:
        found["matchExpressions"] = terms
    return found


def _parts_of(policy: AnyValidatingPolicy) -> list[list[Entry]]:
    """Return what the policy matches, then what each of its autogen copies matches."""
    specs = [policy.spec, *(spec for _, spec in copies_of(policy.spec))]
    constraints = (spec.match_constraints for spec in specs)
    return [
        [entry for rule in one.resource_rules for entry in _entries_of_rule(rule)]
        for one in constraints
        if one is not None
    ]


def _entries_of_rule(rule: NamedRuleWithOperations) -> Iterator[Entry]:
    """Yield what a rule matches; nothing that the API server would refuse."""
    operations: tuple[str, ...] = ALL_OPERATIONS
    if "*" not in rule.operations:
        operations = tuple(one for one in ALL_OPERATIONS if one in rule.operations)
    scope = rule.scope if rule.scope in ("Namespaced", "Cluster") else "*"
    resources = [one for one in rule.resources if one.partition("/")[0]]
    count = len(rule.api_groups) * len(rule.api_versions) * len(resources)
    if count > INDEX_KEYS_PER_FILTER_MAX:
        # With every version, objects would come in those that the rule does not name.
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


def _is_exact(policy: AnyValidatingPolicy) -> bool:
    constraints = policy.spec.match_constraints
    return constraints is not None and constraints.match_policy == "Exact"


def _timeout_of(policy: AnyValidatingPolicy) -> int:
    own = policy.spec.webhook_configuration
    given = own.timeout_seconds if own is not None else None
    return min(max(given, 1), WEBHOOK_TIMEOUT_S_MAX) if given else 0


def _conditions_of(policy: AnyValidatingPolicy) -> list[Json]:
    """Return the conditions to register, none if the API server would refuse one.

    Those of a policy with autogen copies name the kinds that they are for.
    """
    copies = list(copies_of(policy.spec))
    if not copies:
        found = [(one.name, one.expression) for one in policy.spec.match_conditions]
    else:
        found = list(_of_kinds("autogen", _PODS, policy.spec.match_conditions))
        for name, spec in copies:
            constraints = spec.match_constraints
            rules = () if constraints is None else constraints.resource_rules
            covered = {resource for rule in rules for resource in rule.resources}
            kinds = {
                resource: kind
                for resource, kind in _KINDS_OF_COPIES[name].items()
                if resource in covered
            }
            found += _of_kinds(f"autogen-{name}", kinds, spec.match_conditions)
    if not _are_registrable(found):
        return []
    return [{"name": name, "expression": text} for name, text in found]


def _of_kinds(
    prefix: str,
    kinds: Mapping[str, tuple[str, str]],
    conditions: Iterable[NamedExpression],
) -> Iterator[tuple[str, str]]:
    """Yield each condition so that it is true for every other kind."""
    is_one = " || ".join(
        sorted(
            f"(object.apiVersion == '{version}' && object.kind =='{kind}')"
            for version, kind in kinds.values()
        )
    )
    for one in conditions if kinds else ():
        yield f"{prefix}-{one.name}", f"!({is_one}) || ({one.expression})"


def _are_registrable(conditions: Sequence[tuple[str, str]]) -> bool:
    names = [name for name, _ in conditions]
    if len(names) >= MATCH_CONDITIONS_MAX or len(set(names)) < len(names):
        return False
    if not all(map(is_label_key, names)):
        return False
    return are_accepted_everywhere(text for _, text in conditions)


def _decoded(text: bytes) -> AnyValidatingPolicy | None:
    try:
        found = decode_validating_policy(msgspec.json.decode(text))
    except InputError as error:
        _log.warning("policy left out of the webhooks: %s", error.message)
        return None
    return None if isinstance(found, CelPolicyException) else found
