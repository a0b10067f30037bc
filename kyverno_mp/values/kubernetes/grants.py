"""Say which commands grant a component's account a permission.

Room: values. Takes: a component, a resource, verbs. Gives: ``grant_commands``. Next:
kube/rights.py and webhook/ttl_review.py show them to the user.
Source: Kubernetes RBAC (aggregated ClusterRoles); deploy/parts.
"""

from collections.abc import Iterable
from typing import Final

TTL_VERBS: Final = ("list", "watch", "delete")
"""The permissions without which a TTL label has no effect."""


def grant_commands(
    component: str, resource: str, verbs: Iterable[str]
) -> tuple[str, str]:
    """Return two commands: one creates a ClusterRole, one adds it to the account's.

    ``resource``: the plural name, with its group, such as ``deployments.apps``.
    """
    role = f"kyverno:{component}-{resource.replace('/', '-')}"
    return (
        (
            f"kubectl create clusterrole {role} --verb={','.join(verbs)}"
            f" --resource={resource}"
        ),
        (
            f"kubectl label clusterrole {role}"
            f" rbac.kyverno.io/aggregate-to-{component}-controller=true"
        ),
    )
