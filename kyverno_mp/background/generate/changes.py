"""Find the tasks caused by a change of a clone source or of a generated object.

Room: background. Takes: an UpdateRequest about a changed object. Gives: Changes:
whether the request has to wait, and its Tasks. Next: background/requests.py. May touch:
the API server through the parts of this room.
Source: docs/behaviour/controllers 5.2 (row 3), 5.5; docs/background.md.

A change is reviewed before it is stored, and another webhook may still reject it. So
the object is read: as long as it has its old version, the request waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.labels import trigger_of
from kyverno_mp.background.objects.triggers import Triggers, is_ending, version_of
from kyverno_mp.background.outcome import IS_ENDING, NOT_STORED, Outcome
from kyverno_mp.background.update_request import (
    GENERATE,
    SOURCE,
    Changed,
    StoredRequest,
    Task,
)
from kyverno_mp.program.generate.labels import origin_of
from kyverno_mp.values.jsonvalue import Json

_DELETE: Final = "DELETE"


@dataclass(frozen=True, slots=True)
class Changes:
    """Finds the tasks for changed objects; threads may share it."""

    triggers: Triggers
    downstream: Downstream

    def waits(self, changed: Changed) -> Outcome | None:
        """Return why the change cannot be processed yet; None if it can.

        Raises: DependencyError.
        """
        live = self.triggers.find(changed.identity)
        if live is None:
            return None
        if changed.operation != _DELETE:
            return NOT_STORED if version_of(live) == changed.version else None
        if not is_ending(live):
            return NOT_STORED
        # The name stays in use until the finalizers are done. A source in deletion
        # already counts as gone.
        return None if changed.role == SOURCE else IS_ENDING

    def tasks(self, request: StoredRequest, changed: Changed) -> Iterator[Task]:
        """Yield the tasks caused by the change. Raises: DependencyError."""
        if changed.role != SOURCE:
            for task in request.tasks():
                yield replace(task, synchronizes=True)
        elif changed.operation != _DELETE:
            yield from self._of_source(request, changed, "")
        elif _is_gone(self.triggers.find(changed.identity)):
            yield from self._of_source(request, changed, changed.uid)

    def _of_source(
        self, request: StoredRequest, changed: Changed, gone_source: str
    ) -> Iterator[Task]:
        """Yield a task for each rule and trigger with a clone of the source."""
        tasks: dict[tuple[str, str, str], Task] = {}
        for clone in self.downstream.cloned(changed.identity):
            origin, trigger = origin_of(clone.labels), trigger_of(clone.labels)
            if origin is None or trigger is None:
                continue
            tasks[*origin, trigger.key] = Task(
                *(GENERATE, *origin, trigger),
                deletes=bool(gone_source),
                request=request,
                synchronizes=True,
                gone_sources=frozenset((gone_source,) if gone_source else ()),
            )
        yield from tasks.values()


def _is_gone(live: Json | None) -> bool:
    return live is None or is_ending(live)
