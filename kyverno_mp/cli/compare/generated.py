"""Compute the objects that policies would generate for a created object.

Room: cli. Takes: the generating policies of a side, its objects and ClusterFacts.
Gives: Generation. Next: sides.
Source: docs/preview.md (generated objects); docs/behaviour/controllers 5.4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kyverno_mp.cli.apply.stages.cel import CelStages
from kyverno_mp.cli.apply.stages.cel_policies import CelInput
from kyverno_mp.cli.compare.manifests import Manifest
from kyverno_mp.cli.replay.facts import ClusterFacts, known_ports
from kyverno_mp.cli.replay.policies import Served
from kyverno_mp.cli.replay.unrecorded import Unrecorded, unrecorded
from kyverno_mp.cli.sources.plurals import Plurals
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.cli.sources.values_file import Values
from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import PolicyIR
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
from kyverno_mp.program.result import ERROR, PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_ANY: Final = "*"


class GeneratedObject(NamedTuple):
    """One object that a policy generates."""

    policy: str
    raw: dict[str, Json]
    sources: tuple[str, ...] = ()
    """Clone sources that no file has; their content is not in ``raw``."""


@dataclass(slots=True)
class Generation:
    """What the creation of one object generates."""

    objects: list[GeneratedObject] = field(default_factory=list)
    undecided: list[tuple[str, str]] = field(default_factory=list)
    """(key of the policy, data that it needs, or why it generates nothing)."""


class _Sources:
    """The objects of a side, for clones.

    A named source that no file has is assumed to exist, without content. Lists of
    sources are unknown, because the cluster may have more of them.
    """

    def __init__(self, objects: Iterable[dict[str, Json]], unknown: Unrecorded) -> None:
        self._objects = list(objects)
        self._unknown = unknown
        self.trigger: dict[str, Json] = {}
        self.assumed: list[str] = []

    def objects(self, query: ObjectQuery, deadline_ns: int) -> Sequence[Json]:
        """Return the source of a clone. Raises: ExpressionFailed for a list."""
        if not query.name:
            return self._unknown.objects(query, deadline_ns)
        known = (self.trigger, *self._objects)
        selected = [raw for raw in known if raw and _is_selected(query, raw)]
        if selected:
            return selected
        names = {"namespace": query.namespace, "name": query.name}
        metadata = {name: value for name, value in names.items() if value}
        self.assumed.append(f"{query.kind} {'/'.join(metadata.values())}")
        group = f"{query.group}/" if query.group else ""
        api_version = f"{group}{query.version}"
        return [{"apiVersion": api_version, "kind": query.kind, "metadata": metadata}]


def _is_selected(query: ObjectQuery, raw: dict[str, Json]) -> bool:
    group, _, version = str(raw["apiVersion"]).rpartition("/")
    return (
        matches(query.group, group)
        and matches(query.version, version)
        and matches(query.kind, str(raw["kind"]))
        and matches(query.namespace or _ANY, metadata_text(raw, "namespace"))
        and matches(query.name or _ANY, metadata_text(raw, "name"))
    )


class Generator:
    """The generating policies of a side, linked once."""

    def __init__(
        self,
        served: Served,
        facts: ClusterFacts,
        manifests: Iterable[Manifest],
        user: UserInfo,
        clock: Clock,
        plurals: Plurals,
    ) -> None:
        linked = [(each.policy, link_generations(each)) for each in served.policies]
        self._policies = [(policy, rules) for policy, rules in linked if rules]
        self._needs: list[str] = []
        known = known_ports(self._needs.append, facts)
        self._sources = _Sources((each.raw for each in manifests), known.ports)
        self._labels: dict[str, str] | None = None
        self._cluster_data = unrecorded(
            self._needs.append, self, self._needs.append, known
        )
        self._clock = clock
        namespaces = {
            name.removesuffix("/"): raw for name, raw in facts.namespaces.items()
        }
        labels = {name: dict(facts.namespace_labels(name) or {}) for name in namespaces}
        self._stages = CelStages(
            CelInput(others=served.cel.generating, plurals=plurals, is_cluster=True),
            Values(namespace_labels=labels, namespace_objects=namespaces),
            user,
            self._cluster_data.cel,
        )

    def labels(self, _namespace: str) -> dict[str, str] | None:
        """Implement program.ports.Namespaces: the labels of the current request."""
        return self._labels

    def generate(self, request: Request) -> Generation:
        """Return what the policies generate. Raises: InputError."""
        generation = Generation()
        self._sources.trigger = request.object
        self._labels = request.namespace_labels
        for policy, rules in self._policies:
            self._needs.clear()
            self._sources.assumed.clear()
            response, error = self._by_rules(policy, rules, request)
            assumed = tuple(dict.fromkeys(self._sources.assumed))
            generation.objects += [
                GeneratedObject(policy.key, raw, assumed)
                for rule_result in response.results
                for raw in rule_result.generated
            ]
            self._add(generation, policy, error)
        runtime = Engine(self._cluster_data, self._clock).open(request).runtime
        self._needs.clear()
        for verdict in self._stages.generate(request, runtime):
            rule_result = verdict.result
            if rule_result is not None:
                is_error = rule_result.status == ERROR
                error = rule_result.message if is_error else ""
                generation.objects += [
                    GeneratedObject(verdict.policy.key, raw)
                    for raw in rule_result.generated
                ]
                self._add(generation, verdict.policy, error)
            self._needs.clear()
        return generation

    def _by_rules(
        self, policy: PolicyIR, rules: Sequence[LinkedGeneration], request: Request
    ) -> tuple[PolicyResponse, str]:
        context = Engine(self._cluster_data, self._clock).open(request)
        response = evaluate_generations(policy, rules, context)
        generated: set[object] = set()

        def keep(each: Generated) -> bool:
            is_new = each.target not in generated
            generated.add(each.target)
            return is_new

        context = Engine(self._with_sources(), self._clock).open(request)
        try:
            error = generate(rules, response, context, keep)
        except InputError as failure:
            error = failure.message
        failed = [each.message for each in response.results if each.status == ERROR]
        return response, "; ".join([*failed, error] if error else failed)

    def _with_sources(self) -> ClusterData:
        return replace(self._cluster_data, objects=self._sources)

    def _add(self, generation: Generation, policy: PolicyIR, error: str) -> None:
        """Note the data that a policy lacked, or else why it failed."""
        needs = sorted(set(self._needs)) or ([error] if error else [])
        generation.undecided += [(policy.key, need) for need in needs]
