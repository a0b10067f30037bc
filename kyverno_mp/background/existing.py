"""List the objects of the cluster that a rule matches, as triggers.

Room: background. Takes: a rule of a policy. Gives: Existing. Next:
background/generate/policy_events.py, background/generate/lost.py. May touch: the API
server through kube, the log.
Source: docs/behaviour/controllers 5.7.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import (
    assumed_operation,
    identity_of,
    is_ending,
    request_of,
)
from kyverno_mp.background.outage import is_rejection
from kyverno_mp.background.policies import GenerateRule, MutateRule
from kyverno_mp.background.update_request import GENERATE, Task, Trigger
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
)
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector

_log = logging.getLogger(__name__)
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
        wanted: Callable[[Json], bool] = _ANY,
        on_refused: Callable[[DependencyError], None] = lambda _error: None,
    ) -> dict[str, Trigger]:
        """List the objects that a rule matches, by key.

        ``on_refused`` is called with the error of each rejected list. Raises:
        DependencyError.
        """
        found: dict[str, Trigger] = {}
        for resource in self._matched(rule.linked.ir):
            namespace = policy.namespace
            if namespace and not resource.namespaced:
                continue
            scope = WatchScope(resource=resource, namespace=namespace)
            try:
                found |= listed_triggers(
                    self._dependencies.client,
                    scope,
                    lambda raw: wanted(raw) and self._matches(rule, raw),
                )
            except DependencyError as error:
                if not is_rejection(error):
                    raise
                _log.warning(error.message, extra=fields(policy=policy.key))
                on_refused(error)
        return found

    def _matches(self, rule: GenerateRule | MutateRule, raw: Json) -> bool:
        task = Task(GENERATE, "", "", identity_of(raw))
        try:
            request = request_of(
                task,
                raw,
                self._dependencies.cluster_data,
                assumed_operation(rule.linked.ir),
            )
            return rule.linked.matches(request)
        except ExpressionFailed as error:
            _log.warning(error.message)
            return False

    def _matched(self, rule: RuleIR) -> list[Resource]:
        chosen: dict[tuple[str, str], Resource] = {}
        for one in rule.match.filters:
            for kind in one.kinds:
                if kind.kind == "*" or kind.subresource:
                    # KYVERNO: objects of such kinds cannot be listed.
                    continue
                selector = KindSelector(kind.group, kind.version, kind.kind, "")
                for resource in self._kinds.find(selector):
                    if "list" in resource.verbs:
                        chosen.setdefault((resource.group, resource.plural), resource)
        return list(chosen.values())


def listed_triggers(
    client: Client, scope: WatchScope, wanted: Callable[[Json], bool]
) -> dict[str, Trigger]:
    """List existing objects that pass the filter, by key. Raises: DependencyError."""
    resource, found = scope.resource, dict[str, Trigger]()

    def take(raw: msgspec.Raw) -> None:
        # K8S: the items of a list contain neither kind nor apiVersion.
        one: Json = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **msgspec.json.decode(raw),
        }
        if not is_ending(one) and wanted(one):
            trigger = identity_of(one)
            found[trigger.key] = trigger

    list_all(client, scope, take, restart=found.clear)
    return found


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
    return max((_ns(one) for one in times if one), default=_ns(""))


def _ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.max.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 if moment.tzinfo else 0
