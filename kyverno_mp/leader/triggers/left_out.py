"""Write into policies' statuses that reviews without proof were not carried out.

Room: leader. Takes: a record of a policy. Gives: change_unproved.
Next: controllers/unproved_status.py has the condition.
May touch: the API server through kube/apply.py, the clock.
"""

from datetime import UTC, datetime
from typing import Final

from kyverno_mp.controllers.unproved_status import with_unproved
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.queues.triggers import Wanted
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

_KINDS: Final = {
    f"cel-{row.rule_type}" if row.is_in_cel else "": row
    for row in POLICY_KINDS
    if row.segment
}
"""By the type of their requests, "" for all that are not in CEL."""


def change_unproved(objects: Objects, part: Wanted) -> None:
    """Add the condition to a policy that lacks it. Raises: DependencyError."""
    namespace, _, name = part.policy.rpartition("/")
    kind = _KINDS.get(part.type) or _KINDS[""]
    resource = resource_of(kind.namespaced if namespace else kind.cluster)
    now = datetime.now(UTC)
    objects.change(
        resource, (namespace, name), lambda raw: with_unproved(raw, now), "status"
    )
