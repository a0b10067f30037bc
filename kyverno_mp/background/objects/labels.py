"""Define the labels that name a generated object's policy, rule and trigger.

Room: background. Takes: labels of objects. Gives: the selectors for them.
Next: background/objects/downstream.py, background/generate/policy_events.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 5.3, 5.6.
"""

from collections.abc import Mapping

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
    group, _, version = trigger.api_version.rpartition("/")
    selector = {
        **rule_selector(origin),
        TRIGGER_GROUP: group,
        TRIGGER_VERSION: version,
        TRIGGER_KIND: trigger.kind,
        TRIGGER_NAMESPACE: trigger.namespace,
    }
    # KYVERNO: objects of older releases have the trigger's name, not its uid.
    if trigger.uid:
        return {**selector, TRIGGER_UID: trigger.uid}
    return {**selector, TRIGGER_NAME: trigger.name}


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
    found = trigger_identity(labels)
    return None if found is None else Trigger(*found)


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
