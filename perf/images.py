"""Measure what the verification of images adds to a review.

    python perf/images.py [--reviews N] [--pods N] [--check]

In this process, without HTTP between the API server and the service, with docker's
registry (Debian package docker-registry) on this machine. Reviews of Pods with three
images, alternately with a policy with a static key and without a policy. "warm" is the
median time that the policy adds if the results are in the pod's cache, for images named
by digest and for tags, which are resolved in the registry each time; "cold" the time
for an uncached image, and for a Pod with three uncached images, which are verified
concurrently; "shared" the number of verifications for 1,000 Pods with one image, in
eight threads. --check fails above the targets; times on a busy machine are meaningless.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.images.cache import STORED
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import ANONYMOUS
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.images import served_images
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from perf.replay import _NoRecords
from perf.servers import write_result
from tests.fuzz.bench import segment_of
from tests.image_rig import Repository, Signer, signed_policy
from tests.ports import free_port

_ROUTE: Final = SHARED[b"/mutate/fail"]
_IMAGES: Final = 3
_COLD: Final = 45
_THREADS: Final = 8
_WARM_MS_MAX: Final = 1.0
_COLD_MS_MAX: Final = 25.0
_WAIT_S: Final = 60
_OTHER: Final = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: other}
spec:
  rules:
  - name: m
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {a: b}}}}
---
"""
"""Present in both cases, so that reviews without verification also run the webhook."""


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run docker's registry; yield host and port."""
    program = shutil.which("docker-registry")
    if program is None:
        sys.exit("docker-registry is not on the PATH")
    host = f"127.0.0.1:{free_port()}"
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
    }
    path = folder / "registry.yml"
    path.write_text(yaml.safe_dump(config))
    running = subprocess.Popen(
        [program, "serve", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield host
    finally:
        running.terminate()
        running.wait(_WAIT_S)


def push(host: str, signer: Signer, names: Sequence[str]) -> list[str]:
    """Push signed images; return their digests."""
    client = Client(lambda _registry: ANONYMOUS, user_agent="perf", insecure=True)
    until_ns = time.monotonic_ns() + _WAIT_S * 10**9
    digests = []
    for name in names:
        repository = Repository(name)
        digests.append(repository.image())
        repository.sign(digests[-1], signer)
        for attempt in range(_WAIT_S * 10):
            try:
                repository.push(client, host, until_ns)
                break
            except Exception:
                # The registry is still starting.
                if attempt == _WAIT_S * 10 - 1:
                    raise
                time.sleep(0.1)
    return digests


def service(policies: str, folder: Path, events: Counter[str]) -> Service:
    """Return a worker's review path, from request bytes to response bytes."""
    folder.mkdir(exist_ok=True)
    settings = Settings(standalone=True, registry_allowlist="*,127.0.0.0/8")
    served = served_images(
        settings,
        folder,
        None,
        events.update,
        lambda _labels: None,
    )
    ports = ClusterData(images=served.data, reviewed_images=served.begin)
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
    engine = Engine(ports, clock, threading.Lock())
    segment = segment_of(policies)
    validation = ValidationPlanner(engine, SegmentSource(segment, link_rule))
    mutation = MutationPlanner(engine, SegmentSource(segment, link_mutation))
    dependencies = Dependencies(records=_NoRecords(), monotonic_ns=time.monotonic_ns)
    return Service(
        dependencies,
        handlers_of(
            SnapshotEvaluate(lambda: validation), SnapshotMutate(lambda: mutation)
        ),
    )


def body(*images: str) -> bytes:
    """Return a review of a Pod with these images."""
    containers = [{"name": f"c{n}", "image": one} for n, one in enumerate(images)]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": containers},
    }
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "userInfo": {"username": "alice"},
        "object": pod,
    }
    return json.dumps({"request": request}).encode()


def ask(served: Service, given: bytes) -> float:
    """Return the time of one allowed review, in milliseconds."""
    before_ns = time.perf_counter_ns()
    answer = served.answer(_ROUTE, b"", given)
    taken_ms = (time.perf_counter_ns() - before_ns) / 1e6
    assert isinstance(answer, bytes)
    response: dict[str, Any] = json.loads(answer)["response"]
    assert response["allowed"], response["status"]["message"]
    return taken_ms


def added_ms(
    plain: Service, verifying: Service, given: bytes, count: int
) -> tuple[float, float]:
    """Return the additional median time and minimum CPU time of verification."""
    ask(verifying, given)
    times: tuple[list[float], list[float]] = [], []
    cpu: tuple[list[int], list[int]] = [], []
    for _ in range(count):
        for place, served in enumerate((plain, verifying)):
            before_ns = time.process_time_ns()
            times[place].append(ask(served, given))
            cpu[place].append(time.process_time_ns() - before_ns)
    return median(times[1]) - median(times[0]), (min(cpu[1]) - min(cpu[0])) / 1e6


def measure(folder: Path, reviews: int, pods: int) -> dict[str, float]:
    """Return the figures."""
    signer = Signer()
    events: Counter[str] = Counter()
    with registry(folder) as host:
        names = [f"app/image-{number}" for number in range(_COLD)]
        digests = push(host, signer, names)
        both = _OTHER + signed_policy(host, signer)
        plain = service(_OTHER, folder / "none", Counter())
        verifying = service(both, folder / "cache", events)
        tags = [f"{host}/{name}:v1" for name in names]
        exact = [
            f"{host}/{name}@{digest}"
            for name, digest in zip(names, digests, strict=True)
        ]
        warm_ms, warm_cpu_ms = added_ms(
            plain, verifying, body(*exact[:_IMAGES]), reviews
        )
        tag_ms, tag_cpu_ms = added_ms(
            plain, verifying, body(*tags[:_IMAGES]), reviews // 4
        )
        cold = service(both, folder / "cold", Counter())
        # The first call also determines the registry's scheme.
        ask(cold, body(tags[0]))
        cold_ms, cold_cpu_ms = [], []
        pods_ms = []
        for at in range(1, _COLD, _IMAGES + 1):
            before_ns = time.process_time_ns()
            cold_ms.append(ask(cold, body(tags[at])))
            cold_cpu_ms.append((time.process_time_ns() - before_ns) / 1e6)
            pods_ms.append(ask(cold, body(*tags[at + 1 : at + 1 + _IMAGES])))
        events.clear()
        shared = service(both, folder / "shared", events)
        given = body(exact[0])
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda _n: ask(shared, given), range(pods)))
        return {
            "warm_added_p50_ms": round(warm_ms, 3),
            "warm_added_cpu_min_ms": round(warm_cpu_ms, 3),
            "warm_tags_added_p50_ms": round(tag_ms, 3),
            "warm_tags_added_cpu_min_ms": round(tag_cpu_ms, 3),
            "cold_ms_per_image": round(median(cold_ms), 2),
            "cold_ms_per_pod_of_3": round(median(pods_ms), 2),
            "cold_cpu_min_ms_per_image": round(min(cold_cpu_ms), 2),
            "verifications_of_shared_image": events[STORED],
        }


def main() -> None:
    """Measure, print a table, write JSON; with --check compare with the targets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reviews", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        found = measure(Path(name), flags.reviews, flags.pods)
    for key, value in found.items():
        print(f"{key:32} {value:>10}")
    write_result("images", dict(found), flags.json)
    if flags.check:
        targets = {
            "warm_added_p50_ms": _WARM_MS_MAX,
            "cold_ms_per_image": _COLD_MS_MAX,
            "verifications_of_shared_image": 1,
        }
        missed = [key for key, most in targets.items() if found[key] > most]
        if missed:
            sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
