"""Check that the API server accepts the match conditions of a policy's own webhook.

Room: policy. Takes: a policy. Gives: the reasons why it would refuse them. Next:
webhook/policy_review.py, controllers/webhook_config/resources.py. May touch: nothing.
Source: Kubernetes admissionregistration/v1 (names, how many);
docs/behaviour/controllers 3.4.

A webhook configuration is accepted as a whole or not at all, so one bad condition of
one policy would block webhook updates for all other policies.
"""

from kyverno_mp.limits import MATCH_CONDITIONS_MAX
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.values.kubernetes.selector import is_label_key

_PATH = "spec.webhookConfiguration.matchConditions"


def unregistrable(policy: AnyPolicy) -> str:
    """Return problems of names and number; expressions are checked elsewhere."""
    hooks = policy.spec.webhook_configuration
    names = [one.name for one in hooks.match_conditions] if hooks else []
    if len(names) > MATCH_CONDITIONS_MAX:
        return f"{_PATH}: more than {MATCH_CONDITIONS_MAX} conditions"
    for index, name in enumerate(names):
        if not is_label_key(name):
            return f"{_PATH}[{index}].name: {name!r} is not a qualified name"
        if name in names[:index]:
            return f"{_PATH}[{index}].name: {name!r} occurs twice"
    return ""
