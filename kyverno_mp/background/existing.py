"""List the objects of the cluster that a rule or policy matches, as triggers.

Room: background. Takes: a rule, or a GeneratingPolicy. Gives: Existing. Next:
background/generate/policy_events.py, background/generate/lost.py,
background/generating/events.py. May touch: the API server through kube, the log.
Source: docs/behaviour/controllers 5.7; docs/behaviour/cel 12d; Kyverno
pkg/policy/gpol.go (getGpolTriggers).
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import (
    assumed_operation,
    identity_of,
    is_ending,
    request_of,
    review_resource,
)
from kyverno_mp.background.outage import is_rejection
from kyverno_mp.background.policies import GenerateRule, MutateRule
from kyverno_mp.background.update_request import CEL_GENERATE, GENERATE, Task, Trigger
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
)
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.constraints import fault_or_match
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector

_log = logging.getLogger(__name__)
OnRefused = Callable[[DependencyError], None]
_ANY: Final[Callable[[Json], bool]] = lambda _raw: True  # noqa: E731


class Existing:
    """Lists triggers; threads may share it."""

    def __init__(self, dependencies: BackgroundDependencies, kinds: Kinds) -> None:
        self._dependencies = dependencies
        self._kinds = kinds

    def triggers(
        self,
        policy: PolicyIR,
        rule: GenerateRule | MutateRule,
        selects: Callable[[Json], bool] = _ANY,
        on_refused: OnRefused = lambda _error: None,
    ) -> dict[str, Trigger]:
        """List the objects that a rule matches, by key.

        ``on_refused`` is called with the error of each rejected list. Raises:
        DependencyError.
        """

        def matches(_resource: Resource, raw: Json) -> bool:
            return selects(raw) and self._matches(rule, raw)

        resources = self._resources_of_rule(rule.linked.ir)
        return self._listed(policy, resources, matches, on_refused)

    def triggers_of_policy(
        self,
        policy: GeneratingPolicyIR,
        operation: str,
        on_refused: OnRefused,
        since_ns: int = 0,
    ) -> dict[str, Trigger]:
        """List the objects that a GeneratingPolicy matches, by key.

        ``operation``: what the objects are assumed to have undergone. ``since_ns``:
        only objects written since then. Raises: DependencyError.
        """

        def matches(resource: Resource, raw: Json) -> bool:
            if written_ns(raw) < since_ns:
                return False
            request = self._request(CEL_GENERATE, raw, operation)
            if request is None or policy.constraints is None:
                return False
            request.review_request = {"resource": review_resource(resource)}
            return fault_or_match(policy.constraints, request)[0]

        resources = self._resources_of_constraints(policy.constraints)
        return self._listed(policy.policy, resources, matches, on_refused)

    def _listed(
        self,
        policy: PolicyIR,
        resources: Iterable[Resource],
        matches: Callable[[Resource, Json], bool],
        on_refused: OnRefused,
    ) -> dict[str, Trigger]:
        triggers: dict[str, Trigger] = {}
        for resource in resources:
            if policy.namespace and not resource.namespaced:
                continue
            scope = WatchScope(resource=resource, namespace=policy.namespace)
            try:
                triggers |= _triggers_in(
                    self._dependencies.client, scope, partial(matches, resource)
                )
            except DependencyError as error:
                if not is_rejection(error):
                    raise
                _log.warning(error.message, extra=fields(policy=policy.key))
                on_refused(error)
        return triggers

    def _matches(self, rule: GenerateRule | MutateRule, raw: Json) -> bool:
        operation = assumed_operation(rule.linked.ir)
        request = self._request(GENERATE, raw, operation)
        return request is not None and rule.linked.matches(request)

    def _request(self, task_type: str, raw: Json, operation: str) -> Request | None:
        """Return the request for an object; None if its namespace is unknown."""
        task = Task(task_type, "", "", identity_of(raw))
        try:
            return request_of(task, raw, self._dependencies.cluster_data, operation)
        except ExpressionFailed as error:
            _log.warning(error.message)
            return None

    def _resources_of_constraints(
        self, constraints: ConstraintsIR | None
    ) -> Iterator[Resource]:
        """Yield the resources that the rules name.

        KYVERNO: wildcards and subresources match nothing. Raises: DependencyError.
        """
        named = dict.fromkeys(
            (group, version, plural)
            for rule in (() if constraints is None else constraints.rules)
            for group in rule.groups
            for version in rule.versions
            for plural in rule.resources
        )
        for group, version, plural in named:
            if "*" in (group, version) or "*" in plural or "/" in plural:
                continue
            resource = self._kinds.of_plural(group, version, plural)
            if resource is not None and "list" in resource.verbs:
                yield resource

    def _resources_of_rule(self, rule: RuleIR) -> list[Resource]:
        chosen: dict[tuple[str, str], Resource] = {}
        for filter_ir in rule.match.filters:
            for kind in filter_ir.kinds:
                if kind.kind == "*" or kind.subresource:
                    # KYVERNO: objects of such kinds cannot be listed.
                    continue
                selector = KindSelector(kind.group, kind.version, kind.kind, "")
                for resource in self._kinds.find(selector):
                    if "list" in resource.verbs:
                        chosen.setdefault((resource.group, resource.plural), resource)
        return list(chosen.values())


def _triggers_in(
    client: Client, scope: WatchScope, selects: Callable[[Json], bool]
) -> dict[str, Trigger]:
    """List existing objects that pass the filter, by key. Raises: DependencyError."""
    resource, triggers = scope.resource, dict[str, Trigger]()

    def take(item: msgspec.Raw) -> None:
        # K8S: the items of a list contain neither kind nor apiVersion.
        raw: Json = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **msgspec.json.decode(item),
        }
        if not is_ending(raw) and selects(raw):
            trigger = identity_of(raw)
            triggers[trigger.key] = trigger

    list_all(client, scope, take, restart=triggers.clear)
    return triggers


def written_ns(raw: Json) -> int:
    """Return the time of the last write that an object's metadata shows.

    An object without times counts as newer than anything.
    """
    metadata = raw.get("metadata") or {}
    times = [metadata.get("creationTimestamp")]
    times += [
        managed_field.get("time")
        for managed_field in metadata.get("managedFields") or ()
    ]
    return max((_ns(time) for time in times if time), default=_ns(""))


def _ns(time: str) -> int:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        moment = datetime.max.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 if moment.tzinfo else 0
