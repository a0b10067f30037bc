"""Run the rules for an UpdateRequest or an event of a policy.

Room: background. Takes: requests and Tasks. Gives: Runner, which returns why rules
failed or have to wait; its table of the types of tasks. Next: background/requests.py.
May touch: the API server through the parts of this room.
Source: docs/behaviour/controllers 5.1, 5.4; docs/background.md.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from kyverno_mp.background.failure import (
    Failure,
    failure_of,
    failure_of_defect,
    failure_of_generating,
    failure_of_request,
)
from kyverno_mp.background.generate.changes import Changes
from kyverno_mp.background.generate.generator import Generator
from kyverno_mp.background.generate.lost import LostTriggers
from kyverno_mp.background.generating.policies import (
    CEL_GENERATORS,
    ReadyGenerating,
)
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.mutate.cel_policies import CEL_MUTATORS
from kyverno_mp.background.mutate.mutating import MutatingRunner
from kyverno_mp.background.mutate.mutator import Mutator
from kyverno_mp.background.outage import is_outage
from kyverno_mp.background.outcome import SETTLES, Outcome
from kyverno_mp.background.policies import ReadyPolicy, has_rule, policy_key
from kyverno_mp.background.stored import RulePolicies
from kyverno_mp.background.update_request import (
    CEL_GENERATE,
    CEL_MUTATE,
    GENERATE,
    MUTATE,
    StoredRequest,
    Task,
)
from kyverno_mp.errors import (
    DependencyError,
    Error,
    InputError,
    LeaseLost,
    PolicyInvalid,
    SnapshotUnusable,
    Where,
)
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)


class TaskKind(NamedTuple):
    """How the tasks of one type are run.

    ``resource``: the namespaced resource of the policies. ``policy`` returns the newest
    version of a task's policy, None if it is gone. ``lost`` yields the tasks for the
    triggers that were lost since a time.
    """

    resource: Resource
    policy: Callable[[Task], Any]
    run: Callable[[Task, Any], Outcome]
    failure: Callable[[Task, Any, Error], Failure]
    lost: "Lost"


class Lost(Protocol):
    """How the triggers of a policy that were lost since a time are found."""

    def __call__(
        self, request: StoredRequest, since_ns: int, *, is_last: bool = True
    ) -> Iterator[Task]:
        """Yield their tasks.

        ``is_last``: it is the last look, which also runs what must not be repeated and
        reports what is left out. Raises: DependencyError.
        """


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks; threads may share it."""

    kinds: Mapping[str, TaskKind]
    """By type of task."""
    changes: Changes
    on_defect: Callable[[], None]
    """Called after each unexpected error."""
    author_reason: Callable[[Resource, Key], str] = lambda _resource, _key: ""
    """Returns the right that a policy uses and its author lacks, or ""."""

    def run(
        self, request: StoredRequest, *, is_late: bool = False
    ) -> tuple[Failure | None, Outcome | None]:
        """Run a request; a rejected call is returned as a failure.

        Raises: outages; LeaseLost.
        """
        try:
            return self._run(request, is_late=is_late)
        except DependencyError as error:
            if is_outage(error):
                raise
            return failure_of_request(request, error), None

    def look(self, request: StoredRequest, is_over: Callable[[], bool]) -> None:
        """Run the tasks of the lost triggers that are stored by now.

        The last look reports what fails, and it runs what must not be repeated.
        ``is_over`` ends the look before its next task. Raises: DependencyError,
        LeaseLost.
        """
        kind = self.kinds[request.spec.request_type]
        tasks = kind.lost(request, request.lost_since_ns, is_last=False)
        self.run_tasks(takewhile(lambda _: not is_over(), tasks), of_one_trigger=False)

    def _run(
        self, request: StoredRequest, *, is_late: bool = False
    ) -> tuple[Failure | None, Outcome | None]:
        """Run a request. ``is_late``: it has waited long enough.

        Raises: DependencyError, LeaseLost.
        """
        changed, since_ns = request.changed, request.lost_since_ns
        if since_ns:
            if not is_late:
                return None, SETTLES
            kind = self.kinds[request.spec.request_type]
            return self.run_tasks(kind.lost(request, since_ns), of_one_trigger=False)
        if changed is None:
            return self.run_tasks(
                [replace(task, is_late=is_late) for task in request.tasks()]
            )
        waits = None if is_late else self.changes.waits(changed)
        if waits is not None:
            return None, waits
        return self.run_tasks(
            self.changes.tasks(request, changed), of_one_trigger=False
        )

    def run_tasks(
        self, tasks: Iterable[Task], *, of_one_trigger: bool = True
    ) -> tuple[Failure | None, Outcome | None]:
        """Run tasks; return the first failure and the first reason to wait.

        Raises: outages; LeaseLost.
        """
        failure: Failure | None = None
        waits: Outcome | None = None
        for task in tasks:
            failed, outcome, is_last = self._run_task(task)
            failure = failure or failed
            if outcome is not None and outcome.waits:
                waits = waits or outcome
            if of_one_trigger and is_last:
                break
        return failure, waits

    def _run_task(self, task: Task) -> tuple[Failure | None, Outcome | None, bool]:
        """Run a task; return also whether the policy's other rules are skipped.

        Raises: outages; LeaseLost.
        """
        kind, policy = self.kinds[task.type], None
        try:
            policy = kind.policy(task)
            self._require_author(task, kind.resource)
            outcome = kind.run(task, policy)
        except (InputError, DependencyError) as error:
            if is_outage(error):
                raise
            return kind.failure(task, policy, error), None, False
        except (LeaseLost, SnapshotUnusable):
            raise
        except Exception:  # noqa: BLE001 - one task must not stop the others
            return self._defect(task, policy), None, False
        return None, outcome, _ends(outcome, policy)

    def _require_author(self, task: Task, resource: Resource) -> None:
        """Check the author of a namespaced policy. Raises: PolicyInvalid."""
        key = policy_key(task.policy)
        reason = self.author_reason(resource, key) if key[0] else ""
        if reason:
            location = Where(policy=task.policy, rule=task.rule)
            raise PolicyInvalid("background.author_rights", reason, location)

    def _defect(
        self, task: Task, policy: ReadyPolicy | ReadyGenerating | None
    ) -> Failure:
        """Log and count an unexpected error of a task; return its failure."""
        self.on_defect()
        _log.exception(
            "unexpected error of a background rule",
            extra=fields(policy=task.policy, rule=task.rule, trigger=task.trigger.key),
        )
        return failure_of_defect(task, None if policy is None else policy.stored)


def _ends(outcome: Outcome, policy: ReadyPolicy | ReadyGenerating | None) -> bool:
    """Return whether the policy's other rules are skipped (applyRules: One)."""
    is_one = isinstance(policy, ReadyPolicy) and policy.ir.apply_rules == "One"
    return outcome.applied and is_one


def kinds_of(  # noqa: PLR0913 - wired in one place
    policies: RulePolicies,
    generator: Generator,
    mutator: Mutator,
    mutating: MutatingRunner,
    lost: LostTriggers,
    generating: Generating,
    *,
    lost_generating: Lost,
) -> dict[str, TaskKind]:
    """Return the table of the types of tasks."""

    def with_rule(task: Task) -> ReadyPolicy | None:
        return policies.newest(task.policy, partial(has_rule, task.rule))

    resource = RULE_POLICIES.namespaced
    return {
        GENERATE: TaskKind(resource, with_rule, generator.run, failure_of, lost.tasks),
        MUTATE: TaskKind(resource, with_rule, mutator.run, failure_of, lost.tasks),
        CEL_GENERATE: TaskKind(
            CEL_GENERATORS.namespaced,
            lambda task: generating.policies.newest(task.policy),
            generating.run,
            failure_of_generating,
            lost_generating,
        ),
        CEL_MUTATE: TaskKind(
            CEL_MUTATORS.namespaced,
            # It is read after its trigger, with its exceptions.
            lambda _task: None,
            lambda task, _policy: mutating.run(task),
            lambda task, _policy, error: mutating.failure_of(task, error),
            mutating.lost_tasks,
        ),
    }
