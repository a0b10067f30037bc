"""Find the permissions that a policy needs and the clean-up account lacks.

Room: cleanup. Takes: a policy's Plan, the served resources. Gives:
``missing_permissions``. Next: cleanup/controller.py writes them into the status. May
touch: the API server through kube/own_access.py.
Source: docs/cleanup.md (permissions); docs/behaviour/controllers 3 (status of CEL
kinds: RBACPermissionsGranted).

A grant for some of the objects is enough: a run deletes the objects that it is allowed
to.
"""

from collections.abc import Iterable

from kyverno_mp.cleanup.plan import Plan
from kyverno_mp.cleanup.scan import (
    Scan,
    ScanInputs,
    no_permission,
    resources_of,
    scopes_of,
)
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.watch import WatchScope

_BY_NAME = "metadata.name="


def missing_permissions(plan: Plan, inputs: ScanInputs) -> list[str]:
    """Return the missing permissions, once for each kind. Raises: DependencyError."""
    access = inputs.access
    assert access is not None
    missing: dict[str, None] = {}
    for resource, kind in resources_of(plan, inputs.directory, Scan()):
        denied = Scan()
        scopes = scopes_of(plan, resource, kind, inputs, denied)
        for failure in denied.failures:
            missing[failure.text] = None
        if scopes and not _may_delete(access, resource, scopes, inputs):
            missing[no_permission("delete", kind)] = None
    return list(missing)


def _may_delete(
    access: OwnAccess,
    resource: Resource,
    scopes: Iterable[WatchScope],
    inputs: ScanInputs,
) -> bool:
    """Return whether any of the objects that can be listed may be deleted."""
    is_wide = False
    for scope in scopes:
        name = scope.field_selector.removeprefix(_BY_NAME)
        if access.allows_object("delete", resource, scope.namespace, name):
            return True
        is_wide = is_wide or not scope.namespace
    return (
        is_wide
        and resource.namespaced
        and any(
            access.allows("delete", resource, namespace)
            for namespace in inputs.bound_namespaces()
        )
    )
