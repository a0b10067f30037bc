"""Run one mutate-existing rule for one trigger, and write the targets that changed.

Room: background. Takes: a Task, a ReadyPolicy. Gives: Mutator. Next:
background/requests.py. May touch: the API server through the parts of this room.
Source: docs/behaviour/controllers 5.7; docs/behaviour/engine 7.6.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kyverno_mp.background.caches import Caches, PolicyChanged
from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import (
    Triggers,
    assumed_operation,
    awaited_trigger,
    request_of,
)
from kyverno_mp.background.outcome import (
    APPLIED,
    DONE,
    Outcome,
)
from kyverno_mp.background.policies import MutateRule, ReadyPolicy
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import ExpressionFailed, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program import ports, result
from kyverno_mp.program.mutation import begin, mutate_policy
from kyverno_mp.program.ports import ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.patches.json_equal import same

_ATTEMPTS: Final = 5


class _Loaded(NamedTuple):
    """A target as read, and the query that returned it."""

    raw: Json
    asked: ObjectQuery


_Place = tuple[str, str, str, str]
_Written = set[tuple[_Place, int]]
"""Targets that a task has written. One that is selected twice is numbered."""


@dataclass(slots=True)
class _Targets:
    """The port for objects, which notes the objects that the rule reads."""

    objects_port: ports.Objects
    loaded: dict[_Place, _Loaded] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    """The rejections of targets, which do not stop the others."""

    def objects(self, object_query: ObjectQuery, deadline_ns: int) -> Sequence[Json]:
        """Return the objects. Raises: the port's errors, except rejections."""
        raws: Sequence[Json] = ()
        with self.refusals.kept():
            raws = self.objects_port.objects(object_query, deadline_ns)
        for raw in raws:
            self.loaded.setdefault(_place(raw), _Loaded(raw, object_query))
        return raws


@dataclass(frozen=True, slots=True)
class Mutator:
    """Runs mutate-existing rules; threads may share it."""

    dependencies: BackgroundDependencies
    kinds: Kinds
    triggers: Triggers
    caches: Caches
    guard: Callable[[], None]

    def run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        """Run one task.

        Raises: ExpressionFailed with the failures of the targets; DependencyError,
        LeaseLost.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._run(task, policy)
            except PolicyChanged as changed:
                policy = changed.policy
        return self._run(task, policy)

    def _run(self, task: Task, policy: ReadyPolicy | None) -> Outcome:
        rule = policy.mutates.get(task.rule) if policy is not None else None
        if policy is None or rule is None:
            return DONE
        trigger, waits = awaited_trigger(task, self.triggers)
        if waits is not None:
            return waits
        written: _Written = set()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._mutate(task, policy, rule, trigger, written)
            except PolicyChanged:
                raise
            except KubeConflict:
                # Another writer was faster, so the patch is computed again from its
                # result. Targets that were written are not changed twice.
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _mutate(
        self,
        task: Task,
        policy: ReadyPolicy,
        rule: MutateRule,
        trigger: Json,
        written: _Written,
    ) -> Outcome:
        """Change the targets, except those ``written`` by an earlier attempt.

        Raises: after the last target, the first KubeConflict, the first rejection, or
        ExpressionFailed; PolicyChanged and other DependencyErrors at once.
        """
        data = self.dependencies.cluster_data
        request = request_of(task, trigger, data, assumed_operation(rule.linked.ir))
        assert data.objects is not None
        targets = _Targets(data.objects)
        reading = replace(data, objects=targets)
        rule_results = self._evaluate(policy, rule, request, reading)
        if all(rule_result.status == result.SKIP for rule_result in rule_results):
            keys = [
                key for rule_result in rule_results for key in rule_result.exceptions
            ]
            self.caches.check_policy(task, policy, keys)
            used = request.namespace_labels
            labels = self.caches.newer_labels(task, trigger, rule.linked.ir, used)
            if labels is not None:
                request.namespace_labels = labels
                rule_results = self._evaluate(policy, rule, request, reading)
        results = self.dependencies.results
        if results is not None:
            results.mutated(policy.ir, rule_results, request, rule.target_kinds)
        self._write_all(policy, rule, rule_results, targets, written)
        return APPLIED if rule_results else DONE

    def _write_all(
        self,
        policy: ReadyPolicy,
        rule: MutateRule,
        results: Sequence[RuleResult],
        targets: _Targets,
        written: _Written,
    ) -> None:
        """Write the targets that the rule changes; continue after a failed one.

        Raises: as ``_mutate``.
        """
        recorder = PolicyRecorder(
            policy.stored, self.dependencies.events, self.dependencies.metrics
        )
        problems: list[str] = []
        conflicts: list[KubeConflict] = []
        numbers: Counter[_Place] = Counter()
        for rule_result in results:
            if rule_result.status in (result.FAIL, result.ERROR, result.WARNING):
                problems.append(
                    f"failed to mutate existing resource, rule {rule.name},"
                    f" response {rule_result.status}: {rule_result.message}"
                )
                continue
            target = rule_result.patched_target
            if target is None:
                continue
            identity = _place(target)
            numbers[identity] += 1
            numbered = identity, numbers[identity]
            if numbered in written:
                continue
            try:
                with targets.refusals.kept():
                    if self._write(target, targets):
                        written.add(numbered)
                        recorder.mutated(rule.name, target)
            except KubeConflict as error:
                conflicts.append(error)
            except ExpressionFailed as error:
                problems.append(error.message)
        if conflicts:
            raise conflicts[0]
        targets.refusals.raise_first()
        if problems:
            raise ExpressionFailed("background.mutate", "; ".join(problems))

    def _evaluate(
        self,
        policy: ReadyPolicy,
        rule: MutateRule,
        request: Request,
        data: ClusterData,
    ) -> list[RuleResult]:
        engine, deadline_ns = self.dependencies.engine(data)
        if not request.object:
            # KYVERNO: the deleted object takes the place of the new one
            # (docs/behaviour/controllers 5.4 step 1).
            request.object = request.old_object
        context = engine.open(request, deadline_ns)
        response = mutate_policy(
            policy.ir, [rule.linked], context, begin(context), existing=True
        )
        return response.results

    def _write(self, patched: Json, targets: _Targets) -> bool:
        """Replace a target at the version that was read; return False if unchanged.

        Raises: KubeConflict when it has changed since; other DependencyErrors.
        """
        loaded = targets.loaded.get(_place(patched))
        if loaded is None:
            raise ExpressionFailed(
                "background.mutate",
                "a patch must not change apiVersion, kind, namespace or name of a"
                " target",
            )
        if same(loaded.raw, patched):
            return False
        version = (loaded.raw.get("metadata") or {}).get("resourceVersion")
        metadata = {**(patched.get("metadata") or {}), "resourceVersion": version}
        resource = self._resource_of(patched, loaded.asked)
        raw = {**patched, "metadata": metadata}
        try:
            Objects(self.dependencies.client, self.guard).replace(
                resource, raw, loaded.asked.subresource
            )
        except KubeNotFound:
            return False
        return True

    def _resource_of(self, patched: Json, object_query: ObjectQuery) -> Resource:
        """Return the resource of a target, or the parent resource of a subresource."""
        if not object_query.subresource:
            resource = self.kinds.of_kind(
                str(patched.get("apiVersion") or ""), str(patched.get("kind") or "")
            )
        else:
            selector = KindSelector(
                object_query.group, object_query.version, object_query.kind, ""
            )
            resource = next(iter(self.kinds.find(selector)), None)
        if resource is None:
            kind = patched.get("kind")
            raise ExpressionFailed("background.kind", f"kind {kind} is not served")
        return resource


def _place(raw: Json) -> _Place:
    return str(raw.get("apiVersion") or ""), str(raw.get("kind") or ""), *key_of(raw)
