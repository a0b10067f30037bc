"""Evaluate the scanned rules on the objects of a batch.

Room: reports. Takes: batches, the policies and data that the leader of the pod
publishes. Gives: BatchEvaluator, whose ``answer`` an evaluator process calls. Next:
process/roles/reports.py. May touch: the cluster data through program/ports.py; the log.
Source: docs/behaviour/controllers 6.4, 6.5; docs/behaviour/engine 8.5;
docs/pools.md 1; docs/reports.md (scans).

An object is evaluated as if an unknown user created it. The rules are linked once per
generation and kind; nothing else is cached.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import msgspec

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    SnapshotUnusable,
)
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import (
    REPORTS_BATCH_EVALUATED_S_MAX,
    REPORTS_BATCH_SHARE_S_MAX,
    REPORTS_OBJECT_S_MAX,
)
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.reports.batches import BATCH, ENCODER, Answer, Batch, Evaluated
from kyverno_mp.reports.plan import generations_of
from kyverno_mp.reports.policies.admission_rules import AdmissionRules
from kyverno_mp.reports.policies.cel_rules import CelRules
from kyverno_mp.reports.scan.found import DEFECT, FoundRows
from kyverno_mp.reports.scan.linking import ScannedPolicy, link
from kyverno_mp.reports.scan.reads import NotedReads
from kyverno_mp.reports.scan.requests import Requests
from kyverno_mp.reports.scanned_kinds import MAIN_SCANS, InCel
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PolicySegment

_log = logging.getLogger(__name__)
CelPolicies = Callable[[str], CelSegment[Any] | None]
"""Returns the newest policies of a segment."""
_LAGGING_S: Final = 2.0
"""How long an evaluator waits for policies that the coordinator already has."""
_POLL_S: Final = 0.02
BEHIND: Final = "the evaluator does not have the newest policies yet"
POSTPONED: Final = "earlier objects of the batch take too long"
STATUSES: Final = {"warn": "warning"}
"""Words of the settings that differ from the statuses of results."""


class BatchTime:
    """The time that each namespace has used of a batch; one thread uses it.

    The rules of one namespace can wait for servers that do not answer. Its remaining
    objects are then postponed, so that the other objects of the batch are evaluated,
    and the batch is answered before its evaluator counts as dead.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Begin with a batch; ``now_ns``: the monotonic time."""
        self._now_ns = now_ns
        self._begun_ns = now_ns()
        self._used_ns: Counter[str] = Counter()

    def is_over(self, namespace: str) -> bool:
        """Return whether the objects of a namespace are postponed."""
        passed_ns = self._now_ns() - self._begun_ns
        used_ns = self._used_ns[namespace]
        return (
            passed_ns >= REPORTS_BATCH_EVALUATED_S_MAX * 10**9
            or used_ns >= REPORTS_BATCH_SHARE_S_MAX * 10**9
        )

    @contextmanager
    def used_by(self, namespace: str) -> Iterator[None]:
        """Add the time of the block to a namespace's."""
        begun_ns = self._now_ns()
        try:
            yield
        finally:
            self._used_ns[namespace] += self._now_ns() - begun_ns


class BatchEvaluator:
    """Answers batches; not thread-safe."""

    def __init__(
        self,
        policies: Callable[[], PolicySegment | None],
        engine: Engine,
        *,
        types: frozenset[str],
        results: frozenset[str],
        is_excluded: Callable[[Request], bool] = lambda _request: False,
        cel_policies: CelPolicies = lambda _segment: None,
    ) -> None:
        """``types`` of rules and ``results`` that the settings report."""
        self._policies = policies
        self._cel_policies = cel_policies
        self._reads = NotedReads()
        data = self._reads.of(engine.cluster_data)
        self._engine = Engine(data, engine.clock)
        self._types = types
        self._statuses = frozenset(STATUSES.get(result, result) for result in results)
        self._is_excluded = is_excluded
        self._requests = Requests(data.namespaces)
        self._admission = AdmissionRules(data.objects, data.scopes)
        self._cel = {
            scan.kind.segment: CelRules(data.cel, types, scan) for scan in MAIN_SCANS
        }
        self._segment: PolicySegment | None = None
        self._linked: dict[tuple[str, str, str], list[ScannedPolicy]] = {}

    def answer(self, content: bytes) -> bytes:
        """Answer one message."""
        return ENCODER.encode(self.evaluate(BATCH.decode(content)))

    def evaluate(self, batch: Batch) -> Answer:
        """Evaluate the objects of a batch."""
        segment = newest(self._policies, batch.generation)
        if segment is None:
            return none_of(batch, 0, "no policies are published yet")
        if segment is not self._segment:
            self._segment, self._linked = segment, {}
        resource = Resource(
            group=batch.group,
            version=batch.version,
            plural=batch.plural,
            kind=batch.kind,
        )
        try:
            in_cel = {name: self._cel_policies(name) for name in self._cel}
            if is_behind(in_cel, batch):
                return none_of(batch, segment.generation, BEHIND)
            only = None if batch.only is None else frozenset(batch.only)
            for name, rules in self._cel.items():
                rules.begin(in_cel[name], resource, only)
            self._admission.begin(batch.documents, only)
            policies = self._policies_of(segment, resource)
            if only is not None:
                policies = [
                    policy for policy in policies if not only.isdisjoint(policy.keys)
                ]
        except (DependencyError, SnapshotUnusable) as error:
            return none_of(batch, segment.generation, error.message)
        except Exception:  # noqa: BLE001 - the batches of other kinds have results
            _log.exception("the policies for %s cannot be linked", resource.name)
            return none_of(batch, segment.generation, DEFECT)
        passed = BatchTime(self._engine.now_ns)
        results = tuple(
            self._evaluate(resource, policies, raw, passed) for raw in batch.objects
        )
        return Answer(segment.generation, results, generations_of(in_cel))

    def _policies_of(
        self, segment: PolicySegment, resource: Resource
    ) -> list[ScannedPolicy]:
        key = (resource.group, resource.version, resource.kind)
        linked = self._linked.get(key)
        if linked is None:
            linked = self._linked[key] = list(link(segment, resource, self._types))
        return linked

    def _evaluate(
        self,
        resource: Resource,
        policies: list[ScannedPolicy],
        raw: bytes,
        passed: BatchTime,
    ) -> Evaluated:
        try:
            request = self._requests.of(resource, msgspec.json.decode(raw))
            if self._is_excluded(request):
                return Evaluated()
            if passed.is_over(request.namespace):
                return Evaluated(problem=POSTPONED)
            with passed.used_by(request.namespace):
                return self._found(resource, policies, request)
        except (DependencyError, SnapshotUnusable) as error:
            hides = hides_values(resource.kind)
            return Evaluated(problem=withheld(error.code) if hides else error.message)
        except Exception as error:  # noqa: BLE001 - the other objects have results
            _log.error(
                "an object of %s cannot be evaluated (%s)",
                *(resource.name, type(error).__name__),
                exc_info=None if hides_values(resource.kind) else error,
            )
            return Evaluated(problem=DEFECT)

    def _found(
        self, resource: Resource, policies: list[ScannedPolicy], request: Request
    ) -> Evaluated:
        deadline_ns = self._engine.now_ns() + REPORTS_OBJECT_S_MAX * 10**9
        context = self._engine.open(request, deadline_ns)
        found_rows = FoundRows(request.kind, self._statuses)
        self._reads.begin()
        for policy in policies:
            try:
                found_rows.add(policy.ir, self._results(policy, context))
            except (DependencyError, SnapshotUnusable) as error:
                names = [rule.name for rule in policy.rules]
                found_rows.wait(policy.ir, names, error)
        for ir, rule_result in self._admission.results(
            request, resource, context.runtime
        ):
            if isinstance(rule_result, RuleResult):
                found_rows.add(ir, [rule_result])
            else:
                found_rows.wait(ir, [ir.name], rule_result)
        in_cel = (
            rules.results(request, resource, context.runtime)
            for rules in self._cel.values()
        )
        for compiled, rule_result in chain.from_iterable(in_cel):
            if isinstance(rule_result, RuleResult):
                found_rows.add(compiled.policy, [rule_result])
            else:
                found_rows.wait(compiled.policy, [""], rule_result)
        found_rows.is_outage = self._reads.has_failed
        return found_rows.evaluated()

    def _results(
        self, policy: ScannedPolicy, context: RequestContext
    ) -> list[RuleResult]:
        """Evaluate a policy; a failure is an error result, never no result.

        Raises: DependencyError, except for timeouts.
        """
        if policy.linked is None:
            assert policy.failure is not None
            return policy.not_evaluated(context.request, policy.failure)
        try:
            # The budget that the previous policy used up does not affect this policy.
            with contextlib.suppress(BudgetExceeded):
                context.runtime.check_clock()
            return self._engine.explain(policy.linked, context).results
        except DeadlinePassed as error:
            failure: Exception = error
        except (DependencyError, SnapshotUnusable):
            raise
        except Exception as error:  # noqa: BLE001 - the other policies have results
            hides = hides_values(context.request.kind)
            # A traceback ends with the error's text, which may quote a value.
            _log.error(
                "policy %s cannot be evaluated (%s)",
                *(policy.ir.key, type(error).__name__),
                exc_info=None if hides else error,
            )
            failure = error
        return policy.not_evaluated(context.request, failure)


def newest(
    policies: Callable[[], PolicySegment | None], generation: int
) -> PolicySegment | None:
    """Return the newest policies; wait briefly for the coordinator's version."""
    end_s = time.monotonic() + _LAGGING_S
    while True:
        segment = policies()
        is_behind = segment is None or segment.generation < generation
        if not is_behind or time.monotonic() >= end_s:
            return segment
        time.sleep(_POLL_S)


def is_behind(in_cel: InCel, batch: Batch) -> bool:
    """Return whether the coordinator already has newer policies in CEL."""
    generations = generations_of(in_cel).items()
    return any(
        generation < batch.cel_generations.get(name, 0)
        for name, generation in generations
    )


def none_of(batch: Batch, generation: int, problem: str) -> Answer:
    """Return an answer in which no object of a batch could be evaluated."""
    return Answer(generation, (Evaluated(problem=problem),) * len(batch.objects))
