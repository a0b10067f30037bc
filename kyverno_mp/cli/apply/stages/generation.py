"""Run generate rules in a simulated cluster of the trigger and the clone sources.

Room: cli. Takes: compiled policies, the request of one object, clone sources. Gives:
PolicyResponses whose results contain the generated objects. Next: evaluate.
May touch: standard error, for objects that cannot be generated. Source:
docs/behaviour/cli 8, 11, 15.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kyverno_mp.cli.output.screen import say
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.generate.generation import (
    evaluate_generations,
    generate,
    link_generations,
)
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.generate.rule import LinkedGeneration
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.ports import ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

CloneSources = Mapping[str, Sequence[Json]]
"""Name of a rule -> the objects that it can clone."""


class _Store:
    """The objects of one evaluation of a policy on one trigger."""

    def __init__(self, objects: Sequence[Json]) -> None:
        self._objects: dict[tuple[str, str, str, str], Json] = {}
        for raw in objects:
            key = (
                str(raw.get("apiVersion", "")),
                str(raw.get("kind", "")),
                metadata_text(raw, "namespace"),
                metadata_text(raw, "name"),
            )
            self._objects[key] = raw

    def objects(self, object_query: ObjectQuery, _deadline_ns: int) -> list[Json]:
        """Return the requested objects, sorted by namespace and name."""
        keyed = []
        for (api_version, kind, namespace, name), raw in self._objects.items():
            group, _, version = api_version.rpartition("/")
            if (
                matches(object_query.group, group)
                and matches(object_query.version, version)
                and matches(object_query.kind, kind)
                and matches(object_query.namespace or "*", namespace)
                and matches(object_query.name or "*", name)
            ):
                keyed.append(((namespace, name), raw))
        return [raw for _, raw in sorted(keyed, key=lambda each: each[0])]

    def keep(self, generated: Generated) -> bool:
        """Store an object; return whether it is new."""
        key = tuple(generated.target)
        if key in self._objects:
            return False
        self._objects[generated.target] = generated.resource
        return True


class Generations:
    """Policies with generate rules, linked once."""

    def __init__(
        self,
        policies: Sequence[CompiledPolicy],
        cluster_data: ClusterData,
        clock: Clock,
        sources: CloneSources,
    ) -> None:
        """Link the rules; ``sources``: see CloneSources."""
        linked = [(policy.policy, link_generations(policy)) for policy in policies]
        self.policies: list[tuple[PolicyIR, list[LinkedGeneration]]] = [
            (policy, rules) for policy, rules in linked if rules
        ]
        self._cluster_data = cluster_data
        self._clock = clock
        self._sources = sources

    def apply(
        self, policy: PolicyIR, rules: Sequence[LinkedGeneration], request: Request
    ) -> PolicyResponse | None:
        """Evaluate the rules and generate objects; return None if no rule has a result.

        KYVERNO: an object that cannot be generated leaves the results unchanged
        (docs/behaviour/cli 8).
        """
        response = evaluate_generations(
            policy, rules, self._open(request, self._cluster_data)
        )
        if not response.results:
            return None
        objects = [request.object] if request.object else []
        for rule_result in response.results:
            objects.extend(self._sources.get(rule_result.rule, ()))
        store = _Store(objects)
        cluster_data = replace(self._cluster_data, objects=store)
        error = generate(rules, response, self._open(request, cluster_data), store.keep)
        if error:
            say(f"policy {policy.key}: not generated: {error}", err=True)
        return response

    def _open(self, request: Request, cluster_data: ClusterData) -> RequestContext:
        return Engine(cluster_data, self._clock).open(request)
