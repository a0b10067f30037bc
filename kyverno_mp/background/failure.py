"""Describe why a task failed, without the values of any Secret involved.

Room: background. Takes: a Task, its ReadyPolicy, an error. Gives: Failure, reason_of.
Next: background/requests.py writes it to an UpdateRequest, an Event and the log.
Source: docs/behaviour/engine 5.6; docs/background.md (failures).

Messages of rules may quote the trigger and the targets. Messages of the API server may
quote the written object, and other webhooks may add their own text.
"""

from typing import Final, NamedTuple

from kyverno_mp.background.generating.policies import ReadyGenerating
from kyverno_mp.background.policies import ReadyPolicy, StoredPolicy
from kyverno_mp.background.update_request import (
    MUTATE,
    StoredRequest,
    Task,
)
from kyverno_mp.errors import DependencyError, Error
from kyverno_mp.program.secrecy import hides_values, names_only, withheld

_KIND: Final = "Secret"


DEFECT: Final = "background.defect"


class Failure(NamedTuple):
    """Why a task failed. ``reason``: safe to show to any user."""

    task: Task | None
    policy: StoredPolicy | None
    reason: str


def failure_of(task: Task, policy: ReadyPolicy | None, error: Error) -> Failure:
    """Return why a task failed."""
    hides = hides_values(task.trigger.kind) or _quotes_written(task, policy, error)
    stored = None if policy is None else policy.stored
    return Failure(task, stored, withheld(error.code) if hides else error.message)


def failure_of_generating(
    task: Task, ready: ReadyGenerating | None, error: Error
) -> Failure:
    """Return why a task of a GeneratingPolicy failed.

    Its expressions may read any object, and the objects that they write are not known
    in advance.
    """
    policy = None if ready is None else ready.stored
    reads_secrets = policy is None or b"secrets" in policy.raw
    hides = hides_values(task.trigger.kind) or reads_secrets or _KIND in error.message
    is_hidden = hides and not names_only(error)
    return Failure(task, policy, withheld(error.code) if is_hidden else error.message)


def failure_of_request(request: StoredRequest, error: DependencyError) -> Failure:
    """Return why a request failed before its tasks were known."""
    triggers = [
        request.spec.resource,
        *(e.trigger for e in request.spec.rule_context or ()),
    ]
    kinds = [trigger.kind for trigger in triggers]
    if request.changed is not None:
        kinds.append(request.changed.kind)
    hides = any(map(hides_values, kinds)) and not names_only(error)
    return Failure(None, None, withheld(error.code) if hides else error.message)


def failure_of_defect(
    task: Task | None = None, policy: StoredPolicy | None = None
) -> Failure:
    """Return the failure of a task or request that ended with an unexpected error."""
    return Failure(task, policy, f"{DEFECT}: internal error, see the log")


def _quotes_written(task: Task, policy: ReadyPolicy | None, error: Error) -> bool:
    """Return whether a message may quote a Secret that was read or written."""
    if task.type == MUTATE:
        mutate = policy.mutates.get(task.rule) if policy else None
        kinds = mutate.target_kinds if mutate else []
    else:
        generate = policy.generates.get(task.rule) if policy else None
        written = generate.downstream_kinds() if generate else []
        kinds = None if written is None else [kind for _, kind in written]
        if not isinstance(error, DependencyError):
            # A generate rule reads its trigger, but not the content of a clone source.
            return False
    may_be_hidden = kinds is None or any(map(hides_values, kinds))
    return may_be_hidden and not names_only(error)
