"""Write and read the labels of objects that GeneratingPolicies generate.

Room: background. Takes: a policy, a trigger; labels of objects. Gives: labels to write,
selectors, ``owner_of``. Next: background/generating/run.py,
background/generating/events.py, background/generating/watches.py. May touch: nothing
outside its arguments.
Source: docs/behaviour/cel 10.2; Kyverno pkg/cel/libs/context.go (addGenerateLabels).

As upstream, the labels contain no rule, which distinguishes these objects from those of
generate rules. Upstream omits the policy's namespace, too. Here it is a label, so that
policies with the same name do not delete each other's objects.
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.background.objects.labels import trigger_of
from kyverno_mp.background.update_request import Trigger
from kyverno_mp.program.generate.labels import (
    KYVERNO,
    MANAGED_BY,
    POLICY,
    POLICY_NAMESPACE,
    RULE,
    SOURCE_UID,
    TRIGGER_GROUP,
    TRIGGER_KIND,
    TRIGGER_NAME,
    TRIGGER_NAMESPACE,
    TRIGGER_UID,
    TRIGGER_VERSION,
)
from kyverno_mp.values.kubernetes.selector import is_label_value

LABEL_PREFIX: Final = "generate.kyverno.io/"
GENERATED_TEXT: Final = f"{MANAGED_BY}={KYVERNO},{POLICY},!{RULE}"
"""The label selector of all objects that GeneratingPolicies generate."""


def labels_of(policy: str, trigger: Trigger, source_uid: str) -> dict[str, str]:
    """Return the labels of an object. ``source_uid``: of a clone's source; "" for data.

    A name that is not a valid label value is omitted; upstream's object would be
    rejected.
    """
    namespace, _, name = policy.rpartition("/")
    group, _, version = trigger.api_version.rpartition("/")
    labels = {
        MANAGED_BY: KYVERNO,
        POLICY: name,
        TRIGGER_NAME: trigger.name,
        TRIGGER_NAMESPACE: trigger.namespace,
        TRIGGER_UID: trigger.uid,
        TRIGGER_KIND: trigger.kind,
        TRIGGER_GROUP: group,
        TRIGGER_VERSION: version,
    }
    if namespace:
        labels[POLICY_NAMESPACE] = namespace
    if source_uid:
        labels[SOURCE_UID] = source_uid
    return {name: value for name, value in labels.items() if is_label_value(value)}


def policy_selector(policy: str) -> dict[str, str | None]:
    """Return the labels of all objects that a policy generated; None = absent."""
    namespace, _, name = policy.rpartition("/")
    return {
        MANAGED_BY: KYVERNO,
        POLICY: name,
        POLICY_NAMESPACE: namespace or None,
        RULE: None,
    }


def trigger_selector(policy: str, trigger: Trigger) -> dict[str, str | None]:
    """Return the labels of the objects that a policy generated for one trigger.

    SAFETY: all labels are compared. A forged object with the uid of one trigger and the
    name of another must not be selected for both.
    """
    group, _, version = trigger.api_version.rpartition("/")
    values = {
        TRIGGER_GROUP: group,
        TRIGGER_VERSION: version,
        TRIGGER_KIND: trigger.kind,
        TRIGGER_NAMESPACE: trigger.namespace,
    }
    if trigger.uid:
        values[TRIGGER_UID] = trigger.uid
    if trigger.name:
        values[TRIGGER_NAME] = trigger.name
    named = {name: one for name, one in values.items() if is_label_value(one)}
    return {**policy_selector(policy), **named}


def owner_of(labels: Mapping[str, str]) -> tuple[str, Trigger] | None:
    """Return the policy and the trigger that the labels name, or None."""
    name = labels.get(POLICY, "")
    if labels.get(MANAGED_BY) != KYVERNO or not name or labels.get(RULE):
        return None
    trigger = trigger_of(labels)
    if trigger is None:
        return None
    namespace = labels.get(POLICY_NAMESPACE, "")
    return (f"{namespace}/{name}" if namespace else name), trigger
