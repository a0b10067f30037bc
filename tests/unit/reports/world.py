"""A small cluster on the fake API server, and its manually driven reports pool."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.cel_kinds.image_validating_policy import compile_image_policy
from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.cel_kinds.mutating_policy import compile_mutating_policy
from kyverno_mp.compiler.cel_kinds.policies import compile_generating_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.egress.clients import open_calls
from kyverno_mp.egress.config_maps import LiveConfigMaps
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy, MutatingPolicy
from kyverno_mp.policy.cel_kinds.served import decode_served, is_served
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_validating_policy,
    is_validating_policy,
)
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.program.engine import Clock as EngineClock
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.queues.clock import Clock
from kyverno_mp.reports.feed import Pace
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.evaluator import BatchEvaluator
from kyverno_mp.reports.scan.images import ImageEvaluator
from kyverno_mp.reports.scan.requests import exclusions_of
from kyverno_mp.reports.start import Reports
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.cel_segments import (
    CelSegment,
    GeneratingSegment,
    ImageSegment,
    MutatingSegment,
    ValidatingSegment,
)
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
)
from kyverno_mp.webhook.images import ServedImages
from tests.unit.cleanup.cluster import Recorded, resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import real_ns, wait_for

Json = Any
PODS = "/api/v1/namespaces/{}/pods"
NAMESPACES = "/api/v1/namespaces"
REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/{}/policyreports"
CLUSTER_REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/clusterpolicyreports"
OPEN_REPORTS = "/apis/openreports.io/v1alpha1/namespaces/{}/reports"
NOW_S = 1_767_225_600


class World:
    """The leader's published data; a test changes it."""

    def __init__(self) -> None:
        self.generation = 0
        self.segment: PolicySegment | None = None
        self.cel: ValidatingSegment | None = None
        self.mutating: MutatingSegment | None = None
        self.generating: GeneratingSegment | None = None
        self.images: ImageSegment | None = None
        self.labels: dict[str, dict[str, str]] = {"a": {}, "b": {}}
        self.labels_at = 1
        self.data: tuple[int, ...] = (1,)

    def serve(self, *policies: Json, exceptions: tuple[Json, ...] = ()) -> None:
        """Publish policies."""
        self.generation += 1
        given = (*policies, *exceptions)
        of_cel = [one for one in given if is_validating_policy(one)]
        self._serve_cel(of_cel)
        self._serve_mutating([one for one in given if is_served(one)])
        self._serve_generating([one for one in given if is_served(one)])
        self._serve_images([one for one in given if is_served(one)])
        found = [examine(one).document for one in exceptions if one not in of_cel]
        known = [one for one in found if isinstance(one, PolicyException)]
        assert len(known) == len(found)
        encoded = []
        for raw in policies:
            if is_served(raw):
                continue
            document = examine(raw)
            assert not document.problems
            assert isinstance(document.document, ClusterPolicy | Policy)
            encoded.append(
                encode_policy(compile_policy(document.document, known, verifies=True))
            )
        writer = PoliciesWriter()
        content = writer.encode(
            tuple(encoded), generation=self.generation, salt=bytes(16)
        )
        self.segment = PolicySegment(Segment.from_bytes(content, POLICIES))

    def _serve_cel(self, raws: list[Json]) -> None:
        found = [decode_validating_policy(raw) for raw in raws]
        exceptions = [one for one in found if isinstance(one, CelPolicyException)]
        encoded = [
            encode_cel_policy(compile_validating_policy(one, exceptions))
            for one in found
            if not isinstance(one, CelPolicyException)
        ]
        content = PoliciesWriter().encode(
            encoded,
            generation=self.generation,
            salt=bytes(16),
            segment=VALIDATING_POLICY.segment,
        )
        self.cel = CelSegment(
            Segment.from_bytes(content, VALIDATING_POLICY.segment), ValidatingPolicyIR
        )

    def _serve_mutating(self, raws: list[Json]) -> None:
        found = [decode_served(raw) for raw in raws]
        exceptions = [one for one in found if isinstance(one, CelPolicyException)]
        encoded = [
            encode_cel_policy(compile_mutating_policy(one, exceptions))
            for one in found
            if isinstance(one, MutatingPolicy)
        ]
        content = PoliciesWriter().encode(
            encoded,
            generation=self.generation,
            salt=bytes(16),
            segment=MUTATING_POLICY.segment,
        )
        segment = Segment.from_bytes(content, MUTATING_POLICY.segment)
        self.mutating = CelSegment(segment, MutatingPolicyIR)

    def _serve_generating(self, raws: list[Json]) -> None:
        found = [decode_served(raw) for raw in raws]
        content = PoliciesWriter().encode(
            [
                encode_cel_policy(compile_generating_policy(one, ()))
                for one in found
                if isinstance(one, GeneratingPolicy)
            ],
            generation=self.generation,
            salt=bytes(16),
            segment=GENERATING_POLICY.segment,
        )
        segment = Segment.from_bytes(content, GENERATING_POLICY.segment)
        self.generating = CelSegment(segment, GeneratingPolicyIR)

    def _serve_images(self, raws: list[Json]) -> None:
        found = [decode_served(raw) for raw in raws]
        content = PoliciesWriter().encode(
            [
                encode_cel_policy(compile_image_policy(one))
                for one in found
                if isinstance(one, ImageValidatingPolicy)
            ],
            generation=self.generation,
            salt=bytes(16),
            segment=IMAGE_VALIDATING_POLICY.segment,
        )
        self.images = CelSegment(
            Segment.from_bytes(content, IMAGE_VALIDATING_POLICY.segment),
            ImageValidatingPolicyIR,
        )

    def label(self, namespace: str, **labels: str) -> None:
        """Publish labels of a namespace."""
        self.labels[namespace] = labels
        self.labels_at += 1

    def policies(self) -> PolicySegment | None:
        return self.segment

    def cel_policies(self, segment: str) -> CelSegment[Any] | None:
        return {
            VALIDATING_POLICY.segment: self.cel,
            MUTATING_POLICY.segment: self.mutating,
            IMAGE_VALIDATING_POLICY.segment: self.images,
            GENERATING_POLICY.segment: self.generating,
        }[segment]

    def namespace_labels(self) -> tuple[int, Callable[[], Mapping[str, bytes]]]:
        return self.labels_at, lambda: {
            name: msgspec.json.encode(value) for name, value in self.labels.items()
        }

    def data_generations(self) -> tuple[int, ...]:
        return self.data


class Namespaces:
    """A fake port of namespaces."""

    def __init__(self, world: World) -> None:
        self._world = world

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        return self._world.labels.get(namespace)


EvaluatorT = TypeVar("EvaluatorT", BatchEvaluator, ImageEvaluator)


class InProcess(Generic[EvaluatorT]):
    """One evaluator in the calling thread; ``faults`` fail the next batches."""

    def __init__(self, evaluator: EvaluatorT) -> None:
        self.evaluator: EvaluatorT = evaluator
        self.batches = 0
        self.objects = 0
        self.faults: list[Exception] = []

    def submit(self, content: bytes) -> "Future[bytes]":
        future: Future[bytes] = Future()
        self.batches += 1
        if self.faults:
            future.set_exception(self.faults.pop(0))
            return future
        answer = self.evaluator.answer(content)
        self.objects += len(msgspec.msgpack.decode(answer)[1])
        future.set_result(answer)
        return future


class Time:
    """Clocks that a test moves."""

    def __init__(self) -> None:
        # Deadlines of calls use the real clock.
        self.start_s = self.now_s = real_ns() / 1e9

    def monotonic_s(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(NOW_S + self.now_s - self.start_s, UTC)


class Term:
    """One term as holder: informers run, ``settle`` does the work."""

    def __init__(self, api: FakeApi, world: World, **settings: Any) -> None:
        cel: CelPorts = settings.pop("cel", CelPorts())
        images: ServedImages | None = settings.pop("images", None)
        receive = settings.pop("receive", None)
        is_filtered = settings.pop("is_filtered", lambda _request: False)
        self.api = api
        self.world = world
        self.time = Time()
        self.recorded = Recorded()
        self.holds = True
        self.successes: frozenset[str] | None = None
        known = Settings(namespace="kyverno", **settings)
        namespaces = Namespaces(world)
        clock = EngineClock(self.time.now, real_ns)
        client = api.client()
        objects = LiveObjects(client, LiveKinds(lambda: None, client))
        evaluator = BatchEvaluator(
            world.policies,
            Engine(
                ClusterData(
                    config_maps=LiveConfigMaps(None, client),
                    api_calls=open_calls(known, client),
                    namespaces=namespaces,
                    objects=objects,
                    scopes=objects,
                    cel=cel,
                ),
                clock,
            ),
            types=frozenset(known.reports_of.split(",")),
            results=frozenset(known.reports_results.split(",")),
            cel_policies=world.cel_policies,
            is_excluded=exclusions_of(known, is_filtered),
        )
        self.evaluators = InProcess(evaluator)
        self.image_evaluators: InProcess[ImageEvaluator] | None = None
        if images is not None:
            verifier = ImageEvaluator(
                world.policies,
                world.cel_policies,
                Engine(
                    ClusterData(
                        namespaces=namespaces,
                        cel=cel,
                        reviewed_images=images.begin,
                    ),
                    clock,
                ),
                images.policies,
                results=frozenset(known.reports_results.split(",")),
            )
            self.image_evaluators = InProcess(verifier)
        self.reports = Reports(
            ReportsDependencies(
                client=api.client(),
                evaluators=self.evaluators,
                image_evaluators=self.image_evaluators,
                published=world,
                metrics=self.recorded,
                events=self.recorded,
                successes=lambda: self.successes,
                settings=known,
                holds_lease=lambda: self.holds,
                health=self.recorded.health.append,
                receive=receive,
                clock=Clock(monotonic_s=self.time.monotonic_s, now=self.time.now),
            )
        )
        # One thread takes all batches, and time passes only if a test moves it.
        self.reports.feed._sharers = 1
        self.reports.feed._pace = Pace()

    def staleness(self) -> list[tuple[str, tuple[str, ...], float]]:
        """Return the observed delays from a change to its report."""
        return [one for one in self.recorded.observed if "staleness" in one[0]]

    def start(self) -> None:
        for informer in self.reports.stored.informers:
            informer.start()
            assert informer.wait_synced(60)

    def stop(self) -> None:
        # The threads of the term were never started.
        for lane in self.reports._lanes:
            lane.feed.close()
        for informer in self.informers:
            informer.stop()

    @property
    def informers(self) -> list[Any]:
        watches = [
            one for lane in self.reports._lanes for one in lane.scan.resources.values()
        ]
        return [
            *self.reports.stored.informers,
            *(one.watch.informer for one in watches),
            *self.reports.scan.admission.informers,
        ]

    def catch_up(self) -> None:
        """Wait until the caches have every change."""
        with self.api.lock:
            newest = self.api.version
        for informer in self.informers:
            wait_for(partial(_is_current, informer, newest))

    def settle(self) -> None:
        """Do all pending work, including follow-up work."""
        while True:
            done = 0
            for lane in self.reports._lanes:
                lane.scan.tick()
                self.catch_up()
                done += lane.dispatch.work_due()
                while lane.feed_due():
                    done += 1
            # The informers may have received changes during the work.
            self.catch_up()
            done += sum(lane.feed.pending for lane in self.reports._lanes)
            known = self.reports.stored.is_settled
            done += any(known(key) for key in self.reports.scan._unswept)
            resources = [
                one
                for lane in self.reports._lanes
                for one in lane.scan.resources.values()
            ]
            admission = self.reports.scan.admission
            is_behind = self.world.segment is not None and admission.has_changed
            now_s = self.time.now_s
            is_due = any(one.is_to_list(now_s) for one in resources)
            if not done and not is_behind and not is_due:
                return

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and do the work that becomes due."""
        self.time.now_s += seconds
        self.settle()


def _is_current(informer: Any, newest: int) -> bool:
    return int(informer.notified_version or 0) >= newest


@contextmanager
def term(api: FakeApi, world: World, **settings: Any) -> Iterator[Term]:
    """Hold the lease during the block."""
    one = Term(api, world, **settings)
    one.start()
    try:
        yield one
    finally:
        one.stop()


def new_cluster(api: FakeApi) -> World:
    """Let discovery serve the resources of the tests."""
    serve_kinds(api)
    return World()


def policy(name: str = "p", *rules: Json, namespace: str = "", **fields: Json) -> Json:
    """Return a policy; without rules, one that requires the label ``team``."""
    metadata = fields.pop("metadata", {})
    kind = "Policy" if namespace else "ClusterPolicy"
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": name, **where, **metadata},
        "spec": {"rules": list(rules) or [labelled()], **fields},
    }


def labelled(
    name: str = "r",
    *,
    label: str = "team",
    kinds: tuple[str, ...] = ("Pod",),
    **more: Json,
) -> Json:
    """Return a rule that requires a label."""
    return {
        "name": name,
        "match": {"any": [{"resources": {"kinds": list(kinds), **more}}]},
        "validate": {
            "message": f"the label {label} is required",
            "pattern": {"metadata": {"labels": {label: "?*"}}},
        },
    }


def pod(
    api: FakeApi,
    name: str = "x",
    *,
    namespace: str = "a",
    status: str = "",
    **labels: str,
) -> Json:
    """Store a Pod."""
    return api.put(
        f"{PODS.format(namespace)}/{name}",
        metadata={"labels": labels},
        spec={"containers": [{"name": "c", "image": "i"}]},
        status={"phase": status},
    )


def report_of(api: FakeApi, raw: Json, base: str = REPORTS) -> Json | None:
    """Return the report of an object."""
    metadata = raw["metadata"]
    where = base.format(metadata.get("namespace", ""))
    return stored(api, f"{where}/{metadata['uid']}")


def stored(api: FakeApi, path: str) -> Json | None:
    """Return an object, or None."""
    base, _, name = path.rpartition("/")
    with api.lock:
        for key, raw in api.objects.items():
            namespace = f"/namespaces/{key[1]}" if key[1] else ""
            if f"{key[0]}{namespace}/{key[2]}" == base and key[3] == name:
                return raw
    return None


def stored_reports(api: FakeApi) -> dict[str, Json]:
    """Return the reports without fields that the API server or the clock sets.

    K8S: the garbage collector deletes reports whose object is deleted.
    """
    with api.lock:
        uids = {
            raw["metadata"]["uid"]
            for key, raw in api.objects.items()
            if key[2] == "pods"
        }
        found = {
            key[3]: msgspec.json.decode(msgspec.json.encode(raw))
            for key, raw in api.objects.items()
            if key[2].endswith("policyreports") and key[3] in uids
        }
    for raw in found.values():
        for field in ("uid", "resourceVersion", "creationTimestamp", "generation"):
            raw["metadata"].pop(field, None)
        for row in raw["results"]:
            row.pop("timestamp")
    return found


def results(report: Json | None) -> list[tuple[str, str, str]]:
    """Return (policy, rule, result) of each row."""
    assert report is not None
    return [
        (one["policy"], one.get("rule", ""), one["result"]) for one in report["results"]
    ]


def writes(api: FakeApi) -> int:
    """Return the number of calls that wrote reports."""
    return api.count(r"^(POST|PUT|PATCH|DELETE) .*reports")


__all__ = ["resource"]
