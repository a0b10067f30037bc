"""Measure whether a worker grows with changes of policies and with reviews.

Each change rewrites some of many policies and waits until the worker serves the new
generation; after it follow reviews of Pods whose names, images and namespaces never
recur, and of one Pod that always recurs. The size that counts is that after the first
changes, when every cache is full.
"""

import http.client
import json
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.reviews import REVIEWS
from perf.servers import Server, Unready, ask, kyverno_mp, pages_of, roles_of

_WAIT_S_MAX: Final = 60.0
_PAUSE_S: Final = 0.005
_PATH: Final = "/{}/fail?timeout=10s"
_CLUSTER_POLICY: Final = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {{name: growth-{number}}}
spec:
  background: false
  rules:
  - name: named
    match: {{any: [{{resources: {{kinds: [Pod]}}}}]}}
    preconditions:
      all:
      - {{key: "{{{{ request.object.metadata.name }}}}", operator: NotEquals,
         value: never-{number}}}
    validate:
      failureAction: {action}
      message: "revision {revision}: {{{{ request.object.metadata.name }}}}"
      pattern: {{spec: {{containers: [{{image: "!forbidden-{number}/*"}}]}}}}
"""
_VALIDATING_POLICY: Final = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {{name: growth-{number}}}
spec:
  validationActions: [Audit]
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
  validations:
  - expression: "object.metadata.name != 'never-{number}-{revision}'"
    message: revision {revision}
"""


@dataclass(frozen=True)
class Growth:
    """What a run does."""

    policies: int
    changes: int
    reviews: int
    """Reviews after each change."""
    at_once: int
    """Policies that one change rewrites."""
    settled: int
    """Changes after which the size counts."""


LONG: Final = Growth(200, changes=10_000, reviews=100, at_once=6, settled=500)
SHORT: Final = Growth(200, changes=150, reviews=10, at_once=6, settled=50)


@dataclass(frozen=True)
class Sizes:
    """The memory of the processes after a number of changes, in MiB (PSS)."""

    changes: int
    reviews: int
    pss_mb: dict[str, float]


def measure_growth(growth: Growth) -> list[Sizes]:
    """Return the sizes from the start to the end of a run, and print them."""
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
        folder = Path(name)
        policies = folder / "policies"
        policies.mkdir()
        for number in range(growth.policies):
            _write(policies, number, revision=0)
        body = folder / "review.json"
        body.write_text(json.dumps(REVIEWS["allowed"][0]))
        with kyverno_mp(policies, folder, core=0) as server:
            ask(server.port, body)
            return list(_run(growth, policies, server))


def _run(growth: Growth, policies: Path, server: Server) -> Iterator[Sizes]:
    client = _Client(server.port)
    every = max(1, growth.changes // 20)
    for change in range(growth.changes):
        generation = _generation(server)
        for offset in range(growth.at_once):
            number = (change * growth.at_once + offset) % growth.policies
            _write(policies, number, revision=change + 1)
        _wait(server, generation)
        client.review(growth.reviews)
        if (change + 1) % every == 0 or change + 1 == growth.settled:
            sizes = Sizes(change + 1, client.count, _sizes(server))
            line = "  ".join(f"{k} {v:.1f}" for k, v in sizes.pss_mb.items())
            print(f"{sizes.changes:>7} changes {sizes.reviews:>9} reviews  {line}")
            sys.stdout.flush()
            yield sizes


def grown(found: list[Sizes], settled: int, name: str) -> float:
    """Return the size at the end, divided by the size after ``settled`` changes."""
    base = next(one for one in found if one.changes >= settled)
    return found[-1].pss_mb[name] / base.pss_mb[name]


def _write(folder: Path, number: int, *, revision: int) -> None:
    # One in ten is in CEL, one in ten audits.
    text = _VALIDATING_POLICY if number % 10 == 0 else _CLUSTER_POLICY
    action = "Audit" if number % 10 == 1 else "Enforce"
    path = folder / f"p{number}.yaml"
    aside = path.with_suffix(".new")
    aside.write_text(text.format(number=number, revision=revision, action=action))
    aside.replace(path)


def _generation(server: Server) -> int:
    return min(p.gauge("generation") for p in pages_of(server) if p.role == "webhook")


def _wait(server: Server, generation: int) -> None:
    """Wait until the worker serves another generation."""
    end = time.monotonic() + _WAIT_S_MAX
    while _generation(server) <= generation:
        if time.monotonic() > end:
            raise Unready(f"the worker still serves generation {generation}")
        time.sleep(_PAUSE_S)


def _sizes(server: Server) -> dict[str, float]:
    return {
        name: psutil.Process(pid).memory_full_info().pss / 2**20
        for pid, name in roles_of(server).items()
        if name in ("worker", "leader")
    }


class _Client:
    """Posts reviews on one connection."""

    def __init__(self, port: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=_WAIT_S_MAX, context=context
        )
        self._template = json.dumps(REVIEWS["allowed"][0])
        self.count = 0

    def review(self, count: int) -> None:
        """Post a Pod that recurs, and others that do not."""
        self._post(self._template, "validate")
        for _ in range(count):
            self.count += 1
            self._post(self._fresh(), ("validate", "mutate")[self.count % 5 == 0])

    def _fresh(self) -> str:
        review: dict[str, Any] = json.loads(self._template)
        request = review["request"]
        namespace = f"team-{self.count % 300}-{self.count // 3000}"
        name = f"web-{self.count}"
        request.update(uid=f"u-{self.count}", name=name, namespace=namespace)
        pod = request["object"]
        pod["metadata"].update(name=name, namespace=namespace, uid=f"o-{self.count}")
        pod["metadata"]["labels"] = {f"label-{self.count}": f"value-{self.count}"}
        for container in pod["spec"]["containers"]:
            container["image"] = f"registry.example.com/team/app:{self.count}"
        if self.count % 20 == 0:
            # A denial with a message of its own.
            pod["spec"]["containers"][0]["image"] = f"forbidden-2/app:{self.count}"
        return json.dumps(review)

    def _post(self, text: str, webhook: str) -> None:
        self._connection.request(
            "POST",
            _PATH.format(webhook),
            body=text.encode(),
            headers={"Content-Type": "application/json"},
        )
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise Unready(f"a review got {answer.status}: {content[:200]!r}")
