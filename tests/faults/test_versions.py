"""An upgrade from an earlier version without a cluster, and the way back.

A failure means: a review fails or is misjudged while a version replaces another one, or
a version cannot use what the other one left: the runtime folder, journals, recordings.
"""

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from tests.earlier import ROOT, earlier_tree
from tests.faults.service import Service, pod, require_label, write_whole
from tests.faults.test_events import FALSE, Served, put_policy
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
CLIENTS = 4
REVIEWS_MIN = 50
"""Of each client, on each version."""


@pytest.fixture(params=["upgrade", "way back"])
def trees(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Return the folders of the version that runs and of the one that replaces it."""
    earlier = earlier_tree()
    return (earlier, ROOT) if request.param == "upgrade" else (ROOT, earlier)


class Clients:
    """Clients that keep their connections until the server closes them.

    Like an API server behind a Service, they send new connections to ``service``.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.wrong: list[str] = []
        self.counts = [0] * CLIENTS
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,))
            for number in range(CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def await_more(self) -> None:
        """Wait until each client has got further answers."""
        before = list(self.counts)
        wait_for(
            lambda: all(
                now >= then + REVIEWS_MIN
                for now, then in zip(self.counts, before, strict=True)
            )
        )

    def _run(self, number: int) -> None:
        try:
            while not self._stopping.is_set():
                service = self.service
                with contextlib.closing(service.connect()) as link:
                    link.connect()
                    # http.client forgets the socket after an answer that closes it.
                    while link.sock and not self._stopping.is_set():
                        self._review(service, link, number)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.wrong.append(repr(error))

    def _review(
        self, service: Service, link: http.client.HTTPSConnection, number: int
    ) -> None:
        """Request the review of a Pod with the label, then of one without it."""
        is_labelled = self.counts[number] % 2 == 0
        answer = service.review_on(link, pod(app="x") if is_labelled else pod())
        self.counts[number] += 1
        if answer["allowed"] is not is_labelled:
            self.wrong.append(str(answer))


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Return two folders of services with equal policies."""
    made = [tmp_path / name for name in ("first", "second")]
    for folder in made:
        (folder / "policies").mkdir(parents=True)
        policy = require_label("a", "app")
        write_whole(folder / "policies" / "a.yaml", policy)
    return made


def test_no_review_is_lost_while_a_version_replaces_another(
    folders: list[Path], trees: tuple[Path, Path]
) -> None:
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(_service(folders[0], trees[0]))
        before.wait(before.ready)
        with Clients(before) as clients:
            clients.await_more()
            after = stack.enter_context(_service(folders[1], trees[1]))
            after.wait(after.ready)
            clients.service = after
            assert before.stop() == 0
            clients.await_more()
        assert clients.wrong == []


def test_a_killed_version_leaves_nothing_that_stops_the_other(
    folders: list[Path], trees: tuple[Path, Path], tmp_path: Path
) -> None:
    """The runtime folder with its snapshots is rebuilt, recordings are continued.

    All processes are killed, so that the first version cannot tidy up.
    """
    recording = tmp_path / "recording"
    variables = {"KYVERNO_MP_RECORD_DIR": str(recording)}
    for count, tree in enumerate(trees, start=1):
        with _service(folders[0], tree, variables) as service:
            service.wait(service.ready)
            assert service.review(pod(app="x"))["allowed"] is True
            assert service.review(pod())["allowed"] is False
            service.wait(partial(_has_recorded_two, service))
            if count == len(trees):
                service.stop()
            else:
                service.close()
                assert service.runtime_dir.exists()
    for tree in trees:
        replayed = subprocess.run(
            [
                *(sys.executable, "-m", "kyverno_mp", "replay", str(recording)),
                str(folders[0] / "policies"),
            ],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        assert replayed.returncode == 0, replayed.stderr
        assert re.search(r"^unchanged +4$", replayed.stdout, re.MULTILINE), (
            replayed.stdout
        )


def test_journals_of_a_version_are_read_by_the_other(
    trees: tuple[Path, Path], tmp_path: Path
) -> None:
    """A container restarts with another image in the same pod."""
    denied = ["a", "b", "c"]
    with running() as api:
        put_policy(api)
        with contextlib.closing(_served(api, tmp_path, trees[0])) as before:
            before.begin()
            before.processes()["leader"].suspend()
            before.refuse(*denied)
            assert before.told() == ["first"]
        with contextlib.closing(_served(api, tmp_path, trees[1])) as after:
            after.wait(lambda: not after.asks("last")["allowed"])
            after.wait(lambda: after.told() == [*denied, "first", "last"])


def _has_recorded_two(service: Service) -> bool:
    written = 'kyverno_mp_recorded_reviews_total{outcome="written"} 2'
    return written in service.get("/metrics")[1]


def _served(api: FakeApi, folder: Path, tree: Path) -> Served:
    if tree == ROOT:
        return Served(api, folder, CALLER_PATH=FALSE)
    return Served(api, folder, tree)


@contextlib.contextmanager
def _service(
    folder: Path, tree: Path, variables: dict[str, str] | None = None
) -> Iterator[Service]:
    own = None if tree == ROOT else tree
    service = Service(folder, variables=variables, tree=own)
    with contextlib.closing(service):
        yield service
