"""Execute one run of a clean-up policy: scan, check the budget, delete, report.

Room: cleanup. Takes: a compiled policy and the claim of a run. Gives: an End.
Next: cleanup/controller.py. May touch: the API server through modules of this room.
Source: docs/behaviour/controllers 7; docs/cleanup.md (dry run, deletion budget).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kyverno_mp.cleanup.batch import Batch, Batcher, Rules
from kyverno_mp.cleanup.deletion import Deleter
from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.evaluator import Evaluator
from kyverno_mp.cleanup.kinds import Kinds
from kyverno_mp.cleanup.permissions import missing_permissions
from kyverno_mp.cleanup.policy import CompiledPolicy
from kyverno_mp.cleanup.recorder import RunRecorder, shown
from kyverno_mp.cleanup.scan import Candidate, Scan, ScanInputs, scan
from kyverno_mp.cleanup.status import Claim, End
from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.policy.documents.cleanup_policy import BUDGET


class Steps(Protocol):
    """Callbacks of a run."""

    def check_continue(self) -> None:
        """Raise when the run has to stop; called for each object."""

    def begin(self) -> None:
        """Record the run before its first deletion; raise if another replica has it."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs policies; several may run at a time."""

    dependencies: CleanupDependencies
    kinds: Kinds
    access: OwnAccess

    def missing(self, policy: CompiledPolicy) -> list[str]:
        """Return the permissions that the policy needs and the account lacks.

        Raises: DependencyError.
        """
        return missing_permissions(policy.plan, self.inputs(policy, lambda: None))

    def inputs(
        self, policy: CompiledPolicy, check_continue: Callable[[], None]
    ) -> ScanInputs:
        """Return the inputs of a scan. Raises: DependencyError."""
        return ScanInputs(
            client=self.dependencies.client,
            directory=self.kinds.directory_with(policy.plan),
            access=self.access,
            bound_namespaces=self.dependencies.bound_namespaces,
            monotonic_s=self.dependencies.clock.monotonic_s,
            check_continue=check_continue,
        )

    def run(self, policy: CompiledPolicy, claim: Claim, steps: "Steps") -> End:
        """Execute a run that is due.

        Raises: KubeUnavailable, DeadlinePassed: retry later; and the errors of
        ``steps``.
        """
        dependencies = self.dependencies
        recorder = RunRecorder(
            policy.stored,
            policy.plan.propagation,
            dependencies.events,
            dependencies.metrics,
        )
        run = _Run(self, policy, claim, steps, recorder)
        try:
            end = run.do()
        except BudgetExceeded as error:
            recorder.error(error.message)
            return End(is_done=False, reason="Failed", message=error.message)
        finally:
            recorder.end()
        return end


@dataclass(frozen=True, slots=True)
class _Run:
    runner: Runner
    policy: CompiledPolicy
    claim: Claim
    steps: Steps
    recorder: RunRecorder

    def do(self) -> End:
        dependencies = self.runner.dependencies
        evaluator = Evaluator(self.policy.plan, dependencies)
        total = Batch()
        while True:
            selected = self._scan(evaluator)
            for failure in selected.failures:
                self.recorder.count_error(failure.resource_kind)
            if self.policy.options.is_dry_run:
                return self._dry_run(selected)
            halted = self._halted(selected)
            if halted is not None:
                return halted
            if not selected.candidates:
                return self._end(selected, total)
            self.steps.begin()
            batch = self._delete(evaluator, selected.candidates)
            total.add(batch)
            if not selected.is_cut or not batch.deleted:
                return self._end(selected, total)

    def _scan(self, evaluator: Evaluator) -> Scan:
        claim = self.claim
        inputs = self.runner.inputs(self.policy, self.steps.check_continue)
        until_s = claim.began_s if claim.is_resumed else None
        return scan(self.policy.plan, evaluator, inputs, created_until_s=until_s)

    def _delete(self, evaluator: Evaluator, candidates: list[Candidate]) -> Batch:
        dependencies = self.runner.dependencies
        rules = Rules(
            self.steps.check_continue, partial(_may_delete, self.runner.access)
        )
        deleter = Deleter(dependencies.client, dependencies.holds_lease)
        batcher = Batcher(dependencies.client, deleter, evaluator, self.recorder, rules)
        return batcher.run(candidates, self.policy.plan.propagation)

    def _dry_run(self, selected: Scan) -> End:
        note = (
            f"dry run: {selected.selected} of {selected.matched} matching objects"
            " would be deleted"
        )
        if selected.candidates:
            note += f": {shown(selected.candidates)}"
        self.recorder.would_delete(note)
        self.recorder.hold_halted(is_halted=False)
        return End(is_done=True, reason="DryRun", message=_with(note, selected))

    def _halted(self, selected: Scan) -> End | None:
        """Return the End of a run that would exceed its budget, otherwise None."""
        budget = self.policy.options.budget
        count = selected.selected
        is_halted = budget is not None and not budget.allows(count, selected.matched)
        self.recorder.hold_halted(is_halted=is_halted)
        if not is_halted:
            return None
        reason = (
            f"nothing was deleted: the run would delete {count} of {selected.matched}"
            f" matching objects, and the deletion budget is {budget}. To delete them,"
            f" raise the annotation {BUDGET}; the next run follows the schedule."
            f" Objects: {shown(selected.candidates)}"
        )
        self.recorder.error(reason)
        return End(is_done=False, reason="BudgetExceeded", message=reason)

    def _end(self, selected: Scan, batch: Batch) -> End:
        summary = f"deleted {batch.deleted} of {selected.matched} matching objects"
        if batch.deleted > selected.matched:
            summary = f"deleted {batch.deleted} objects"
        for kind in sorted(batch.forbidden):
            summary += f"; cleanup controller has no permission to delete kind {kind}"
        for reason in batch.reasons:
            summary += f"; {reason}"
        is_forbidden = bool(batch.forbidden) or any(
            failure.is_permission for failure in selected.failures
        )
        is_done = not (batch.failed or selected.failures)
        reason = "Succeeded" if is_done else "Forbidden" if is_forbidden else "Failed"
        return End(is_done=is_done, reason=reason, message=_with(summary, selected))


def _with(summary: str, selected: Scan) -> str:
    return "; ".join((summary, *(failure.text for failure in selected.failures)))


def _may_delete(access: OwnAccess, candidate: Candidate) -> bool:
    return access.allows_object("delete", candidate.resource, *candidate.key)
