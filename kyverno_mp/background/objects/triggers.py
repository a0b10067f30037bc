"""Read triggers live, and build the request that their rules evaluate.

Room: background. Takes: a Task. Gives: Triggers; the trigger's state; a program
Request. Next: background/generate/generator.py, background/mutate/mutator.py.
May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 5.4 step 1; docs/pools.md 3 (triggers are read live).
"""

from dataclasses import replace
from typing import Final

import msgspec

from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.names import Names, Place
from kyverno_mp.background.outcome import (
    IS_ENDING,
    NO_TRIGGER,
    NOT_DELETED,
    NOT_STORED,
    Outcome,
)
from kyverno_mp.background.update_request import Task, Trigger
from kyverno_mp.errors import ExpressionFailed, KubeNotFound
from kyverno_mp.ir.rules import RuleIR
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope, list_all
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

_CREATE: Final = "CREATE"
_UPDATE: Final = "UPDATE"


class Triggers:
    """Reads live triggers by their identity; threads may share it."""

    def __init__(self, client: Client, kinds: Kinds) -> None:
        self._client = client
        self._objects = Objects(client)
        self._kinds = kinds
        self._names = Names()

    def find(self, trigger: Trigger) -> Json | None:
        """Return the live object, or None if it does not exist.

        An object with the same name but another uid is a different trigger.

        Raises: DependencyError.
        """
        resource = self._kinds.of_kind(trigger.api_version, trigger.kind)
        if resource is None:
            return None
        if trigger.name:
            return self._named(resource, trigger, trigger.name)
        return self._of_uid(resource, trigger) if trigger.uid else None

    def serves(self, trigger: Trigger) -> bool:
        """Return whether the kind is served; if not, the trigger may still exist.

        Raises: DependencyError.
        """
        return self._kinds.serves(trigger.api_version, trigger.kind)

    def uids(self, resource: Resource, namespace: str) -> frozenset[str]:
        """Return the uids of the objects that exist now, by a new list.

        Raises: KubeNotFound if the kind is not served; other DependencyErrors.
        """
        return frozenset(self._list(resource, namespace))

    def _named(self, resource: Resource, trigger: Trigger, name: str) -> Json | None:
        namespace = trigger.namespace if resource.namespaced else ""
        raw = self._objects.find(resource, (namespace, name))
        if raw is None:
            return None
        uid = str((raw.get("metadata") or {}).get("uid") or "")
        if trigger.uid and uid != trigger.uid:
            return None
        raw.setdefault("apiVersion", resource.api_version)
        raw.setdefault("kind", resource.kind)
        return raw

    def _of_uid(self, resource: Resource, trigger: Trigger) -> Json | None:
        """Return an object of which only the uid is known, None if there is none."""
        namespace, uid = trigger.namespace if resource.namespaced else "", trigger.uid
        location = Place(resource.group, resource.plural, namespace)
        if self._names.is_absent(location, uid):
            return None
        name = self._names.name(location, uid)
        raw = self._named(resource, trigger, name) if name else None
        if raw is not None:
            return raw
        try:
            names = self._list(resource, namespace)
        except KubeNotFound:
            return None
        self._names.keep(location, names, uid)
        name = names.get(uid, "")
        return self._named(resource, trigger, name) if name else None

    def _list(self, resource: Resource, namespace: str) -> dict[str, str]:
        names: dict[str, str] = {}

        def take(raw: msgspec.Raw) -> None:
            metadata = IDENTITY.decode(raw).metadata
            names[metadata.uid] = metadata.name

        scope = WatchScope(resource=resource, namespace=namespace, metadata_only=True)
        list_all(self._client, scope, take, restart=names.clear)
        return names


def is_ending(trigger: Json) -> bool:
    """Return whether an object is being deleted."""
    return bool((trigger.get("metadata") or {}).get("deletionTimestamp"))


def version_of(trigger: Json) -> str:
    """Return the resource version of an object."""
    return str((trigger.get("metadata") or {}).get("resourceVersion") or "")


def stored_trigger(task: Task) -> Json | None:
    """Return the object that the request itself carries, or None.

    It is carried for DELETE and CONNECT, because it can no longer be read; for
    subresources, which are not objects; and for objects that had no name at their
    review.
    """
    admission = task.admission
    is_going = task.operation in ("DELETE", "CONNECT")
    if not (is_going or admission.get("subResource") or task.trigger.is_nameless):
        return None
    new, old = admission.get("object"), admission.get("oldObject")
    return new or old or None


def assumed_operation(rule: RuleIR) -> str:
    """Return the operation for a task without one: one that the rule matches."""
    listed = [
        filter_ir.operations for filter_ir in rule.match.filters if filter_ir.operations
    ]
    if len(listed) < len(rule.match.filters) or not listed:
        return _CREATE
    is_update = not any(_CREATE in operations for operations in listed)
    return (
        _UPDATE
        if is_update and any(_UPDATE in operations for operations in listed)
        else _CREATE
    )


def request_of(
    task: Task, trigger: Json, data: ClusterData, assumed: str = _CREATE
) -> Request:
    """Return the request to evaluate: the trigger, the operation and the user.

    ``assumed``: the operation for a task without one.

    Raises: ExpressionFailed when the labels of its namespace are unknown.
    """
    metadata = trigger.get("metadata") or {}
    group, _, version = str(trigger.get("apiVersion") or "").rpartition("/")
    request = Request(
        operation=task.operation or assumed,
        group=group,
        version=version,
        kind=str(trigger.get("kind") or ""),
        name=str(metadata.get("name") or ""),
        namespace=str(metadata.get("namespace") or ""),
        uid=str(metadata.get("uid") or ""),
    )
    if task.operation == "DELETE":
        request.old_object = trigger
    else:
        request.object = trigger
        request.old_object = task.admission.get("oldObject") or {}
    request.namespace_labels = _labels(request, data)
    return _with_review(_with_user(request, task), task)


def _with_user(request: Request, task: Task) -> Request:
    info = task.user
    if info is None:
        return request
    return replace(
        request,
        username=info.user_info.username,
        groups=info.user_info.groups or (),
        roles=info.roles or (),
        cluster_roles=info.cluster_roles or (),
        has_user_info=True,
    )


def _with_review(request: Request, task: Task) -> Request:
    """Add the fields that only the stored AdmissionRequest contains."""
    admission = task.admission
    if not admission:
        return request
    kind = admission.get("kind") or {}
    if admission.get("subResource"):
        request.subresource = str(admission["subResource"])
        request.group = str(kind.get("group") or "")
        request.version = str(kind.get("version") or request.version)
        request.kind = str(kind.get("kind") or request.kind)
    request.review_request = {
        **admission,
        "object": request.object or None,
        "oldObject": request.old_object or None,
        "operation": request.operation,
        # K8S: a Namespace has no namespace, but its review has the namespace's name.
        "namespace": admission.get("namespace") or request.namespace,
        "roles": list(request.roles),
        "clusterRoles": list(request.cluster_roles),
    }
    return request


def _labels(request: Request, data: ClusterData) -> dict[str, str]:
    if request.kind == "Namespace":
        metadata = (request.object or request.old_object).get("metadata") or {}
        return dict(metadata.get("labels") or {})
    if not request.namespace or data.namespaces is None:
        return {}
    labels = data.namespaces.labels(request.namespace)
    if labels is None and data.namespace_objects is not None:
        # The cached copy may be older than the namespace.
        live = data.namespace_objects.namespace(request.namespace, 0)
        if live is not None:
            labels = (live.get("metadata") or {}).get("labels") or {}
    if labels is not None:
        return dict(labels)
    if request.operation == "DELETE":
        return {}
    raise ExpressionFailed(
        "background.namespace",
        f"the labels of namespace {request.namespace} are unknown",
    )


def review_resource(resource: Resource | None) -> dict[str, str]:
    """Return ``resource`` of an admission request; {} if the kind is not served."""
    if resource is None:
        return {}
    return {
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
    }


def undeleted(task: Task, triggers: Triggers) -> Outcome | None:
    """Return why a rule for deletions has to wait; None if the trigger is gone.

    Another webhook may reject the deletion, and finalizers may delay it.

    Raises: DependencyError.
    """
    if task.operation != "DELETE" or task.admission.get("subResource"):
        return None
    live = triggers.find(task.trigger)
    if live is None:
        return None
    return IS_ENDING if is_ending(live) else NOT_DELETED


def awaited_trigger(task: Task, triggers: Triggers) -> tuple[Json, Outcome | None]:
    """Return the trigger of a mutation, and why the task has to wait, if so.

    Raises: DependencyError.
    """
    waits = undeleted(task, triggers)
    if waits is not None:
        return None, waits
    trigger = stored_trigger(task)
    if trigger is not None:
        return trigger, None
    trigger = triggers.find(task.trigger)
    if trigger is None:
        return None, NO_TRIGGER
    is_old = task.seen_version and version_of(trigger) == task.seen_version
    return trigger, NOT_STORED if is_old else None


def identity_of(raw: Json) -> Trigger:
    """Return the identity of an object as a trigger."""
    metadata = raw.get("metadata") or {}
    return Trigger(
        api_version=str(raw.get("apiVersion") or ""),
        kind=str(raw.get("kind") or ""),
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
    )
