"""Measure reviews while policies change, workers die and Pods never recur.

For each kind of policy in turn: many policies of the kind appear at once while clients
create Pods; then one of them changes every second, and now and then a worker is killed.
The figures are refused reviews, latency, the time until all policies are in force in
every worker, and the workers' memory (PSS) at the beginning and the end of the changes.
A review is refused if it has no answer, an HTTP error, or a denial: no Pod of the
clients violates a policy. Connections of a killed worker break; such a review is sent
again, as API servers and their clients do, and its time runs on. GeneratingPolicies
need a background pool and are not measured. On a machine with other work, a part of the
times is time that the workers' threads wait for a core: ``share`` is their CPU time as
a part of it and this waiting.

    python perf/churn.py [--policies 1000] [--seconds 120] [--kinds ...] [--check]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from perf.servers import Server, Unready, kyverno_mp, workers_of, write_result
from tests.faults.service import review_of, write_whole

_GROUP: Final = "policies.kyverno.io/v1"
_PODS: Final = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
_IN_FORCE_S_MAX: Final = 180.0
_AFTER_KILL_S: Final = 3.0
"""Reviews that begin this soon after a kill have their own limit."""
_ANSWER_S_MAX: Final = 30.0
_OK: Final = 200


@dataclass
class Seen:
    """The reviews of one part of a run."""

    times_ms: list[float] = field(default_factory=list)
    after_kill_ms: list[float] = field(default_factory=list)
    refused: int = 0
    sent_again: int = 0


@dataclass(frozen=True)
class Row:
    """The figures of one kind."""

    kind: str
    part: str
    reviews: int
    refused: int
    sent_again: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    worst_after_kill_ms: float
    in_force_s: float = 0.0
    """From the last new policy until every worker reports them; 0: not measured."""
    share: float = 1.0
    """The part of the time in which threads of workers had a core when they needed it.
    """
    early: int = 0
    """Forbidden Pods that passed after the report."""
    pss_begin_mb: float = 0.0
    pss_end_mb: float = 0.0


def cluster_policy(number: int, version: int) -> dict[str, Any]:
    """Return a ClusterPolicy that forbids one name."""
    rule = {
        "name": "name",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "preconditions": {
            "all": [
                {
                    "key": "{{ request.object.metadata.namespace || '' }}",
                    "operator": "NotEquals",
                    "value": "kube-system",
                }
            ]
        },
        "validate": {
            "failureAction": "Enforce",
            "message": f"version {version} forbids {{{{ request.object.kind }}}}",
            "pattern": {"metadata": {"name": f"!forbidden-{number}"}},
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": _named(number),
        "spec": {"background": False, "rules": [rule]},
    }


def validating_policy(number: int, version: int) -> dict[str, Any]:
    """Return a ValidatingPolicy that forbids one name."""
    return _in_cel(
        "ValidatingPolicy",
        number,
        validationActions=["Deny"],
        variables=[{"name": "name", "expression": "object.metadata.name"}],
        validations=[
            {
                "expression": f"variables.name != 'forbidden-{number}'",
                "message": f"forbidden by version {version}",
            }
        ],
    )


def mutating_policy(number: int, version: int) -> dict[str, Any]:
    """Return a MutatingPolicy that changes Pods of one name."""
    text = f"Object{{metadata: Object.metadata{{labels: {{'v': '{version}'}}}}}}"
    return _in_cel(
        "MutatingPolicy",
        number,
        matchConditions=[_only(number)],
        mutations=[
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": text},
            }
        ],
    )


def image_policy(number: int, version: int) -> dict[str, Any]:
    """Return an ImageValidatingPolicy that denies Pods of one name."""
    return _in_cel(
        "ImageValidatingPolicy",
        number,
        validationActions=["Deny"],
        matchConditions=[_only(number)],
        matchImageReferences=[{"glob": "*"}],
        attestors=[{"name": "any", "notary": {"certs": {"value": "x"}}}],
        validations=[{"expression": "false", "message": f"version {version}"}],
    )


def _named(number: int) -> dict[str, Any]:
    return {"name": f"churn-{number}"}


def _only(number: int) -> dict[str, Any]:
    text = f"object.metadata.name == 'forbidden-{number}'"
    return {"name": "only", "expression": text}


def _in_cel(kind: str, number: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": _GROUP,
        "kind": kind,
        "metadata": _named(number),
        "spec": {"matchConstraints": {"resourceRules": [_PODS]}, **spec},
    }


KINDS: Final = {
    "ClusterPolicy": (cluster_policy, "/validate/fail", "policies"),
    "ValidatingPolicy": (validating_policy, "/vpol", "celpolicies"),
    "MutatingPolicy": (mutating_policy, "/mpol", "mutatingpolicies"),
    "ImageValidatingPolicy": (image_policy, "/ivpol/validate", "imagevalidating"),
}
"""The function that returns a policy, the path of reviews, the segment."""
_DENYING: Final = ("ClusterPolicy", "ValidatingPolicy", "ImageValidatingPolicy")


class Client:
    """One connection that creates Pods which never recur."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, pod: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Post one review; return the HTTP status and the response."""
        body = json.dumps(review_of(pod)).encode()
        if self._link is None:
            self._link = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context
            )
        reader, writer = self._link
        head = (
            f"POST {self._path}?timeout=10s HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            key.lower(): value.strip()
            for key, _, value in (line.partition(":") for line in lines[1:])
        }
        answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        status = int(lines[0].split()[1])
        response = json.loads(answer)["response"] if status == _OK else {}
        return status, response

    def close(self) -> None:
        """Close the connection; the next review opens another."""
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link[1].close()
            self._link = None


class Run:
    """The clients of one kind's service, and what they see."""

    def __init__(self, args: argparse.Namespace, kind: str, server: Server) -> None:
        self._args = args
        self._server = server
        self.make, self._path, self._segment = KINDS[kind]
        self._kind = kind
        self._folder = server.folder / "policies"
        self.seen = Seen()
        self._numbers = itertools.count()
        self._killed_s = 0.0
        self._ran: dict[str, tuple[int, int]] = {}
        self._ending = False

    async def rows(self) -> list[Row]:
        """Return the rows of both parts."""
        clients = [
            asyncio.create_task(self._create(at)) for at in range(self._args.clients)
        ]
        try:
            await asyncio.sleep(2.0)
            return [await self._appear(), await self._change()]
        finally:
            self._ending = True
            await asyncio.gather(*clients)

    async def _appear(self) -> Row:
        """Let all policies appear at once."""
        self.seen, self._ran = Seen(), self._run_times()
        for number in range(self._args.policies):
            self._write(number, 0)
        began_s = time.monotonic()
        await self._in_force(began_s)
        in_force_s = time.monotonic() - began_s
        early = await self._early()
        await asyncio.sleep(2.0)
        return self._row("appear", in_force_s=in_force_s, early=early)

    async def _change(self) -> Row:
        """Change a policy each second, and kill a worker now and then."""
        await asyncio.sleep(self._args.settle)
        self.seen, self._ran, begin_mb = Seen(), self._run_times(), self._pss_mb()
        began_s = killed_s = time.monotonic()
        for version in itertools.count(1):
            now_s = time.monotonic()
            if now_s - began_s > self._args.seconds:
                break
            self._write(random.randrange(self._args.policies), version)
            if now_s - killed_s > self._args.kill_every:
                killed_s = self._killed_s = now_s
                random.choice(workers_of(self._server)).kill()
            await asyncio.sleep(1.0)
        return self._row("change", pss_begin_mb=begin_mb, pss_end_mb=self._pss_mb())

    def _write(self, number: int, version: int) -> None:
        text = json.dumps(self.make(number, version))
        write_whole(self._folder / f"{number}.yaml", text)

    async def _in_force(self, began_s: float) -> None:
        """Wait until every worker reports the generation of all policies.

        Raises: Unready.
        """
        page = ControlPage.open(self._server.folder / "run" / "snapshot")
        status = self._server.folder / "run" / "status.json"
        last = f'"churn-{self._args.policies - 1}"'
        while True:
            is_published = status.exists() and last in status.read_text()
            workers = page.workers()
            if is_published and all(
                one.generations[name] >= page.generation(name)
                for one in workers
                for name in (POLICIES, self._segment)
            ):
                return
            if time.monotonic() - began_s > _IN_FORCE_S_MAX:
                raise Unready(f"{self._kind}: never in force")
            await asyncio.sleep(0.02)

    async def _early(self) -> int:
        """Return how many forbidden Pods pass now."""
        if self._kind not in _DENYING:
            return 0
        passed = 0
        for number in (0, self._args.policies // 2, self._args.policies - 1):
            client = Client(self._server.port, self._path)
            _, response = await client.ask(self._pod(f"forbidden-{number}"))
            client.close()
            passed += bool(response.get("allowed"))
        return passed

    async def _create(self, at: int) -> None:
        """Create Pods at a steady rate until the end."""
        client = Client(self._server.port, self._path)
        pause_s = self._args.clients / self._args.rate
        await asyncio.sleep(pause_s * at / self._args.clients)
        due_s = time.monotonic()
        while not self._ending:
            await self._timed(client)
            due_s = max(due_s + pause_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
        client.close()

    async def _timed(self, client: Client) -> None:
        seen, began_s = self.seen, time.monotonic()
        pod = self._pod(f"app-{next(self._numbers)}")
        is_refused = True
        for _ in range(5):
            try:
                status, response = await asyncio.wait_for(
                    client.ask(pod), _ANSWER_S_MAX
                )
            except (OSError, EOFError, TimeoutError):
                client.close()
                seen.sent_again += 1
                continue
            warns = any("webhook." in one for one in response.get("warnings") or ())
            is_refused = status != _OK or not response["allowed"] or warns
            break
        seen.refused += is_refused
        taken_ms = (time.monotonic() - began_s) * 1e3
        is_after = began_s - self._killed_s < _AFTER_KILL_S
        (seen.after_kill_ms if is_after else seen.times_ms).append(taken_ms)

    @staticmethod
    def _pod(name: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name, "owner": "shop"}},
            "spec": {"containers": [{"name": "app", "image": f"example.com/{name}:1"}]},
        }

    def _pss_mb(self) -> float:
        """Return the largest PSS of a worker."""
        found = [0.0]
        for worker in workers_of(self._server):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(worker.memory_full_info().pss / 2**20)
        return max(found)

    def _run_times(self) -> dict[str, tuple[int, int]]:
        """Return each thread's CPU time and its waiting for a core. Unit: ns."""
        found: dict[str, tuple[int, int]] = {}
        for worker in workers_of(self._server):
            for path in Path(f"/proc/{worker.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    ran, waited, _ = map(int, path.read_text().split())
                    found[str(path)] = ran, waited
        return found

    def _share(self) -> float:
        ran = waited = 1
        for thread, (ran_ns, waited_ns) in self._run_times().items():
            before = self._ran.get(thread, (0, 0))
            ran += ran_ns - before[0]
            waited += waited_ns - before[1]
        return ran / (ran + waited)

    def _row(self, part: str, **more: Any) -> Row:
        seen = self.seen
        times = sorted(seen.times_ms) or [0.0]
        return Row(
            kind=self._kind,
            part=part,
            reviews=len(seen.times_ms) + len(seen.after_kill_ms),
            refused=seen.refused,
            sent_again=seen.sent_again,
            p50_ms=statistics.median(times),
            p99_ms=times[int(0.99 * (len(times) - 1))],
            worst_ms=times[-1],
            worst_after_kill_ms=max(seen.after_kill_ms, default=0.0),
            share=self._share(),
            **more,
        )


def measure(args: argparse.Namespace, kind: str) -> list[Row]:
    """Return the rows of one kind, with a service of its own."""
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
        folder = Path(name)
        (folder / "policies").mkdir()
        with kyverno_mp(
            folder / "policies", folder, core=None, workers=args.workers
        ) as server:
            return asyncio.run(Run(args, kind, server).rows())


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    rows: list[Row] = []
    print(_HEAD)
    try:
        for kind in args.kinds:
            for row in measure(args, kind):
                rows.append(row)
                print(_line(row), flush=True)
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    method = {
        name: getattr(args, name)
        for name in ("policies", "workers", "clients", "rate", "seconds", "kill_every")
    }
    content = {"method": method, "rows": [asdict(row) for row in rows]}
    write_result("churn", content, args.json)
    return check(args, rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float, default=20.0, help="creations/s")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before")
    parser.add_argument("--short", action="store_true", help="300 policies, 25 s")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    parser.add_argument("--worst-ms-max", type=float, default=250.0)
    parser.add_argument("--after-kill-ms-max", type=float, default=1000.0)
    parser.add_argument("--pss-growth-max", type=float, default=1.1)
    args = parser.parse_args(arguments)
    if args.short:
        args.policies, args.seconds, args.kill_every, args.settle = 300, 25.0, 10.0, 2.0
    return args


_HEAD: Final = (
    f"{'kind':<23}{'part':<8}{'reviews':>8}{'refused':>9}{'again':>7}{'p50 ms':>9}"
    f"{'p99':>8}{'worst':>9}{'killed':>9}{'in force s':>12}{'early':>7}"
    f"{'share':>7}{'PSS MiB':>16}"
)


def _line(row: Row) -> str:
    pss = f"{row.pss_begin_mb:.0f} -> {row.pss_end_mb:.0f}" if row.pss_end_mb else ""
    in_force = f"{row.in_force_s:.1f}" if row.in_force_s else ""
    return (
        f"{row.kind:<23}{row.part:<8}{row.reviews:>8}{row.refused:>9}"
        f"{row.sent_again:>7}{row.p50_ms:>9.1f}{row.p99_ms:>8.1f}{row.worst_ms:>9.1f}"
        f"{row.worst_after_kill_ms:>9.1f}{in_force:>12}{row.early:>7}{row.share:>7.2f}{pss:>16}"
    )


def check(args: argparse.Namespace, rows: list[Row]) -> int:
    """Return 1 when a target is missed."""
    missed = [line for row in rows for line in _misses(args, row)]
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def _misses(args: argparse.Namespace, row: Row) -> Iterator[str]:
    what = f"{row.kind}, {row.part}"
    if row.refused:
        yield f"{what}: {row.refused} reviews were refused"
    if row.early:
        yield f"{what}: reported before it was in force"
    if row.worst_ms > args.worst_ms_max:
        yield f"{what}: a review waited {row.worst_ms:.0f} ms"
    if row.worst_after_kill_ms > args.after_kill_ms_max:
        yield f"{what}: a review after a kill waited {row.worst_after_kill_ms:.0f} ms"
    if row.pss_end_mb > args.pss_growth_max * row.pss_begin_mb:
        yield f"{what}: a worker grew to {row.pss_end_mb:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
