"""A site with content for all pages, built from facts in place of a real pod."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kyverno_mp.dashboard.access import Guard
from kyverno_mp.dashboard.activity import About, Activity, Cost, Pace
from kyverno_mp.dashboard.entries import RESULTS, SEVERITIES, Counts, Entry
from kyverno_mp.dashboard.exceptions import Exempted, Published
from kyverno_mp.dashboard.facts import ProcessRow
from kyverno_mp.dashboard.history import History
from kyverno_mp.dashboard.results import Results
from kyverno_mp.dashboard.site import Site
from kyverno_mp.leader.status import PolicyStatus, RuleStatus, Status
from kyverno_mp.process.roles.dashboard import Pages, Sampler, serve_pages
from kyverno_mp.process.startup.listen import listen, port_of
from kyverno_mp.telemetry.denials import Denial

LOCAL = {"host": "127.0.0.1:9081"}
NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
SCRIPT = "<script>document.title='pwned'</script>"


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Pod:
    """Facts about a pod that a test sets."""

    reasons: Sequence[str] = ()
    said: Status = field(default_factory=Status)
    served: int = 3
    did: Activity = field(default_factory=Activity)
    published_now: Published = field(default_factory=Published)
    rows: Sequence[ProcessRow] = ()
    paced: Pace | None = None
    denied: Sequence[Denial] = ()

    def unready(self) -> Sequence[str]:
        return self.reasons

    def status(self) -> Status:
        return self.said

    def generation(self) -> int:
        return self.served

    def activity(self) -> Activity:
        return self.did

    def pace(self) -> Pace | None:
        return self.paced

    def denials(self) -> Sequence[Denial]:
        return self.denied

    def published(self) -> Published:
        return self.published_now

    def processes(self) -> Sequence[ProcessRow]:
        return self.rows


class Watched:
    """A watch that has read all reports, unless ``synced`` says otherwise."""

    def __init__(self) -> None:
        self.synced = True
        self.wrong: Sequence[str] = ()

    def problems(self) -> list[str]:
        return list(self.wrong)


class World:
    """A site and its data sources; ``standalone`` means without stored reports."""

    def __init__(
        self, *, standalone: bool = False, token_file: Path | None = None
    ) -> None:
        self.clock = Clock()
        self.results = Results(self.clock)
        self.history = History(60.0)
        self.pod = Pod()
        self.watch = None if standalone else Watched()
        self.site = Site(
            Guard(token_file),
            self.pod,
            self.results,
            self.history,
            self.watch,
            lambda: NOW,
        )
        self.sampler = Sampler(
            self.pod, None if standalone else self.results, self.history
        )

    def get(self, target: str) -> tuple[int, str]:
        path, _, query = target.partition("?")
        found = self.site.respond("GET", path, query, LOCAL)
        return found.status.value, found.body.decode()

    def report(self, name: str, *entries: Entry) -> None:
        self.results.put(("PolicyReport", "", name), entries)
        self.clock.now_s += 60

    def sample(self, time_s: float) -> None:
        assert self.sampler.take_due(time_s, time_s)


def entry(number: int = 0, **more: object) -> Entry:
    """Return a result whose fields vary with its number."""
    facts: dict[str, object] = {
        "policy": f"policy-{number % 17}",
        "rule": "check",
        "result": RESULTS[number % 5],
        "severity": SEVERITIES[number % 4],
        "category": ("Pod Security", "Best Practices", "")[number % 3],
        "source": "kyverno",
        "message": f"message {number}",
        "namespace": f"team-{number % 12}",
        "kind": "Pod",
        "name": f"pod-{number}",
        "timestamp_s": 1_770_000_000,
    }
    return Entry(**{**facts, **more})  # type: ignore[arg-type]


def full(text: str = "", *, standalone: bool = False) -> World:
    """Return a site with content on each page; ``text`` is put into every field."""
    world = World(standalone=standalone)
    name = text or "require-labels"
    key = text or "team-1/allow-legacy"
    world.pod.said = Status(
        generation=3,
        policies=(
            PolicyStatus(
                text or "ClusterPolicy",
                "",
                name,
                ready=True,
                message=text,
                rule_count=1,
                mode=text or "enforce",
                rules=(RuleStatus(text or "check", text or "validate"),),
                generation=4,
                file=text,
            ),
            PolicyStatus(
                "Policy",
                text or "team-1",
                name,
                ready=False,
                message=text or "spec.rules[0]: no such field",
                rule_count=1,
                code=text,
            ),
        ),
        problems=(text,) if text else (),
    )
    counts = Counts({"fail": 12, "error": 1, "warn": 3, "pass": 240, "skip": 7})
    world.pod.did = Activity(
        reviews=263,
        totals=counts,
        by={
            "policy": {name: counts},
            "namespace": {text or "team-1": counts},
            "severity": {text or "high": counts},
            "category": {text or "Pod Security": counts},
        },
        costs={name: {text or "check": Cost(263, 0.021)}},
    )
    world.pod.published_now = Published(
        3,
        {name: About(text or "high", text or "Pod Security")},
        (Exempted(key, (f"{name}: {text or 'check'}",)),),
        1,
        text,
    )
    world.pod.paced = Pace(12.5, 640.0)
    world.pod.denied = [
        Denial(
            time_s=1_770_000_000.0,
            operation=text or "CREATE",
            kind=text or "Pod",
            namespace=text or "team-1",
            name=text or "web",
            user=text or "alice",
            policy=name,
            rule=text or "check",
            message=text or "the label app is required",
            others=2,
        )
    ]
    world.pod.rows = [
        ProcessRow(
            name=text or process,
            pid=100 + at,
            restarts=at // 3,
            crash_loop=False,
            pss_bytes=(12 + 3 * at) * 2**20,
            cpu_s=3.5 * at,
        )
        for at, process in enumerate(("supervisor", "leader-0", "webhook-0", "health"))
    ]
    if text:
        world.pod.reasons = [text]
        result = entry(
            policy=text,
            rule=text,
            severity=text,
            category=text,
            message=text,
            namespace=text,
            kind=text,
            name=text,
        )
        world.report("1", result)
    for moment in range(12):
        for number in range(20 if not text else 0):
            at = moment * 20 + number
            world.report(
                str(at), entry(at, result="pass" if at % 4 else RESULTS[at % 3])
            )
        grown = Counts({name: one * (moment + 1) for name, one in counts.of.items()})
        world.pod.did.totals = grown
        world.pod.did.by["policy"][name] = grown
        world.sample(1_772_600_000 + 60 * moment)
    return world


TARGETS = (
    "/",
    "/results",
    "/groups?by=namespace",
    "/groups?by=policy&of=reviews",
    "/policies",
    "/policy?name=require-labels",
    "/report?namespace=team-1&kind=Pod&name=pod-1",
    "/exceptions",
    "/processes",
)


@contextmanager
def serving(site: Pages) -> Iterator[int]:
    """Serve a site in a separate process, on a free port."""
    listener = listen("127.0.0.1", 0, 16)
    child = os.fork()
    if child == 0:
        try:
            serve_pages(site, listener, lambda _outcome: None)
        finally:
            os._exit(0)
    try:
        yield port_of(listener)
    finally:
        listener.close()
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
