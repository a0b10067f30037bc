"""Find the permissions that scans lack for the objects of a policy in CEL.

Room: controllers. Takes: a policy, Permissions. Gives: the missing permissions as text.
Next: controllers/cel_status.py. May touch: the API server through Permissions.
Source: docs/behaviour/controllers 3 (status of CEL kinds); Kyverno
pkg/controllers/policystatus/controller.go at v1.18.2.
"""

from collections.abc import Callable, Sequence
from itertools import islice, product
from typing import Final

from kyverno_mp.errors import KubeRefused
from kyverno_mp.limits import SCAN_PERMISSION_RESOURCES_MAX
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.ports import Permissions, PermissionTarget
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource

MissingPermissions = Callable[[AnyServedPolicy], Sequence[str]]
_VERBS: Final = ("get", "list", "watch")


def scan_permissions(permissions: Permissions, account: str) -> MissingPermissions:
    """Return a check of the scanning ``account``; without one, nothing is missing.

    The check raises: DependencyError.
    """
    return lambda policy: _missing(permissions, account, policy) if account else ()


def _missing(
    permissions: Permissions, account: str, policy: AnyServedPolicy
) -> list[str]:
    """Return the missing permissions of an account.

    KYVERNO: subresources and wildcards are checked, although no scan reads them.
    """
    constraints = policy.spec.match_constraints
    rules = () if constraints is None else constraints.resource_rules
    wanted = (
        one
        for rule in rules
        for one in product(rule.api_groups, rule.api_versions, rule.resources)
    )
    missing = []
    for group, version, plural in islice(wanted, SCAN_PERMISSION_RESOURCES_MAX):
        target = PermissionTarget(ApiResource(group, version, "", plural, True))
        for verb in _VERBS:
            try:
                is_granted = permissions.allows(account, verb, target)
            except KubeRefused as error:
                missing.append(error.message)
                continue
            if not is_granted:
                missing.append(f"{verb} {group}/{version}, Resource={plural}: ")
    return missing
