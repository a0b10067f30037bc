"""Check whether the API server accepts a policy's match conditions.

Room: policy. Takes: a policy. Gives: the API server's reasons to reject them. Next:
webhook/policy_review.py, controllers/webhook_config/resources.py.
Source: Kubernetes admissionregistration/v1 (names, limit); docs/behaviour/controllers
3.4. The API server accepts a webhook configuration as a whole or not at all, so one bad
condition in one policy would block webhook updates for all other policies.
"""

from kyverno_mp.limits import MATCH_CONDITIONS_MAX
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.values.kubernetes.selector import is_label_key

_PATH = "spec.webhookConfiguration.matchConditions"


def unregistrable(policy: AnyPolicy) -> str:
    """Return problems of names and their number; expressions are not checked here."""
    hooks = policy.spec.webhook_configuration
    names = (
        [match_condition.name for match_condition in hooks.match_conditions]
        if hooks
        else []
    )
    if len(names) > MATCH_CONDITIONS_MAX:
        return f"{_PATH}: more than {MATCH_CONDITIONS_MAX} conditions"
    for index, name in enumerate(names):
        if not is_label_key(name):
            return f"{_PATH}[{index}].name: {name!r} is not a qualified name"
        if name in names[:index]:
            return f"{_PATH}[{index}].name: {name!r} occurs twice"
    return ""
