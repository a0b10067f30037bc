"""Compute the webhooks of the policies of policies.kyverno.io.

Room: controllers. Takes: decoded policies, WebhookOptions. Gives: webhooks of the
validating and of the mutating configuration. Next:
controllers/webhook_config/controller.py.
Source: docs/behaviour/cel 9; docs/behaviour/controllers 3.1; Kyverno
pkg/controllers/webhook/validating.go at v1.18.2.

The API server accepts a configuration as a whole or not at all, so text from the author
of one policy is registered only if the API server accepts it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from kyverno_mp.controllers.webhook_config.cel_sharing import (
    CelWebhook,
    is_registered,
    parts_of,
    webhooks_of,
)
from kyverno_mp.controllers.webhook_config.options import (
    WebhookOptions,
    client_config,
    namespace_selector,
)
from kyverno_mp.controllers.webhook_config.resources import exemptions, unique
from kyverno_mp.controllers.webhook_config.rules import (
    rules_of,
    rules_of_parts,
)
from kyverno_mp.controllers.webhook_config.selectors import merged
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    REVIEWED_CEL_KINDS,
    PolicyKind,
    ReviewPath,
)


class _Place(NamedTuple):
    """The start of a webhook's name, its path, and Kyverno's path for its policies."""

    name: str
    path: str
    upstream_path: str


def _places(of: Callable[[PolicyKind], ReviewPath | None]) -> dict[str, _Place]:
    """Return where the webhooks of each kind are that has them."""
    places: dict[str, _Place] = {}
    for row in REVIEWED_CEL_KINDS:
        review = of(row)
        if review is not None:
            path, twin = review.path, f"/n{review.path.removeprefix('/')}"
            places[row.cluster.kind] = _Place(review.webhook, path, path)
            places[row.namespaced.kind] = _Place(
                review.namespaced_webhook, review.namespaced_path, twin
            )
    return places


_VALIDATING: Final = _places(lambda row: row.validating)
_MUTATING: Final = _places(lambda row: row.mutating)
_NAME_LABEL: Final = "kubernetes.io/metadata.name"


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
    bases: Mapping[str, _Place],
    options: WebhookOptions,
) -> list[Json]:
    if not options.auto_update:
        return []
    by_kind: dict[str, list[AnyServedPolicy]] = {}
    for policy in policies:
        if policy.kind in bases and is_registered(policy):
            by_kind.setdefault(policy.kind, []).append(policy)
    taken: set[str] = set()
    found = [
        _rendered(webhook, bases[kind], taken, options)
        for kind in sorted(by_kind)
        for webhook in webhooks_of(by_kind[kind], options, joins=bases is _VALIDATING)
        if webhook.entries
    ]
    return sorted(found, key=lambda webhook: str(webhook["name"]))


def _mutates(policy: AnyServedPolicy) -> bool:
    """Return whether a policy can change objects, if its kind can."""
    verification = getattr(policy.spec, "validation_configurations", None)
    return verification is None or bool(verification.mutate_digest)


def _rendered(
    webhook: CelWebhook,
    place: _Place,
    taken: set[str],
    options: WebhookOptions,
) -> Json:
    """Return a webhook."""
    settings = webhook.settings
    name = f"{place.name}-{settings.failure_policy.lower()}"
    own = webhook.own
    key = "/".join(sorted(set(webhook.names)))
    if own is not None:
        parts = ("finegrained", own.metadata.namespace, own.metadata.name)
        name = "-".join((name, *filter(None, parts)))
    elif not settings.is_plain:
        name = f"{name}-finegrained"
    name = unique(name, f"{'/'.join(sorted(webhook.namespaces))}/{key}", taken)
    taken.add(name)
    found: Json = {
        "name": name,
        "clientConfig": client_config(options, _path(webhook, place, options)),
        "rules": rules_of_parts(parts_of(own))
        if own is not None
        else rules_of(webhook.entries, ephemeral=False),
        "failurePolicy": settings.failure_policy,
        "matchPolicy": "Exact" if settings.is_exact else "Equivalent",
        "namespaceSelector": _namespace_selector(webhook, options),
        "objectSelector": merged(webhook.selectors[1], options.object_selector or {}),
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": settings.timeout_s or options.timeout_s,
        "admissionReviewVersions": ["v1"],
    }
    names = [condition["name"] for condition in webhook.conditions]
    conditions = [
        *webhook.conditions,
        *exemptions(settings.failure_policy, webhook.entries, names),
    ]
    if conditions:
        found["matchConditions"] = conditions
    return found


def _path(webhook: CelWebhook, place: _Place, options: WebhookOptions) -> str:
    """Return the path with the policies, which Kyverno names without namespaces."""
    names = set(webhook.names)
    if not options.upstream_paths or place.path == place.upstream_path:
        return "/".join((place.path, *sorted(names)))
    bare = {name.rpartition("/")[2] for name in names}
    return "/".join((place.upstream_path, *sorted(bare)))


def _namespace_selector(webhook: CelWebhook, options: WebhookOptions) -> Json:
    """Return the selector of namespaces.

    1.19: namespaced policies receive only objects of their own namespaces.
    """
    selector = merged(webhook.selectors[0], namespace_selector(options))
    namespaces = sorted(filter(None, webhook.namespaces))
    if not namespaces:
        return selector
    within = {"key": _NAME_LABEL, "operator": "In", "values": namespaces}
    return merged(selector, {"matchExpressions": [within]})
