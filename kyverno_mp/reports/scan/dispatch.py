"""Send the objects of the feed to evaluators, and write the results.

Room: reports. Takes: a Feed, Evaluators, a Writer, the current Plan. Gives: Dispatch,
whose ``work`` is the body of a thread. Next: reports/start.py runs some of them. May
touch: the API server through reports/writer.py.
Source: docs/pools.md 1, 4.

A failure loses nothing: the object is evaluated again after a back-off.
"""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from kyverno_mp.errors import DependencyError, LeaseLost, StateError
from kyverno_mp.kube.resource import Resource
from kyverno_mp.reports.batches import ANSWER, ENCODER, Answer, Batch, Evaluated
from kyverno_mp.reports.feed import Feed, Item, settle
from kyverno_mp.reports.fingerprints import key_of
from kyverno_mp.reports.keeping import Evaluation
from kyverno_mp.reports.plan import Plan, signature_of
from kyverno_mp.reports.scan.dependencies import Evaluators, ReportsMetrics
from kyverno_mp.reports.writer import FOREIGN, SAME, Applied, Writer
from kyverno_mp.telemetry.families import (
    DEFECTS,
    IMAGE_CACHE,
    REGISTRY_CALLS,
    REPORTS_EVALUATED,
    REPORTS_STAGES,
)
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
NAME: Final = "reports-controller"
EVALUATED: Final = "evaluated"
OUTDATED: Final = "outdated"
FAILED: Final = "failed"
_STAGES: Final = ("waiting", "evaluating", "turn", "writing")
_LAGGING: Final = Evaluated(
    problem="the evaluator does not have the newest policies yet"
)


COUNTED: Final = {family.name: family for family in (IMAGE_CACHE, REGISTRY_CALLS)}
"""The counters of evaluators, which have no metrics page."""


class Outcomes(Protocol):
    """Receives the outcomes of objects; any thread may call it."""

    def failed(self, item: Item) -> None:
        """Retry an object later."""

    def found(
        self, item: Item, applied: Applied, evaluated: Evaluated, plan: Plan
    ) -> None:
        """Handle the results after the rows of an object were written."""

    def succeeded(self, item: Item, *, is_written: bool) -> None:
        """Record that an object's report is up to date.

        ``is_written``: the report had to be written.
        """


class _Times(NamedTuple):
    """The times when a batch was taken and answered, in seconds."""

    taken_s: float
    answered_s: float


class Dispatch:
    """Processes batches one after the other; several threads may work."""

    def __init__(  # noqa: PLR0913 - the parts of one term as holder
        self,
        feed: Feed,
        evaluators: Evaluators,
        writer: Writer,
        plan: Callable[[], Plan],
        metrics: ReportsMetrics,
        outcomes: Outcomes,
        *,
        clock_s: Callable[[], float],
    ) -> None:
        self._clock_s = clock_s
        self._feed = feed
        self._evaluators = evaluators
        self._writer = writer
        self._plan = plan
        self._metrics = metrics
        self._outcomes = outcomes
        self.abandoned = 0
        """Number of objects that no evaluator could evaluate."""

    def work(self) -> None:
        """Process batches until the feed is closed."""
        while items := self._feed.take():
            self._deal_with(items)

    def work_due(self) -> int:
        """Process the waiting batches; return the number of objects."""
        count = 0
        while items := self._feed.take(0):
            count += len(items)
            self._deal_with(items)
        return count

    def _deal_with(self, items: list[Item]) -> None:
        try:
            self._dispatch(items)
        except CancelledError:
            return
        except Exception:  # noqa: BLE001 - a dead thread would stop the pool
            _log.exception("unexpected error with a batch, trying again")
            self._metrics.count(DEFECTS, (NAME,))
            for item in items:
                self._outcomes.failed(item)
        finally:
            for item in items:
                settle(item, is_written=False)
            self._feed.done(items)

    def _dispatch(self, items: list[Item]) -> None:
        current = [item for item in items if item.is_current]
        if not current:
            return
        plan_before, taken_s = self._plan(), self._clock_s()
        try:
            answer = self._ask(current, plan_before)
        except StateError as error:
            self._give_up(current, error)
            return
        self._count(answer)
        is_behind = answer.generation < plan_before.generation
        is_ahead = _is_ahead(answer, plan_before)
        times = _Times(taken_s, self._clock_s())
        for item, evaluated in zip(current, answer.objects, strict=True):
            result = _LAGGING if is_behind else evaluated
            self._take(item, result, plan_before, times, is_ahead=is_ahead)

    def _ask(self, items: list[Item], plan: Plan) -> Answer:
        """Return the answer to a batch. Raises: StateError when it kills evaluators."""
        resource, only = items[0].source.resource, items[0].only
        batch = Batch(
            plan.generation,
            resource.group,
            resource.version,
            resource.kind,
            tuple(item.raw for item in items),
            resource.plural,
            plan.documents_of(resource),
            plan.cel_generations,
            None if only is None else tuple(only),
        )
        return ANSWER.decode(self._evaluators.submit(ENCODER.encode(batch)).result())

    def _count(self, answer: Answer) -> None:
        for name, labels, number in answer.counts:
            for _ in range(number):
                self._metrics.count(COUNTED[name], labels)

    def _give_up(self, items: list[Item], error: StateError) -> None:
        """Find the object of a batch that kills evaluators."""
        if len(items) > 1:
            for item in items:
                self._dispatch([item])
            return
        self.abandoned += 1
        self._metrics.count(REPORTS_EVALUATED, (FAILED,))
        _log.error("%s of %s: %s", items[0].key, items[0].source.resource.name, error)

    def _take(
        self,
        item: Item,
        evaluated: Evaluated,
        plan_before: Plan,
        times: _Times,
        *,
        is_ahead: bool,
    ) -> None:
        """Write the results of one object, according to the plan.

        ``is_ahead``: the policies were newer than the plan. They may be reverted before
        the plan follows, so the object is evaluated again.
        """
        if not item.is_current:
            # A newer version will follow, or the object is gone.
            self._metrics.count(REPORTS_EVALUATED, (OUTDATED,))
            return
        problem, begun_s = evaluated.problem, self._clock_s()
        is_written = False
        if not problem or evaluated.waiting:
            plan = self._plan()
            reviewed = item.reviewed.rows if item.reviewed else ()

            def still_counts() -> bool:
                now = self._plan()
                agrees = now is plan_before or _agree(
                    now, plan_before, item.source.resource
                )
                # The signature does not cover the rules of these rows.
                live = now is plan or all(key_of(row) in now.live for row in reviewed)
                is_newest = item.is_current and not self._feed.is_overtaken(item)
                return agrees and live and is_newest

            evaluation = Evaluation(
                evaluated, plan, item.only, still_counts, reviewed, self._plan
            )
            try:
                applied = self._writer.apply(item.subject, evaluation)
                settle(item, is_written=True)
                is_written = applied.outcome not in (SAME, FOREIGN)
                self._outcomes.found(item, applied, evaluated, plan)
            except LeaseLost:
                return
            except (DependencyError, StateError, *UNDECODABLE) as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - the other objects have results
                _log.exception("unexpected error with a report")
                self._metrics.count(DEFECTS, (NAME,))
                problem = repr(error)
        if problem:
            _log.warning("report of %s/%s: %s", *item.key, problem)
            self._metrics.count(REPORTS_EVALUATED, (FAILED,))
            self._outcomes.failed(item)
            return
        if is_written:
            self._observe(item, times, begun_s)
        # The newer evaluation may have compared its rows with the report before this.
        is_overtaken = is_written and self._feed.is_overtaken(item)
        if evaluated.is_outage or is_ahead or is_overtaken:
            self._outcomes.failed(item)
        else:
            self._outcomes.succeeded(item, is_written=is_written)
        self._metrics.count(REPORTS_EVALUATED, (EVALUATED,))

    def _observe(self, item: Item, times: _Times, begun_s: float) -> None:
        """Observe the stages in which a newly written report has waited."""
        cuts = (item.since_s, *times, begun_s, self._clock_s())
        cause = "object" if item.is_change else "scan"
        for stage, (start_s, end_s) in zip(_STAGES, pairwise(cuts), strict=True):
            labels = (cause, stage)
            self._metrics.observe(REPORTS_STAGES, labels, max(0.0, end_s - start_s))


def _agree(plan: Plan, plan_before: Plan, resource: Resource) -> bool:
    """Return whether results for one plan may be written according to another."""
    return signature_of(plan.of(resource)) == signature_of(plan_before.of(resource))


def _is_ahead(answer: Answer, plan: Plan) -> bool:
    """Return whether an evaluator's policies were newer than the plan."""
    return answer.generation > plan.generation or any(
        generation > plan.cel_generations.get(name, 0)
        for name, generation in answer.cel_generations.items()
    )
