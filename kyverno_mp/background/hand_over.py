"""Leave lost triggers to another program that holds the lease, as its UpdateRequests.

Room: background. Takes: the table of the types of tasks, requests that name only a
policy and a time. Gives: the same table, which posts an UpdateRequest for each task;
which requests it can serve. Next: background/start.py.
May touch: the API server through kube/apply.py.
Source: docs/background.md; Kyverno pkg/background (ProcessUR of each type).

Only our pods understand such a request. The names of the posted ones follow from their
rule and trigger, so what is posted again, e.g. after a process was killed, exists.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.outcome import APPLIED, Outcome
from kyverno_mp.background.runner import Lost, TaskKind
from kyverno_mp.background.update_request import (
    CEL_GENERATE,
    GENERATE,
    MUTATE,
    PENDING,
    StoredRequest,
    Task,
    read_request,
)
from kyverno_mp.errors import KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.queues.triggers import TriggerObject, TriggerRecord, Wanted
from kyverno_mp.queues.update_requests import UPDATE_REQUESTS, document_of
from kyverno_mp.telemetry.families import BACKGROUND_REQUESTS
from kyverno_mp.values.jsonvalue import Json

HANDED_OVER: Final = "handed_over"
_ROLE: Final = "handed-over"
_FOR_OTHERS: Final = frozenset({GENERATE, CEL_GENERATE})
"""KYVERNO: a request of a MutatingPolicy without its review ends the program."""


def is_for_others(raw: msgspec.Raw) -> StoredRequest | None:
    """Return a request for lost triggers that can be handed over, None for others."""
    request = read_request(raw)
    is_note = request.lost_since_ns and request.spec.request_type in _FOR_OTHERS
    return request if is_note and request.waits else None


def handed_over(
    kinds: Mapping[str, TaskKind],
    dependencies: BackgroundDependencies,
    guard: Callable[[], None],
) -> dict[str, TaskKind]:
    """Return the table whose tasks become UpdateRequests; ``guard``: before writes."""
    objects = Objects(dependencies.client, guard)
    namespace = dependencies.settings.namespace

    def post(task: Task, _policy: Any) -> Outcome:
        document = document_of(*_record_of(task), namespace)
        body = msgspec.json.encode(document)
        try:
            objects.post(UPDATE_REQUESTS, namespace, body)
        except KubeConflict as error:
            if error.code != "kube.exists":
                raise
            stored = objects.find(UPDATE_REQUESTS, key_of(document)) or {}
            if (stored.get("status") or {}).get("state"):
                return APPLIED
        # KYVERNO: a request without a state is never processed.
        with contextlib.suppress(KubeNotFound):
            state: Json = {"status": {"state": PENDING}}
            objects.merge(UPDATE_REQUESTS, key_of(document), state, "status")
        dependencies.metrics.count(BACKGROUND_REQUESTS, (task.type, HANDED_OVER))
        return APPLIED

    return {
        name: kind._replace(
            # The task was made from the newest version.
            policy=lambda _task: None,
            run=post,
            lost=partial(_lost, kind.lost),
        )
        for name, kind in kinds.items()
    }


def _lost(
    find: Lost, request: StoredRequest, since_ns: int, *, is_last: bool = True
) -> Iterator[Task]:
    """Yield the tasks for existing triggers that were written since ``since_ns``.

    The last look of our pool also has all other triggers of the policy; the other
    program fails for those that are gone or no longer match.
    """
    for task in find(request, since_ns, is_last=False):
        yield replace(task, request=request)
    if is_last:
        tasks = find(request, since_ns)
        yield from (task for task in tasks if task.type == MUTATE)


def _record_of(task: Task) -> tuple[TriggerRecord, Wanted]:
    assert task.request is not None
    wanted = Wanted(task.type, task.policy, (task.rule,), unchecked=True)
    trigger = task.trigger
    record = TriggerRecord(
        task.request.lost_since_ns,
        (wanted,),
        TriggerObject(
            trigger.api_version,
            trigger.kind,
            trigger.namespace,
            trigger.name,
            trigger.uid,
        ),
        operation="",
        role=_ROLE,
    )
    return record, wanted
