"""Evaluate the image rules on the objects of a batch.

Room: reports. Takes: batches, the policies that the leader of the pod publishes, the
ports to registries. Gives: ImageEvaluator, whose ``answer`` a thread of an evaluator
calls. Next: process/roles/reports.py. May touch: registries and the cluster data
through program/ports.py; the log.
Source: docs/behaviour/controllers 6.4; docs/behaviour/images 2.1, 8; Kyverno
pkg/controllers/report/utils/scanner.go.

Images are verified as if the object were created: the verification record in its
annotations is ignored.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    RegistryUnavailable,
    SnapshotUnusable,
)
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import REPORTS_IMAGES_OBJECT_S_MAX
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.image_policies.scope import Begin, Images
from kyverno_mp.program.images.record import without_record
from kyverno_mp.program.images.rule import ImageState
from kyverno_mp.program.images.verification import verify_policy
from kyverno_mp.program.reporting import decisive
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.reports.batches import BATCH, ENCODER, Answer, Batch, Evaluated
from kyverno_mp.reports.plan import generations_of
from kyverno_mp.reports.policies.cel_rules import CelRules
from kyverno_mp.reports.scan.evaluator import (
    BEHIND,
    STATUSES,
    CelPolicies,
    is_behind,
    newest,
    none_of,
)
from kyverno_mp.reports.scan.found import DEFECT, FoundRows
from kyverno_mp.reports.scan.linking import ScannedImages, link_images
from kyverno_mp.reports.scan.outages import Noted, NotedPolicyImages, NotedReview
from kyverno_mp.reports.scan.requests import Requests
from kyverno_mp.reports.scanned_kinds import IMAGE_SCAN
from kyverno_mp.snapshot.policies import PolicySegment

_log = logging.getLogger(__name__)
Counts = Callable[[], Iterable[tuple[str, tuple[str, ...], int]]]


class ImageEvaluator:
    """Answers batches; not thread-safe."""

    def __init__(  # noqa: PLR0913 - a segment for each kind
        self,
        policies: Callable[[], PolicySegment | None],
        cel_policies: CelPolicies,
        engine: Engine,
        begin: Begin | None,
        *,
        results: frozenset[str],
        is_excluded: Callable[[Request], bool] = lambda _request: False,
        counts: Counts = lambda: (),
    ) -> None:
        """``begin``: begins the images of one review of ImageValidatingPolicies.

        ``results``: those that the settings report. ``counts``: returns the counts
        since the last call.
        """
        self._policies = policies
        self._cel_policies = cel_policies
        self._engine = engine
        self._begin = begin
        self._statuses = frozenset(STATUSES.get(word, word) for word in results)
        self._is_excluded = is_excluded
        self._counts = counts
        data = engine.cluster_data
        self._requests = Requests(data.namespaces)
        self._noted = Noted()
        self._images = Images(None)
        scan = IMAGE_SCAN._replace(results=self._verdicts)
        self._cel = CelRules(data.cel, frozenset({scan.kind.rule_type}), scan)
        self._segment: PolicySegment | None = None
        self._linked: dict[tuple[str, str, str], list[ScannedImages]] = {}

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
            images = self._cel_policies(IMAGE_SCAN.kind.segment)
            in_cel = {IMAGE_SCAN.kind.segment: images}
            if is_behind(in_cel, batch):
                return none_of(batch, segment.generation, BEHIND)
            self._cel.begin(images, resource)
            policies = self._policies_of(segment, resource)
        except (DependencyError, SnapshotUnusable) as error:
            return none_of(batch, segment.generation, error.message)
        except Exception:  # noqa: BLE001 - the batches of other kinds have results
            _log.exception("the policies for %s cannot be linked", resource.name)
            return none_of(batch, segment.generation, DEFECT)
        results = tuple(
            self._evaluate(resource, policies, raw) for raw in batch.objects
        )
        generations, counts = generations_of(in_cel), tuple(self._counts())
        return Answer(segment.generation, results, generations, counts)

    def _policies_of(
        self, segment: PolicySegment, resource: Resource
    ) -> list[ScannedImages]:
        key = (resource.group, resource.version, resource.kind)
        linked = self._linked.get(key)
        if linked is None:
            linked = self._linked[key] = list(link_images(segment, resource))
        return linked

    def _evaluate(
        self, resource: Resource, policies: list[ScannedImages], raw: bytes
    ) -> Evaluated:
        hides = hides_values(resource.kind)
        try:
            request = self._requests.of(resource, msgspec.json.decode(raw))
            if self._is_excluded(request):
                return Evaluated()
            return self._found(resource, policies, request)
        except (DependencyError, SnapshotUnusable) as error:
            return Evaluated(problem=withheld(error.code) if hides else error.message)
        except Exception as error:  # noqa: BLE001 - the other objects have results
            _log.error(
                "images of an object of %s cannot be verified (%s)",
                *(resource.name, type(error).__name__),
                exc_info=None if hides else error,
            )
            return Evaluated(problem=DEFECT)

    def _found(
        self, resource: Resource, policies: list[ScannedImages], request: Request
    ) -> Evaluated:
        request = copy_of(request)
        # SAFETY: a record by a review or a user is not a verification.
        request.object = without_record(request.object)
        deadline_ns = self._engine.now_ns() + REPORTS_IMAGES_OBJECT_S_MAX * 10**9
        found_rows = FoundRows(request.kind, self._statuses)
        begin = self._engine.cluster_data.reviewed_images
        images = None if begin is None else begin()
        for policy in policies:
            self._noted = Noted()
            noted = None if images is None else NotedReview(images, self._noted)
            try:
                results = self._results(policy, request, noted, deadline_ns)
            except (DependencyError, SnapshotUnusable) as error:
                names = [rule.name for rule in policy.rules]
                found_rows.wait(policy.ir, names, error)
                continue
            found_rows.add(policy.ir, decisive(map(self._shown, results)))
            found_rows.is_outage = found_rows.is_outage or bool(self._noted.problem)
        self._images = Images(None if self._begin is None else self._begun)
        self._noted = Noted()
        runtime = self._engine.open(request, deadline_ns).runtime
        answers = []
        for compiled, rule_result in self._cel.results(request, resource, runtime):
            answers.append((compiled.policy, rule_result, self._noted.problem))
            self._noted.problem = ""
        self._images.settle()
        for ir, rule_result, self._noted.problem in answers:
            if isinstance(rule_result, RuleResult):
                found_rows.add(ir, [self._shown(rule_result)])
                found_rows.is_outage = found_rows.is_outage or bool(self._noted.problem)
            else:
                found_rows.wait(ir, [""], rule_result)
        return found_rows.evaluated()

    def _results(
        self,
        policy: ScannedImages,
        request: Request,
        images: NotedReview | None,
        deadline_ns: int,
    ) -> list[RuleResult]:
        """Verify the images of an object; every failure is an error result.

        Raises: DependencyError, except for registries and timeouts.
        """
        if policy.failure is not None:
            return policy.not_evaluated(request, policy.failure)
        if images is None:
            reason = "registries are not read here"
            return policy.not_evaluated(
                request, RegistryUnavailable("registry.none", reason)
            )
        try:
            context = self._engine.open(request, deadline_ns)
            state = ImageState(images, request.object)
            return verify_policy(policy.ir, policy.linked, context, state).results
        except (DeadlinePassed, RegistryUnavailable) as error:
            self._noted.problem = self._noted.problem or error.message
            failure: Exception = error
        except (DependencyError, SnapshotUnusable):
            raise
        except Exception as error:  # noqa: BLE001 - the other policies have results
            # A traceback ends with the error's text, which may quote a value.
            _log.error(
                "policy %s cannot be evaluated (%s)",
                *(policy.ir.key, type(error).__name__),
                exc_info=None if hides_values(request.kind) else error,
            )
            failure = error
        return policy.not_evaluated(request, failure)

    def _begun(self) -> PolicyImages:
        assert self._begin is not None
        # Records outages for whichever policy is being evaluated.
        return NotedPolicyImages(self._begin(), self._noted)

    def _verdicts(
        self, linked: LinkedImagePolicy, facts: Facts, shared: Shared
    ) -> Iterator[RuleResult | None]:
        try:
            for answer in linked.evaluate(facts, shared, self._images):
                yield answer.result
        except DeadlinePassed as error:
            self._noted.problem = self._noted.problem or error.message
            raise

    def _shown(self, rule_result: RuleResult) -> RuleResult:
        """Return a result, or an error result if an outage caused the failure.

        SAFETY: an attestor that could not be reached has not failed.
        """
        problem = self._noted.problem
        if rule_result.status != result.FAIL or not problem:
            return rule_result
        message = cut(f"the images could not be verified: {problem}")
        return replace(rule_result, status=result.ERROR, message=message)
