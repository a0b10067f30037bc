"""Delete the generated objects of a deleted policy or rule.

Room: background. Takes: the labels and kinds of the objects. Gives: Owned, Deleter,
is_data, ``delete_named``. Next: background/generate/policy_events.py,
background/generate/generator.py, background/generating/events.py. May touch: the API
server through objects/downstream.py.
Source: docs/behaviour/controllers 5.5; docs/background.md.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kyverno_mp.background.objects.downstream import Found
from kyverno_mp.background.objects.labels import Selector
from kyverno_mp.background.refusals import Refusals
from kyverno_mp.background.update_request import Task
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.program.generate.labels import SOURCE_UID
from kyverno_mp.telemetry.families import BACKGROUND_WRITES


class Deleter(Protocol):
    """Finds and deletes generated objects: Downstream, or the notes of a preview."""

    def find(
        self,
        selector: Selector,
        kinds: Collection[tuple[str, str]] | None,
        namespace: str = "",
    ) -> Iterator[Found]:
        """Yield the objects that have all labels of the selector."""

    def delete(self, generated: Found, selector: Selector) -> bool:
        """Delete an object if its labels still match; return whether it was deleted."""


class Counts(NamedTuple):
    """Numbers of objects that were found, and of stale ones among them."""

    found: int
    stale: int


def is_data(generated: Found) -> bool:
    """Return whether an object is deleted with its rule or policy.

    KYVERNO: clones stay when their rule or policy is deleted.
    """
    return not generated.labels.get(SOURCE_UID)


@dataclass(frozen=True, slots=True)
class Owned:
    """The generated objects of these kinds with these labels.

    ``kinds`` None: of all kinds. ``namespace``: only in this one; "" = in all.
    """

    downstream: Deleter
    metrics: Metrics
    selector: Selector
    kinds: Collection[tuple[str, str]] | None
    namespace: str = ""

    def delete(self, is_stale: Callable[[Found], bool], refusals: Refusals) -> Counts:
        """Delete the stale objects; continue after a rejection, also by ``is_stale``.

        Raises: DependencyErrors except rejections, which ``refusals`` collects.
        """
        count = stale = 0
        with refusals.kept():
            for generated in self.downstream.find(
                self.selector, self.kinds, self.namespace
            ):
                count += 1
                with refusals.kept():
                    if not is_stale(generated):
                        continue
                    stale += 1
                    if self.downstream.delete(generated, self.selector):
                        self.metrics.count(BACKGROUND_WRITES, ("deleted",))
        return Counts(count, stale)


def delete_named(
    downstream: Deleter, metrics: Metrics, task: Task, selector: Selector
) -> None:
    """Delete the objects named by an upstream request that have the rule's labels.

    The other objects of a deleted policy are deleted by policy_events.py.
    """
    if task.request is None or not task.deletes:
        return
    named = task.request.status.generated_resources or ()
    kinds = {(named_object.api_version, named_object.kind) for named_object in named}
    places = {
        (named_object.kind, named_object.namespace, named_object.name)
        for named_object in named
    }
    refusals = Refusals()
    owned = Owned(downstream, metrics, selector, kinds)
    owned.delete(lambda generated: generated.place in places, refusals)
    refusals.raise_first()
