"""Workers' journals, the leader's writer, a fake API server and the merging holder."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kyverno_mp.errors import KubeRefused, KubeUnavailable
from kyverno_mp.kube.apply import Objects
from kyverno_mp.leader.results.reports import EphemeralPair
from kyverno_mp.leader.results.writer import ResultWriter
from kyverno_mp.limits import EPHEMERAL_REPORT_BYTES_MAX, RESULTS_READ_AGES_S
from kyverno_mp.queues.journal import RESULTS, Journal, JournalReader
from kyverno_mp.reports.claims import FORBIDDEN, UNCLAIMED, Claimed
from kyverno_mp.reports.ephemeral import ReviewResults
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.results.records import encode_results, encode_row
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

REPORTS = "/apis/reports.kyverno.io/v1/namespaces/kyverno/ephemeralreports"
START_NS = 1_700_000_000 * 10**9
Told = dict[tuple[str, str], str]
"""Message by object name and rule."""


def pod(name: str, uid: str = "?") -> Subject:
    """Return a Pod; its uid is derived from its name."""
    uid = f"uid-{name}" if uid == "?" else uid
    return Subject(api_version="v1", kind="Pod", name=name, namespace="a", uid=uid)


def row(rule: str = "r", message: str = "m", result: str = "fail") -> Row:
    return Row(
        source="kyverno",
        policy="p",
        rule=rule,
        result=result,
        message=message,
        scored=True,
        properties={"process": "admission review"},
    )


class World:
    """One replica and the holder of the reports lease."""

    def __init__(
        self, api: FakeApi, folder: Path, bytes_max: int = EPHEMERAL_REPORT_BYTES_MAX
    ) -> None:
        self.api = api
        self.folder = folder
        self.bytes_max = bytes_max
        self.now_s = 1000.0
        self.now_ns = START_NS
        self.existing: Callable[[Subject], Subject | None] = lambda subject: subject
        self.merged: Told = {}
        self.merges: list[tuple[str, str, str]] = []
        self.outcomes: list[str] = []
        self.refuses = ""
        self.fails: Callable[[], bool] = lambda: False
        self.journals = [
            Journal.claim(folder, 10_000, RESULTS.ring_bytes) for _ in range(2)
        ]
        self.client = api.client().within(HANG_S)
        self.start_leader()
        self.start_holder()

    def start_leader(self) -> None:
        """Start a leader; the previous one disappears without a shutdown."""
        self.reader = JournalReader(self.folder)
        pair = EphemeralPair(self.client, "kyverno", "pod-1", self.bytes_max)
        self.writer = ResultWriter(self.reader, pair, lambda: self.now_s)

    def start_holder(self) -> None:
        """Start a holder; the previous one disappears without a shutdown."""
        self.results = ReviewResults(
            self.client,
            Objects(self.client),
            "kyverno",
            self._claim,
            self.outcomes.append,
            lambda: self.now_ns,
        )
        self.results.start()
        assert self.results.informer.wait_synced(60)

    def answer(
        self, name: str, *rows: Row, worker: int = 0, at_ns: int = 0, uid: str = "?"
    ) -> None:
        """Record the results of a review, as a worker does before its answer."""
        self.now_ns += 1_000_000
        content = encode_results(
            at_ns or self.now_ns,
            pod(name, uid),
            [encode_row(one) for one in rows or (row(),)],
        )
        assert self.journals[worker].append(content)

    def write(self, after_s: float = 1.0) -> bool:
        """Let the leader write the pending results."""
        self.now_s += after_s
        return self.writer.step()

    def stored(self) -> list[Any]:
        """Return the EphemeralReports."""
        found = self.api.objects.items()
        return [raw for key, raw in found if key[2] == "ephemeralreports"]

    def told(self) -> Told:
        """Return the rows of the EphemeralReports."""
        return {
            (subject["name"], entry["rule"]): entry["message"]
            for report in self.stored()
            for entry in report["spec"]["results"]
            for subject in entry["resources"]
        }

    def merge(self) -> bool:
        """Let the holder merge all changes that its watch has received."""
        self.catch_up()
        return self.results.step(self._merge)

    def catch_up(self) -> None:
        """Wait until the watch has received the newest reports."""
        wait_for(self._is_caught_up)

    def _is_caught_up(self) -> bool:
        known = self.results.informer.snapshot().values()
        versions = {one["metadata"]["resourceVersion"] for one in self.stored()}
        return {one.version for one in known} == versions

    def _claim(self, newest: Mapping[Subject, int]) -> Claimed:
        claimed = Claimed({}, {})
        for subject, at_ns in newest.items():
            try:
                stored = self.existing(subject)
            except KubeRefused:
                claimed.dropped[subject] = FORBIDDEN
                continue
            if stored is not None:
                claimed.stored[subject] = stored
            elif self.now_ns - at_ns >= RESULTS_READ_AGES_S[-1] * 10**9:
                claimed.dropped[subject] = UNCLAIMED
        return claimed

    def _merge(self, subject: Subject, rows: list[Row]) -> bool:
        if self.fails() or subject.name == self.refuses:
            raise KubeUnavailable("kube.server", "away")
        for one in rows:
            self.merged[subject.name, one.rule] = one.message
            self.merges.append((subject.name, one.rule, one.message))
        return True

    def close(self) -> None:
        self.results.stop()
        self.reader.close()
        for journal in self.journals:
            journal.close()


def chance(seed: int, share: float) -> Callable[[], bool]:
    """Return a function that is randomly true now and then."""
    source = random.Random(seed)
    return lambda: source.random() < share
