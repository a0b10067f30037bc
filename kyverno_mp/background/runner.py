"""Run the rules for an UpdateRequest or an event of a policy.

Room: background. Takes: requests and Tasks. Gives: Runner, which returns why rules
failed or have to wait. Next: background/requests.py. May touch: the API server through
the parts of this room.
Source: docs/behaviour/controllers 5.1, 5.4; docs/background.md.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

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
    NAMESPACED_GENERATING_POLICIES,
    ReadyGenerating,
)
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.mutate.cel_policies import NAMESPACED_MUTATING_POLICIES
from kyverno_mp.background.mutate.mutating import MutatingRunner
from kyverno_mp.background.mutate.mutator import Mutator
from kyverno_mp.background.outage import is_outage
from kyverno_mp.background.outcome import SETTLES, Outcome
from kyverno_mp.background.policies import ReadyPolicy, has_rule, policy_key
from kyverno_mp.background.stored import RulePolicies
from kyverno_mp.background.update_request import (
    CEL_GENERATE,
    CEL_MUTATE,
    MUTATE,
    StoredRequest,
    Task,
)
from kyverno_mp.errors import (
    DependencyError,
    InputError,
    LeaseLost,
    PolicyInvalid,
    SnapshotUnusable,
    Where,
)
from kyverno_mp.kube.policy_resources import POLICIES
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
_OF_CEL: Final = frozenset({CEL_GENERATE, CEL_MUTATE})


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks; threads may share it."""

    policies: RulePolicies
    generator: Generator
    mutator: Mutator
    mutating: MutatingRunner
    changes: Changes
    lost: LostTriggers
    generating: Generating
    lost_generating: Callable[[StoredRequest], Iterator[Task]]
    """Yields the tasks for the lost triggers of GeneratingPolicies."""
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
            if request.spec.request_type == CEL_MUTATE:
                return self.run_tasks(self.mutating.lost_tasks(request, since_ns))
            if request.spec.request_type == CEL_GENERATE:
                return self.run_tasks(
                    self.lost_generating(request), of_one_trigger=False
                )
            return self.run_tasks(
                self.lost.tasks(request, since_ns), of_one_trigger=False
            )
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
            policy: ReadyPolicy | None = None
            if task.type in _OF_CEL:
                is_generating = task.type == CEL_GENERATE
                run = self._generate if is_generating else self._run_cel
                failed, outcome = run(task)
                failure = failure or failed
                if outcome is not None and outcome.waits:
                    waits = waits or outcome
                continue
            try:
                policy = self.policies.newest(task.policy, partial(has_rule, task.rule))
                self._require_author(task, POLICIES)
                runner = self.mutator if task.type == MUTATE else self.generator
                outcome = runner.run(task, policy)
            except (InputError, DependencyError) as error:
                if is_outage(error):
                    raise
                failure = failure or failure_of(task, policy, error)
                continue
            except (LeaseLost, SnapshotUnusable):
                raise
            except Exception:  # noqa: BLE001 - one task must not stop the others
                failure = failure or self._defect(task, policy)
                continue
            if outcome.waits:
                waits = waits or outcome
            if of_one_trigger and _ends(outcome, policy):
                break
        return failure, waits

    def _generate(self, task: Task) -> tuple[Failure | None, Outcome | None]:
        """Run a GeneratingPolicy. Raises: outages; LeaseLost."""
        policy: ReadyGenerating | None = None
        try:
            policy = self.generating.policies.newest(task.policy)
            self._require_author(task, NAMESPACED_GENERATING_POLICIES)
            return None, self.generating.run(task, policy)
        except (InputError, DependencyError) as error:
            if is_outage(error):
                raise
            stored = None if policy is None else policy.stored
            return failure_of_generating(task, stored, error), None
        except (LeaseLost, SnapshotUnusable):
            raise
        except Exception:  # noqa: BLE001 - one task must not stop the others
            return self._defect(task, policy), None

    def _run_cel(self, task: Task) -> tuple[Failure | None, Outcome | None]:
        """Run a MutatingPolicy. Raises: outages; LeaseLost."""
        try:
            self._require_author(task, NAMESPACED_MUTATING_POLICIES)
            return None, self.mutating.run(task)
        except (InputError, DependencyError) as error:
            if is_outage(error):
                raise
            return self.mutating.failure_of(task, error), None
        except (LeaseLost, SnapshotUnusable):
            raise
        except Exception:  # noqa: BLE001 - one task must not stop the others
            return self._defect(task, None), None

    def _require_author(self, task: Task, resource: Resource) -> None:
        """Check the author of a namespaced policy. Raises: PolicyInvalid."""
        key = policy_key(task.policy)
        reason = self.author_reason(resource, key) if key[0] else ""
        if reason:
            where = Where(policy=task.policy, rule=task.rule)
            raise PolicyInvalid("background.author_rights", reason, where)

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


def _ends(outcome: Outcome, policy: ReadyPolicy | None) -> bool:
    """Return whether the policy's other rules are skipped (applyRules: One)."""
    return outcome.applied and policy is not None and policy.ir.apply_rules == "One"
