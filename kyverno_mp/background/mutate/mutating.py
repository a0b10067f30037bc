"""Run one MutatingPolicy for one trigger, and write the targets that changed.

Room: background. Takes: a Task. Gives: MutatingRunner. Next: background/runner.py.
May touch: the API server through the parts of this room.
Source: docs/behaviour/controllers 5.7 (cel-mutate); docs/behaviour/cel 10.1; Kyverno
pkg/background/mpol/processor.go at v1.18.2 and (conditions of targets, an unchanged
target) v1.19.0.

Targets are evaluated in their current state, and replaced only at that version.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import written_ns
from kyverno_mp.background.failure import Failure
from kyverno_mp.background.generate.lost import CLOCK_SKEW_NS
from kyverno_mp.background.mutate.cel_policies import (
    CEL_MUTATORS,
    LiveMutators,
    ReadyMutating,
)
from kyverno_mp.background.mutate.cel_targets import Target, Targets
from kyverno_mp.background.objects.triggers import Triggers, awaited_trigger, request_of
from kyverno_mp.background.outage import is_rejection
from kyverno_mp.background.outcome import APPLIED, DONE, Outcome
from kyverno_mp.background.recorder import MUTATE
from kyverno_mp.background.update_request import CEL_MUTATE, StoredRequest, Task
from kyverno_mp.errors import (
    DependencyError,
    Error,
    ExpressionFailed,
    KubeConflict,
    KubeNotFound,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.policy_events import CEL_POLICY_VERSION, PolicyMessages
from kyverno_mp.program import result
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values, names_only, withheld
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.telemetry.families import BACKGROUND_WRITES
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same

_ATTEMPTS: Final = 5


class _Evaluated(NamedTuple):
    """The verdict on a target, and the mutated target."""

    request: Request
    result: RuleResult
    changed: Json


@dataclass(slots=True)
class _Problems:
    """The failures of single targets; the other targets are still processed."""

    texts: list[str] = field(default_factory=list)
    hides: bool = False

    def add(self, target: Target, reason: str, *, hides: bool) -> None:
        """Record why a target could not be changed."""
        self.hides = self.hides or hides
        self.texts.append(f"{target.shown}: {reason}")


@dataclass(frozen=True, slots=True)
class MutatingRunner:
    """Runs MutatingPolicies on existing objects; threads may share it."""

    dependencies: BackgroundDependencies
    policies: LiveMutators
    triggers: Triggers
    targets: Targets
    guard: Callable[[], None]

    def run(self, task: Task) -> Outcome:
        """Run one task.

        Raises: ExpressionFailed with the failures of the targets; PolicyInvalid;
        DependencyError, LeaseLost.
        """
        policy = self.policies.ready(task.policy)
        if policy is None or not policy.ir.mutates_existing:
            return DONE
        trigger, waits = awaited_trigger(task, self.triggers)
        if waits is not None:
            return waits
        request = self._request_of(task, trigger)
        facts = self._facts(request)
        facts.runtime.begin_policy(policy, is_tenant=bool(policy.ir.policy.namespace))
        if task.is_unchecked and not policy.linked.triggers(facts, Shared(request)):
            return DONE
        problems = _Problems()
        for target in self._found(policy, request):
            self._mutate(policy, request, target, problems)
        if problems.texts:
            code = "background.mutate"
            reason = "; ".join(problems.texts)
            raise ExpressionFailed(code, withheld(code) if problems.hides else reason)
        return APPLIED

    def lost_tasks(
        self, request: StoredRequest, since_ns: int, *, is_last: bool = True
    ) -> Iterator[Task]:
        """Yield a task for each trigger written since ``since_ns``.

        A repeated mutation may have another result, so only the last look has them.
        Raises: PolicyInvalid, DependencyError.
        """
        if not is_last:
            return
        policy = self.policies.ready(request.spec.policy)
        if policy is None or not policy.ir.mutates_existing:
            return
        since_ns -= CLOCK_SKEW_NS
        triggers = self.targets.triggers(
            policy.ir, lambda raw: written_ns(raw) >= since_ns
        )
        for trigger in triggers:
            yield Task(CEL_MUTATE, request.spec.policy, "", trigger, request=request)

    def failure_of(self, task: Task, error: Error) -> Failure:
        """Return why a task failed, without the values of a Secret."""
        hides = hides_values(task.trigger.kind) and not names_only(error)
        reason = withheld(error.code) if hides else error.message
        self._report_failure(task, reason)
        return Failure(task, None, reason)

    def _request_of(self, task: Task, trigger: Json) -> Request:
        """Return the request of the trigger; name it as if it were newly written."""
        request = request_of(task, trigger, self.dependencies.cluster_data)
        if request.review_request is None:
            resource = self.targets.kinds.of_kind(
                task.trigger.api_version, task.trigger.kind
            )
            request.review_request = {
                "kind": {
                    "group": request.group,
                    "version": request.version,
                    "kind": request.kind,
                },
                "resource": {
                    "group": request.group,
                    "version": request.version,
                    "resource": "" if resource is None else resource.plural,
                },
                "name": request.name,
                "namespace": request.namespace,
                "operation": request.operation,
                "object": request.object,
                "oldObject": None,
            }
        return request

    def _found(self, policy: ReadyMutating, request: Request) -> Iterable[Target]:
        """Return the targets. Raises: ExpressionFailed, DependencyError."""
        facts = self._facts(request)
        facts.runtime.begin_policy(policy, is_tenant=bool(policy.ir.policy.namespace))
        selected = policy.linked.targets(facts)
        if selected is not None:
            return list(self.targets.of_objects(policy.ir, selected))
        return self.targets.of_constraints(policy.ir)

    def _mutate(
        self,
        policy: ReadyMutating,
        trigger: Request,
        target: Target,
        problems: _Problems,
    ) -> None:
        """Mutate one target; note problems of this target only.

        Raises: other DependencyErrors, LeaseLost.
        """
        hides = hides_values(target.resource.kind)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._try(policy, trigger, target, problems, hides=hides)
            except KubeConflict as error:
                # Another writer was faster, so the target is evaluated again in its new
                # state.
                if attempt == _ATTEMPTS:
                    problems.add(target, error.message, hides=hides)
                continue
            except DependencyError as error:
                if not is_rejection(error):
                    raise
                problems.add(
                    target, error.message, hides=hides and not names_only(error)
                )
            return

    def _try(
        self,
        policy: ReadyMutating,
        trigger: Request,
        target: Target,
        problems: _Problems,
        *,
        hides: bool,
    ) -> None:
        objects = Objects(self.dependencies.client, self.guard)
        live = objects.find(target.resource, target.key)
        if live is None:
            return
        raw: Json = {
            "apiVersion": target.resource.api_version,
            "kind": target.resource.kind,
            **live,
        }
        done = self._evaluate(policy, trigger, target, raw)
        if done.result.status == result.ERROR:
            problems.add(target, done.result.message, hides=hides)
            return
        if not same(raw, done.changed) and not self._write(
            objects, target, raw, done.changed
        ):
            return
        self._report(policy, done)

    def _write(
        self, objects: Objects, target: Target, raw: Json, changed: Json
    ) -> bool:
        """Replace a target at the version that was read; return False if it is gone.

        Raises: KubeConflict when it has changed since; other DependencyErrors.
        """
        before = raw.get("metadata") or {}
        metadata = changed.get("metadata")
        labelled = metadata if type(metadata) is dict else {}
        moved = {
            name: before[name]
            for name in ("name", "namespace", "uid", "resourceVersion")
            if name in before
        }
        replacement = {
            **changed,
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {**labelled, **moved},
        }
        try:
            objects.replace(target.resource, replacement, target.subresource)
        except KubeNotFound:
            return False
        self.dependencies.metrics.count(BACKGROUND_WRITES, ("mutated",))
        return True

    def _evaluate(
        self, policy: ReadyMutating, trigger: Request, target: Target, raw: Json
    ) -> _Evaluated:
        """Evaluate a policy on a target, for a trigger. Raises: DependencyError."""
        request = self.targets.request_of(target, raw, trigger)
        facts = self._facts(request)
        facts.runtime.begin_policy(policy, is_tenant=bool(policy.ir.policy.namespace))
        answer = policy.linked.mutate_existing(facts, Shared(request), target.body)
        assert answer.result is not None
        changed = raw if answer.patched is None else answer.patched
        return _Evaluated(request, answer.result, changed)

    def _facts(self, request: Request) -> Facts:
        engine, deadline_ns = self.dependencies.engine()
        return Facts(
            request,
            engine.open(request, deadline_ns).runtime,
            self.dependencies.cluster_data.cel,
            is_review=True,
            faults=[],
        )

    def _report(self, policy: ReadyMutating, done: _Evaluated) -> None:
        """Record the Events of a target and its row in the report."""
        ir = policy.ir.policy
        results = self.dependencies.results
        if results is not None:
            results.mutated_target(ir, done.result, done.request)
        messages = _messages(policy, done.request)
        for info in _events_of(messages, done.result):
            self.dependencies.events.submit(info)

    def _report_failure(self, task: Task, reason: str) -> None:
        namespace, _, name = task.policy.rpartition("/")
        kind = CEL_MUTATORS[bool(namespace)].kind
        trigger = task.trigger
        self.dependencies.events.submit(
            EventInfo(
                regarding=Reference(CEL_POLICY_VERSION, kind, name, namespace),
                related=Reference(
                    trigger.api_version, trigger.kind, trigger.name, trigger.namespace
                ),
                reason="PolicyError",
                action="None",
                note=f"policy {task.policy} error: {reason}",
                controller=MUTATE,
                topic="",
            )
        )


def _messages(policy: ReadyMutating, request: Request) -> PolicyMessages:
    ir, metadata = policy.ir.policy, request.object.get("metadata") or {}
    return PolicyMessages(
        Reference(CEL_POLICY_VERSION, ir.kind, ir.name, ir.namespace, policy.uid),
        Reference(
            str(request.object.get("apiVersion") or ""),
            request.kind,
            str(metadata.get("name") or ""),
            str(metadata.get("namespace") or ""),
            str(metadata.get("uid") or ""),
        ),
        MUTATE,
    )


def _events_of(
    messages: PolicyMessages, rule_result: RuleResult
) -> Iterator[EventInfo]:
    """Yield the Events of a target; their messages never quote its values."""
    if rule_result.status == result.PASS and not rule_result.exceptions:
        yield messages.applied(mutates=True)
    elif rule_result.exceptions:
        yield from messages.skipped(rule_result.rule, rule_result.exceptions)
