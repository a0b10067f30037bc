"""Find the existing objects that a MutatingPolicy changes.

Room: background. Takes: MutatingPolicyIR; objects selected by an expression. Gives:
Targets. Next: background/mutate/mutating.py. May touch: the API server through kube,
the log.
Source: docs/behaviour/controllers 5.7 (cel-mutate); Kyverno
pkg/background/mpol/processor.go: collectGVK.

A namespaced policy can only have targets in its own namespace.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import is_ending, review_resource
from kyverno_mp.background.update_request import Trigger
from kyverno_mp.errors import ExpressionFailed, KubeNotFound
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.kube.apply import key_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.cel_policies.delete import any_operation
from kyverno_mp.program.request import Request
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_NAMESPACE_KIND: Final = "Namespace"


class Target(NamedTuple):
    """An object to change.

    ``subresource``: the one to write, if any. ``body``: the copy of the policy that
    matches it.
    """

    resource: Resource
    key: Key
    subresource: str = ""
    body: int = 0

    @property
    def shown(self) -> str:
        """The target's name for messages."""
        return "/".join(filter(None, (self.resource.kind, *self.key)))


@dataclass(frozen=True, slots=True)
class Targets:
    """Finds targets; threads may share it."""

    dependencies: BackgroundDependencies
    kinds: Kinds

    def of_constraints(self, ir: MutatingPolicyIR) -> list[Target]:
        """List the objects of ``targetMatchConstraints``, else of ``matchConstraints``.

        Raises: DependencyError.
        """
        constraints = [body.constraints for body in ir.bodies]
        if ir.targets is not None and ir.targets.constraints.rules:
            constraints = [ir.targets.constraints]
        targets: dict[tuple[str, str, str, Key], Target] = {}
        for body, matched in enumerate(map(any_operation, constraints)):
            if matched is None:
                continue
            for resource, subresource in self._resources(matched):
                for key in self._listed(ir, matched, resource, subresource):
                    identity = (resource.group, resource.plural, subresource, key)
                    targets.setdefault(
                        identity, Target(resource, key, subresource, body)
                    )
        return list(targets.values())

    def triggers(
        self, ir: MutatingPolicyIR, selects: Callable[[Json], bool]
    ) -> list[Trigger]:
        """List the objects that the policy's constraints match, for any operation.

        Raises: DependencyError.
        """
        triggers: dict[str, Trigger] = {}
        for matched in (any_operation(body.constraints) for body in ir.bodies):
            for resource, subresource in (
                () if matched is None else self._resources(matched)
            ):
                if subresource:
                    # The content of a subresource request is not an object.
                    continue
                assert matched is not None
                for namespace, name in self._listed(ir, matched, resource, "", selects):
                    trigger = Trigger(
                        resource.api_version, resource.kind, namespace, name
                    )
                    triggers[trigger.key] = trigger
        return list(triggers.values())

    def of_objects(
        self, ir: MutatingPolicyIR, raws: Iterable[Json]
    ) -> Iterator[Target]:
        """Yield the objects that an expression selected. Raises: ExpressionFailed."""
        for raw in raws:
            kind = str(raw.get("kind") or "")
            resource = self.kinds.of_kind(str(raw.get("apiVersion") or ""), kind)
            key = key_of(raw)
            if resource is None or not key[1]:
                raise ExpressionFailed(
                    "background.kind", f"target of kind {kind!r} is not an object"
                )
            namespace = ir.policy.namespace
            if namespace and not (resource.namespaced and key[0] == namespace):
                raise ExpressionFailed(
                    "background.scope",
                    f"a target is not in namespace {namespace} of the policy",
                )
            yield Target(resource, key if resource.namespaced else ("", key[1]))

    def request_of(self, target: Target, raw: Json, trigger: Request) -> Request:
        """Return the request to evaluate: the target in the trigger's request."""
        resource = target.resource
        namespace, name = target.key
        return replace(
            trigger,
            operation="",
            group=resource.group,
            version=resource.version,
            kind=resource.kind,
            subresource=target.subresource,
            name=name,
            namespace=namespace,
            object=raw,
            old_object={},
            namespace_labels=self._labels(resource, namespace, raw),
        )

    def _resources(self, constraints: ConstraintsIR) -> Iterator[tuple[Resource, str]]:
        """Yield the target resources, with the subresources to write.

        KYVERNO: a ``*`` matches nothing here. Raises: DependencyError.
        """
        for rule in constraints.rules:
            for entry in rule.resources:
                plural, _, subresource = entry.partition("/")
                for group in rule.groups:
                    for version in rule.versions:
                        resource = self.kinds.of_plural(group, version, plural)
                        if resource is not None and "list" in resource.verbs:
                            yield resource, subresource

    def _listed(
        self,
        ir: MutatingPolicyIR,
        constraints: ConstraintsIR,
        resource: Resource,
        subresource: str,
        selects: Callable[[Json], bool] = lambda _raw: True,
    ) -> list[Key]:
        """List the objects of a resource that match. Raises: DependencyError."""
        namespace = ir.policy.namespace
        if namespace and not resource.namespaced:
            return []
        keys: list[Key] = []

        def take(item: msgspec.Raw) -> None:
            # K8S: the items of a list contain neither kind nor apiVersion.
            raw = msgspec.json.decode(item)
            if is_ending(raw) or not selects(raw):
                return
            if self._matches(constraints, resource, subresource, raw):
                keys.append(key_of(raw))

        scope = WatchScope(resource=resource, namespace=namespace)
        try:
            list_all(self.dependencies.client, scope, take, restart=keys.clear)
        except KubeNotFound as error:
            _log.warning(error.message, extra=fields(policy=ir.policy.key))
        return keys

    def _matches(
        self,
        constraints: ConstraintsIR,
        resource: Resource,
        subresource: str,
        raw: Json,
    ) -> bool:
        namespace, name = key_of(raw)
        request = Request(
            operation="",
            group=resource.group,
            version=resource.version,
            kind=resource.kind,
            subresource=subresource,
            name=name,
            namespace=namespace,
            object=raw,
            namespace_labels=self._labels(resource, namespace, raw),
            review_request={"resource": review_resource(resource)},
        )
        return matches(constraints, request)

    def _labels(self, resource: Resource, namespace: str, raw: Json) -> dict[str, str]:
        """Return the labels of the object's namespace, {} if they are unknown."""
        if resource.kind == _NAMESPACE_KIND and not resource.group:
            return dict((raw.get("metadata") or {}).get("labels") or {})
        namespaces = self.dependencies.cluster_data.namespaces
        if not namespace or namespaces is None:
            return {}
        return dict(namespaces.labels(namespace) or {})
