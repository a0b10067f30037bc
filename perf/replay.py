"""Measure the cost of recording for a worker, and the speed of a replay.

    python perf/replay.py [--reviews N] [--json FILE]

In this process, on one core: reviews of Pods like those of ReplicaSets, each with
another name, by the sample policies, alternately with and without a recorder. "answer"
is the median time until the answer is known, "cpu" the CPU time of the whole process
per review, including the recorder's thread. Ratios are comparable between machines;
absolute times are not.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from kyverno_mp.cli.replay.command import called
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.list_source import ListSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.recording.files import RecordingFiles
from kyverno_mp.webhook.recording.recorder import ReviewRecorder
from kyverno_mp.webhook.recording.redact import Redaction
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from perf.cli import pod

ROOT = Path(__file__).resolve().parent.parent
_POLICIES = ROOT / "config" / "samples" / "policies"
_ROUTE = SHARED[b"/validate/fail"]
_BATCH = 200
"""Number of reviews between two waits for the recorder, less than its queue size."""


class _NoRecords:
    """A no-op for metrics, which are not measured."""

    def review(self, *_given: object, **_more: object) -> None:
        pass

    def audit(self, *_given: object) -> None:
        pass

    def http(self, *_given: object) -> None:
        pass

    def error(self, code: str) -> None:
        raise AssertionError(code)


def body(number: int) -> bytes:
    """Return one review."""
    resource = pod(number)
    request = {
        "uid": f"u-{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": f"team-{number % 20}",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset"},
        "object": resource,
    }
    return json.dumps({"request": request}).encode()


def service(
    policies: list[CompiledPolicy], recording: ReviewRecorder | None
) -> Service:
    """Return a worker's review path, from request bytes to response bytes."""
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
    source = ListSource(policies, link_rule)
    planner = ValidationPlanner(Engine(ClusterData(), clock), source)
    dependencies = Dependencies(
        records=_NoRecords(), monotonic_ns=time.monotonic_ns, recording=recording
    )
    return Service(dependencies, handlers_of(SnapshotEvaluate(lambda: planner)))


def answer_us(served: Service, bodies: list[bytes]) -> float:
    """Return the median time of an answer, in microseconds."""
    times = []
    for one in bodies:
        before = time.perf_counter_ns()
        served.answer(_ROUTE, b"", one)
        times.append(time.perf_counter_ns() - before)
    return median(times) / 1000


def _settle(recorder: ReviewRecorder, count: int) -> None:
    written = 0
    while written < count:
        written += sum(recorder.drain().values())
        time.sleep(0.002)


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reviews", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    policies = compile_all(load_policies([str(_POLICIES)]).documents, ()).policies
    bodies = [body(number) for number in range(flags.reviews)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorder = ReviewRecorder(RecordingFiles(folder, 1 << 30, 1), Redaction())
        recorder.start()
        off, on = service(policies, None), service(policies, recorder)
        plain_us, recorded_us, off_s, on_s = [], [], 0.0, 0.0
        for at in range(0, len(bodies), _BATCH):
            part = bodies[at : at + _BATCH]
            begun_s = time.process_time()
            plain_us.append(answer_us(off, part))
            between_s = time.process_time()
            recorded_us.append(answer_us(on, part))
            _settle(recorder, len(part))
            off_s += between_s - begun_s
            on_s += time.process_time() - between_s
        recorder.stop(30)
        size = sum(one.stat().st_size for one in folder.iterdir())
        before_s = time.perf_counter()
        code = called(
            recording=name,
            policies=(str(_POLICIES),),
            against=(),
            output="table",
            limit=1,
            fail_on=("none",),
        )
        replay_s = time.perf_counter() - before_s
    found = {
        "reviews": flags.reviews,
        "answer_off_us": round(median(plain_us), 1),
        "answer_on_us": round(median(recorded_us), 1),
        "cpu_off_us": round(off_s / flags.reviews * 1e6, 1),
        "cpu_on_us": round(on_s / flags.reviews * 1e6, 1),
        "review_bytes": len(bodies[0]),
        "recorded_bytes": round(size / flags.reviews, 1),
        "replayed_per_s": round(flags.reviews / replay_s),
        "exit_code": code,
    }
    print(json.dumps(found, indent=2))
    if flags.json is not None:
        flags.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
