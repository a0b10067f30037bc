"""Apply compiled policies to one object after another, without a cluster.

Room: cli. Takes: compiled policies, objects, values, a user. Gives: Responses in policy
order per object. Next: apply, run_tests, report.
May touch: nothing outside its arguments (the world's doors are passed in).
Source: spec/cli.md 7, 7b, 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kyverno_mp.cli.user_info import UserInfo
from kyverno_mp.cli.values_file import Values
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program.context import RequestContext
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_policy
from kyverno_mp.program.ports import World
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.dotted import merged, nested
from kyverno_mp.values.jsonvalue import Json

_KEPT_OPERATIONS = ("DELETE", "UPDATE")


@dataclass(slots=True)
class Response:
    """What one policy says of one object; no ``results`` where nothing matched.

    ``passed`` and ``skipped`` name rules that have no words.
    """

    policy: PolicyIR
    resource: dict[str, Json]
    results: list[RuleResult]
    action: str = "Audit"
    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class Evaluator:
    """Policies linked once, applied to many objects."""

    def __init__(
        self,
        policies: Sequence[CompiledPolicy],
        *,
        values: Values,
        user: UserInfo | None,
        world: World,
        clock: Clock,
    ) -> None:
        self._policies = [link_policy(policy) for policy in policies]
        self._values = values
        self._user = user
        self._engine = Engine(world, clock)

    def apply(self, resource: dict[str, Json]) -> list[Response]:
        """Return one response per policy, in the order of the policies."""
        name = (resource.get("metadata") or {}).get("name", "")
        shared: dict[str, RequestContext] = {}
        responses = []
        for policy in self._policies:
            dotted = self._values.for_resource(policy.ir.name, name)
            # Policies with the same values share one request and its JSON context.
            key = repr(sorted(dotted.items(), key=lambda item: item[0]))
            context = shared.get(key)
            if context is None:
                request = self._request(resource, dotted)
                context = shared[key] = self._engine.open(request)
            responses.append(self._judge(policy, context, resource))
        return responses

    def _judge(
        self, policy: LinkedPolicy, context: RequestContext, resource: dict[str, Json]
    ) -> Response:
        if self._values.rules:
            context.request.rule_variables = {
                rule.ir.name: tree
                for rule in policy.rules
                if (tree := self._values.for_rule(policy.ir.name, rule.ir.name))
            }
        answer = self._engine.explain(policy, context)
        return Response(policy.ir, resource, answer.results, answer.action)

    def _request(self, resource: dict[str, Json], dotted: dict[str, Json]) -> Request:
        operation = str(dotted.get("request.operation", "CREATE"))
        kept = operation if operation in _KEPT_OPERATIONS else "CREATE"
        metadata = resource.get("metadata") or {}
        namespace = metadata.get("namespace", "")
        group, version, kind, subresource = self._matched_kind(resource)
        asked: dict[str, Json] = {"operation": kept, "namespace": namespace}
        if kept != "DELETE":
            asked["object"] = resource
        if kept != "CREATE":
            asked["oldObject"] = resource
        if self._user is not None:
            asked["userInfo"] = self._user.raw
            asked["roles"] = list(self._user.roles)
            asked["clusterRoles"] = list(self._user.cluster_roles)
        root: Json = {"request": asked}
        for key, value in dotted.items():
            root = merged(root, nested(key, value))
        asked = root.pop("request")
        user = self._user or UserInfo()
        return Request(
            operation=kept,
            group=group,
            version=version,
            kind=kind,
            subresource=subresource,
            name=metadata.get("name") or metadata.get("generateName", ""),
            namespace=namespace,
            object=asked.get("object") or {} if kept != "DELETE" else {},
            old_object=asked.get("oldObject") or {} if kept != "CREATE" else {},
            username=user.username,
            groups=user.groups,
            roles=user.roles,
            cluster_roles=user.cluster_roles,
            has_user_info=self._user is not None,
            namespace_labels=self._values.namespace_labels.get(namespace, {}),
            review_request=asked,
            variables=root,
        )

    def _matched_kind(self, resource: dict[str, Json]) -> tuple[str, str, str, str]:
        """Return the kind to match on; a configured subresource maps to its parent."""
        api_version = str(resource.get("apiVersion", ""))
        group, _, version = api_version.rpartition("/")
        kind = str(resource.get("kind", ""))
        for entry in self._values.subresources:
            child, parent = entry.get("subresource") or {}, entry.get("parentResource")
            if parent and (
                child.get("kind") == kind
                and child.get("version", "") == version
                and child.get("group", "") == group
            ):
                return (
                    parent.get("group", ""),
                    parent.get("version", ""),
                    parent.get("kind", ""),
                    str(child.get("name", "")).partition("/")[2],
                )
        return group, version, kind, ""
