"""The webhook's service on a real engine and a real segment, in this process.

Used by fuzz and advisory tests: policies as YAML go through the same reading, checks,
compiler and segment as the leader's; reviews go through the same service as a worker's.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import orjson

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.recall import verdicts as recall
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.ports import NamespaceLabels, Roles, Triggers
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.waiting import still_ns

SALT = bytes(range(16))


@dataclass
class Recorded:
    """Codes of the errors that a service counted."""

    errors: list[str] = field(default_factory=list)
    results: list[PolicyResponse] = field(default_factory=list)

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Keep the results of the policies."""
        assert (request.uid, webhook, allowed, seconds) is not None
        self.results = list(responses)

    def audit(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        """Keep nothing."""

    def http(self, method: str, path: str, seconds: float) -> None:
        """Keep nothing."""

    def error(self, code: str) -> None:
        """Keep the code."""
        self.errors.append(code)


def segment_of(text: str) -> PolicySegment:
    """Return the segment of all policies and exceptions in a YAML text."""
    documents = [read(raw.raw, file="t")[0] for raw in load(text.encode(), file="t")]
    exceptions = [d for d in documents if isinstance(d, PolicyException)]
    policies = [d for d in documents if isinstance(d, ClusterPolicy | Policy)]
    encoded = [
        encode_policy(compile_policy(p, exceptions, verifies=True)) for p in policies
    ]
    content = PoliciesWriter().encode(encoded, generation=1, salt=SALT)
    return PolicySegment(Segment.from_bytes(content, POLICIES))


class Bench:
    """A service with the given policies; ``ask`` posts to it."""

    def __init__(  # noqa: PLR0913 - what tests vary, by name
        self,
        policies: str,
        *,
        cluster_data: ClusterData | None = None,
        namespaces: NamespaceLabels | None = None,
        roles: Roles | None = None,
        monotonic_ns: Callable[[], int] = still_ns,
        timeout_s: float = 10.0,
        triggers: Triggers | None = None,
        unproved_triggers: Triggers | None = None,
        is_proved: bool = True,
        background_user: str | None = None,
        long_lane: Any = None,
    ) -> None:
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=monotonic_ns)
        engine = Engine(cluster_data or ClusterData(), clock)
        segment = segment_of(policies)
        source: SegmentSource[LinkedRule] = SegmentSource(segment, link_rule)
        planner = ValidationPlanner(engine, source, background_user)
        mutations = MutationPlanner(engine, SegmentSource(segment, link_mutation))
        self.records = Recorded()
        self._is_proved = is_proved
        self.handlers = handlers_of(
            SnapshotEvaluate(lambda: planner), SnapshotMutate(lambda: mutations)
        )
        self._service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=monotonic_ns,
                timeout_ns=int(timeout_s * 1e9),
                namespaces=namespaces,
                roles=roles,
                triggers=triggers,
                unproved_triggers=unproved_triggers,
                background_user=background_user or "",
                long_lane=long_lane,
            ),
            self.handlers,
        )

    def post(self, body: bytes, path: bytes = b"/validate/fail") -> dict[str, Any]:
        """Post bytes; return the response. Raises: Refusal, as the transport sees it.

        The answer must be strict JSON in UTF-8 with the review's uid.
        """
        proof = self._is_proved
        answer = self._service.answer(SHARED[path], b"", body, is_proved=proof)
        assert isinstance(answer, bytes)
        response: dict[str, Any] = orjson.loads(answer)["response"]
        assert type(response["allowed"]) is bool
        assert type(response["uid"]) is str
        return response

    def ask(
        self, resource: Any, path: bytes = b"/validate/fail", **changes: Any
    ) -> dict[str, Any]:
        """Post a review of an object's creation in namespace ``default``."""
        return self.post(json.dumps(review(resource, **changes)).encode(), path)


def review(resource: Any, **changes: Any) -> dict[str, Any]:
    """Return an AdmissionReview of an object's creation; ``changes``: its fields."""
    given = resource if isinstance(resource, dict) else {}
    group, _, version = str(given.get("apiVersion") or "v1").rpartition("/")
    kind = str(given.get("kind") or "Pod")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {
                "group": group,
                "version": version,
                "resource": kind.lower() + "s",
            },
            "name": "x",
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": resource,
            "oldObject": None,
            "dryRun": False,
            **changes,
        },
    }


def pod(**spec: Any) -> dict[str, Any]:
    """Return a Pod with one container; ``spec`` adds to its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "example.org/c:1"}], **spec},
    }


@contextmanager
def everything_remembered() -> Iterator[None]:
    """Cache even the smallest policies, and look up every object."""
    with (
        patch.object(recall, "_WORTH_LEAST", 0),
        patch.object(recall, "_TRIES", 1 << 30),
    ):
        yield
