"""Execute one run of a clean-up policy: scan, check the budget, delete, report.

Room: cleanup. Takes: a compiled policy and the claim of a run. Gives: an End.
Next: cleanup/controller.py. May touch: the API server through modules of this room.
Source: docs/behaviour/controllers 7; docs/cleanup.md (dry run, deletion budget).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kyverno_mp.cleanup.access import OwnAccess
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
        one = _Run(self, policy, claim, steps, recorder)
        try:
            end = one.do()
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
            found = self._scan(evaluator)
            for failure in found.failures:
                self.recorder.count_error(failure.resource_kind)
            if self.policy.options.is_dry_run:
                return self._dry_run(found)
            halted = self._halted(found)
            if halted is not None:
                return halted
            if not found.candidates:
                return self._end(found, total)
            self.steps.begin()
            batch = self._delete(evaluator, found.candidates)
            total.add(batch)
            if not found.is_cut or not batch.deleted:
                return self._end(found, total)

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

    def _dry_run(self, found: Scan) -> End:
        text = (
            f"dry run: {found.selected} of {found.matched} matching objects"
            " would be deleted"
        )
        if found.candidates:
            text += f": {shown(found.candidates)}"
        self.recorder.would_delete(text)
        self.recorder.hold_halted(is_halted=False)
        return End(is_done=True, reason="DryRun", message=_with(text, found))

    def _halted(self, found: Scan) -> End | None:
        """Return the End of a run that would exceed its budget, otherwise None."""
        budget = self.policy.options.budget
        count = found.selected
        is_halted = budget is not None and not budget.allows(count, found.matched)
        self.recorder.hold_halted(is_halted=is_halted)
        if not is_halted:
            return None
        text = (
            f"nothing was deleted: the run would delete {count} of {found.matched}"
            f" matching objects, and the deletion budget is {budget}. To delete them,"
            f" raise the annotation {BUDGET}; the next run follows the schedule."
            f" Objects: {shown(found.candidates)}"
        )
        self.recorder.error(text)
        return End(is_done=False, reason="BudgetExceeded", message=text)

    def _end(self, found: Scan, batch: Batch) -> End:
        text = f"deleted {batch.deleted} of {found.matched} matching objects"
        if batch.deleted > found.matched:
            text = f"deleted {batch.deleted} objects"
        for kind in sorted(batch.forbidden):
            text += f"; cleanup controller has no permission to delete kind {kind}"
        for reason in batch.reasons:
            text += f"; {reason}"
        is_forbidden = bool(batch.forbidden) or any(
            failure.is_permission for failure in found.failures
        )
        is_done = not (batch.failed or found.failures)
        reason = "Succeeded" if is_done else "Forbidden" if is_forbidden else "Failed"
        return End(is_done=is_done, reason=reason, message=_with(text, found))


def _with(text: str, found: Scan) -> str:
    return "; ".join((text, *(failure.text for failure in found.failures)))


def _may_delete(access: OwnAccess, candidate: Candidate) -> bool:
    return access.allows_object("delete", candidate.resource, *candidate.key)
