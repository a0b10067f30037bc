"""List the objects of the cluster that a GeneratingPolicy matches, as triggers.

Room: background. Takes: a ReadyGenerating. Gives: ExistingTriggers. Next:
background/generating/events.py. May touch: the API server through kube, the log.
Source: docs/behaviour/cel 12d; Kyverno pkg/policy/gpol.go (getGpolTriggers).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import listed_triggers, written_ns
from kyverno_mp.background.generating.policies import ReadyGenerating
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import identity_of, request_of
from kyverno_mp.background.update_request import CEL_GENERATE, Task, Trigger
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class ExistingTriggers:
    """Lists triggers; threads may share it."""

    dependencies: BackgroundDependencies
    kinds: Kinds

    def triggers(
        self,
        policy: ReadyGenerating,
        on_refused: Callable[[DependencyError], None],
        since_ns: int = 0,
    ) -> dict[str, Trigger]:
        """List the objects written since a time that the constraints match, by key.

        ``on_refused`` is called with the error of each rejected list. Raises:
        DependencyError.
        """
        found: dict[str, Trigger] = {}
        namespace = policy.ir.policy.namespace
        for resource in self._resources(policy):
            if namespace and not resource.namespaced:
                continue
            scope = WatchScope(resource=resource, namespace=namespace)
            try:
                found |= listed_triggers(
                    self.dependencies.client,
                    scope,
                    partial(self._matches, policy, resource, since_ns),
                )
            except (KubeRefused, KubeNotFound) as error:
                _log.warning(error.message, extra=fields(policy=policy.name))
                on_refused(error)
        return found

    def _matches(
        self, policy: ReadyGenerating, resource: Resource, since_ns: int, raw: Json
    ) -> bool:
        constraints = policy.ir.constraints
        assert constraints is not None
        if written_ns(raw) < since_ns:
            return False
        task = Task(CEL_GENERATE, "", "", identity_of(raw))
        try:
            request = request_of(
                task, raw, self.dependencies.cluster_data, policy.assumed_operation
            )
        except ExpressionFailed as error:
            _log.warning(error.message, extra=fields(policy=policy.name))
            return False
        request.review_request = {
            "resource": {
                "group": resource.group,
                "version": resource.version,
                "resource": resource.plural,
            }
        }
        return fault_or_match(constraints, request)[0]

    def _resources(self, policy: ReadyGenerating) -> Iterator[Resource]:
        """Yield the resources that the rules name.

        KYVERNO: wildcards and subresources match nothing. Raises: DependencyError.
        """
        constraints = policy.ir.constraints
        named = dict.fromkeys(
            (group, version, plural)
            for rule in (() if constraints is None else constraints.rules)
            for group in rule.groups
            for version in rule.versions
            for plural in rule.resources
        )
        for group, version, plural in named:
            if _ANY in (group, version) or _ANY in plural or "/" in plural:
                continue
            resource = self.kinds.of_plural(group, version, plural)
            if resource is not None and "list" in resource.verbs:
                yield resource
