"""Preview what GeneratingPolicies would create, update and delete now.

Room: background. Takes: a ReadyGenerating. Gives: GeneratingPreviewer. Next:
cli/generate.py. May touch: the API server through the parts of this room, reading and
with dry runs.
Source: docs/background.md (preview).

The pool's own runner runs each task, but its writes are only noted.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate.preview import CREATE, Cause, Planner, Preview
from kyverno_mp.background.generating.evaluate import Evaluation
from kyverno_mp.background.generating.events import GeneratingEvents
from kyverno_mp.background.generating.policies import (
    Generators,
    ReadyGenerating,
)
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.objects.downstream import (
    CREATED,
    KEPT,
    UPDATED,
    Done,
    Downstream,
    Found,
)
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.labels import Selector
from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.register import Entry, GeneratedKind, KindRegister
from kyverno_mp.background.update_request import Place, Task
from kyverno_mp.errors import DependencyError, InputError
from kyverno_mp.program.generate.pattern import Generated


class _Notes:
    """Notes the writes of the runner without making them; a Writer and a Record."""

    def __init__(
        self, planner: Planner, register: KindRegister, preview: Preview
    ) -> None:
        self._planner = planner
        self._register = register
        self._found = preview
        self._added: list[GeneratedKind] = []
        self.cause = Cause("", None)
        """The cause of the next writes."""

    def place_of(self, generated: Generated) -> Place:
        return self._planner.downstream.place_of(generated)

    def find(
        self,
        selector: Selector,
        kinds: Collection[tuple[str, str]] | None,
        namespace: str = "",
    ) -> Iterator[Found]:
        return self._planner.downstream.find(selector, kinds, namespace)

    def write(
        self,
        generated: Generated,
        *,
        synchronizes: bool,
        server_side: bool,
        owned: Selector | None = None,
        reads_first: bool = False,
    ) -> Done:
        del reads_first  # A preview always reads first.
        planned = self._planner.write(
            self.cause,
            generated,
            synchronizes=synchronizes,
            server_side=server_side,
            owned=owned,
        )
        if planned is None:
            self._found.unchanged += 1
            return Done(KEPT)
        self._found.planned.append(planned)
        return Done(CREATED if planned.action == CREATE else UPDATED)

    def delete(self, generated: Found, _selector: Selector) -> bool:
        self._found.planned.append(self._planner.delete(self.cause, generated))
        return True

    def of(self, policy: str) -> Entry:
        return self._register.of(policy).with_kinds(self._added)

    def begin(
        self, _policy: str, kinds: Iterable[GeneratedKind], *, deletes: bool
    ) -> bool:
        del deletes
        self._added += kinds
        return False

    def end(
        self,
        _policy: str,
        _kinds: Iterable[GeneratedKind],
        *,
        written: Iterable[GeneratedKind],
        deletes: bool,
    ) -> bool:
        del written, deletes
        return False


@dataclass(frozen=True, slots=True)
class GeneratingPreviewer:
    """Compares the objects that policies generate with the existing ones."""

    dependencies: BackgroundDependencies
    policies: Generators
    kinds: Kinds
    triggers: Triggers
    register: KindRegister
    planner: Planner

    @property
    def _downstream(self) -> Downstream:
        return self.planner.downstream

    def preview(self, policy: ReadyGenerating) -> Preview:
        """Return the planned changes of a policy. Raises: DependencyError."""
        name = policy.ir.policy.name
        later = [] if policy.ir.generates_existing else [name]
        preview = Preview(policy.stored, later=later)
        notes = _Notes(self.planner, self.register, preview)
        generating = Generating(
            *(self.dependencies, self.policies, self.triggers, notes, notes),
            Evaluation(self.dependencies, self.policies, self.kinds),
            lambda _policy: None,
        )
        refusals = Refusals()
        for task in self._tasks(policy, refusals):
            notes.cause = Cause(name, task.trigger)
            try:
                generating.run(task, policy)
            except (InputError, DependencyError) as error:
                problem = f"{name}, {task.trigger.shown}: {error.message}"
                preview.problems.append(problem)
        preview.problems += refusals.texts
        return preview

    def _tasks(self, policy: ReadyGenerating, refusals: Refusals) -> list[Task]:
        events = GeneratingEvents(
            *(self.dependencies, self.policies),
            Existing(self.dependencies, self.kinds),
            *(self._downstream, self.register),
            submit=lambda _task: False,
            awaits_watches=lambda _policy: False,
        )
        return list(events.all_tasks(policy, refusals))
