"""Define the labels that name a generated object's policy, rule and trigger.

Room: background. Takes: a rule or policy, a trigger; labels of objects. Gives: labels
to write, selectors, ``owner_of``. Next: background/objects/downstream.py,
background/generate/policy_events.py, background/generating/run.py.
Source: docs/behaviour/controllers 5.3, 5.6; docs/behaviour/cel 10.2; Kyverno
pkg/cel/libs/context.go (addGenerateLabels).

As upstream, the labels of a GeneratingPolicy's objects contain no rule, which
distinguishes them from those of generate rules. Upstream omits the policy's namespace,
too. Here it is a label, so that policies with the same name do not delete each other's
objects.
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.background.update_request import Trigger
from kyverno_mp.program.generate.labels import (
    KYVERNO,
    MANAGED_BY,
    POLICY,
    POLICY_NAMESPACE,
    RULE,
    SOURCE_GROUP,
    SOURCE_KIND,
    SOURCE_NAMESPACE,
    SOURCE_UID,
    SOURCE_VERSION,
    TRIGGER_GROUP,
    TRIGGER_KIND,
    TRIGGER_NAME,
    TRIGGER_NAMESPACE,
    TRIGGER_UID,
    TRIGGER_VERSION,
    Origin,
    trigger_identity,
)
from kyverno_mp.values.kubernetes.selector import is_label_value

GENERATED_BY_POLICIES: Final = f"{MANAGED_BY}={KYVERNO},{POLICY},!{RULE}"
"""The label selector of all objects that GeneratingPolicies generate."""
Selector = Mapping[str, str | None]
"""The label values; None = the label must be absent."""


def rule_selector(origin: Origin) -> dict[str, str]:
    """Return the labels of all objects that a rule generated.

    They include the name of the rule. Upstream omits it, so that two rules of a policy
    delete each other's objects (docs/behaviour/controllers 14).
    """
    namespace, _, name = origin.policy.rpartition("/")
    return {
        MANAGED_BY: KYVERNO,
        POLICY: name,
        POLICY_NAMESPACE: namespace,
        RULE: origin.rule,
    }


def trigger_selector(origin: Origin, trigger: Trigger) -> dict[str, str]:
    """Return the labels of the objects that a rule generated for one trigger."""
    selector = {**rule_selector(origin), **_kind_and_namespace(trigger)}
    # KYVERNO: objects of older releases have the trigger's name, not its uid.
    if trigger.uid:
        return {**selector, TRIGGER_UID: trigger.uid}
    return {**selector, TRIGGER_NAME: trigger.name}


def labels_of(policy: str, trigger: Trigger, source_uid: str) -> dict[str, str]:
    """Return the labels of an object that a GeneratingPolicy generates.

    ``source_uid``: of a clone's source; "" for data. A name that is not a valid label
    value is omitted; upstream's object would be rejected.
    """
    namespace, _, name = policy.rpartition("/")
    labels = {
        MANAGED_BY: KYVERNO,
        POLICY: name,
        TRIGGER_NAME: trigger.name,
        TRIGGER_UID: trigger.uid,
        **_kind_and_namespace(trigger),
    }
    if namespace:
        labels[POLICY_NAMESPACE] = namespace
    if source_uid:
        labels[SOURCE_UID] = source_uid
    return _valid(labels)


def policy_selector(policy: str) -> dict[str, str | None]:
    """Return the labels of all objects that a GeneratingPolicy generated."""
    namespace, _, name = policy.rpartition("/")
    return {
        MANAGED_BY: KYVERNO,
        POLICY: name,
        POLICY_NAMESPACE: namespace or None,
        RULE: None,
    }


def policy_trigger_selector(policy: str, trigger: Trigger) -> dict[str, str | None]:
    """Return the labels of what a GeneratingPolicy generated for one trigger.

    SAFETY: all labels are compared. A forged object with the uid of one trigger and the
    name of another must not be selected for both.
    """
    labels = _kind_and_namespace(trigger)
    if trigger.uid:
        labels[TRIGGER_UID] = trigger.uid
    if trigger.name:
        labels[TRIGGER_NAME] = trigger.name
    return {**policy_selector(policy), **_valid(labels)}


def _kind_and_namespace(trigger: Trigger) -> dict[str, str]:
    group, _, version = trigger.api_version.rpartition("/")
    return {
        TRIGGER_GROUP: group,
        TRIGGER_VERSION: version,
        TRIGGER_KIND: trigger.kind,
        TRIGGER_NAMESPACE: trigger.namespace,
    }


def _valid(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if is_label_value(value)}


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether the labels have all values; even an empty one must be present."""
    return all(labels.get(name) == value for name, value in selector.items())


def text_of(selector: Selector) -> str:
    """Return the selector in the syntax of the API server."""
    return ",".join(
        f"!{name}" if value is None else f"{name}={value}"
        for name, value in sorted(selector.items())
    )


def trigger_of(labels: Mapping[str, str]) -> Trigger | None:
    """Return the trigger that the labels name; often only its uid is known."""
    identity = trigger_identity(labels)
    return None if identity is None else Trigger(*identity)


def owner_of(labels: Mapping[str, str]) -> tuple[str, Trigger] | None:
    """Return the GeneratingPolicy and the trigger that the labels name, or None."""
    name = labels.get(POLICY, "")
    if labels.get(MANAGED_BY) != KYVERNO or not name or labels.get(RULE):
        return None
    trigger = trigger_of(labels)
    if trigger is None:
        return None
    namespace = labels.get(POLICY_NAMESPACE, "")
    return (f"{namespace}/{name}" if namespace else name), trigger


def source_of(labels: Mapping[str, str]) -> Trigger | None:
    """Return the identity of a clone's source, without its name; None = no clone."""
    uid = labels.get(SOURCE_UID)
    if not uid:
        return None
    group, version = labels.get(SOURCE_GROUP, ""), labels.get(SOURCE_VERSION, "")
    return Trigger(
        api_version=f"{group}/{version}" if group else version,
        kind=labels.get(SOURCE_KIND, ""),
        namespace=labels.get(SOURCE_NAMESPACE, ""),
        uid=uid,
    )


def source_selector(source: Trigger) -> dict[str, str]:
    """Return the labels of the clones of a source, by any rule."""
    # The review may contain another version of the kind; the uid is sufficient.
    return {MANAGED_BY: KYVERNO, SOURCE_UID: source.uid}
