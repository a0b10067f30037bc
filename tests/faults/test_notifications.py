"""Receivers of notifications that hang, refuse, or close the connection.

A failure means: a receiver outside of the cluster delays the reports in it.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.egress.clients import open_receiver
from kyverno_mp.settings.settings import Settings
from tests.unit.egress.test_services import answering
from tests.unit.kube.fake_api import running
from tests.unit.reports.test_notify import OUTCOMES
from tests.unit.reports.world import new_cluster, pod, policy, report_of, results, term
from tests.waiting import drip, wait_for

pytestmark = pytest.mark.slow
LOCAL = "127.0.0.0/8"


@contextlib.contextmanager
def receiving(kind: str) -> Iterator[int]:
    """Yield the port of a receiver that accepts nothing."""
    if kind == "refuses":
        with socket.socket() as reserved:
            # Bound, so that nobody else gets the port, but it does not listen.
            reserved.bind(("127.0.0.1", 0))
            yield reserved.getsockname()[1]
    elif kind == "hangs":
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server.getsockname()[1]
    else:
        with answering(drip if kind == "drips" else lambda _peer: None) as (port, _):
            yield port


@pytest.mark.parametrize("kind", ["refuses", "hangs", "drips", "closes"])
def test_reports_are_written_while_the_receiver_fails(
    kind: str, tmp_path: Path
) -> None:
    """What it did not accept is sent to the next receiver, once."""
    file = tmp_path / "url"
    receive = open_receiver(Settings(notify_url_file=str(file), http_allowlist=LOCAL))
    with running() as api, receiving(kind) as port:
        file.write_text(f"http://127.0.0.1:{port}/")
        world = new_cluster(api)
        world.serve(policy("p"))
        settings = {"receive": receive, "notify_interval_s": 1}
        with term(api, world, **settings) as one:
            notifier = one.reports.notifier
            assert notifier is not None
            first = pod(api)
            one.settle()
            notifier.start()
            second = pod(api, "second")
            one.settle()
            for raw in (first, second):
                assert results(report_of(api, raw)) == [("p", "r", "fail")]
            failed = (OUTCOMES, ("failed",))
            wait_for(lambda: one.recorded.counts.get(failed))
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            with answering(lambda peer: peer.sendall(answer)) as (other, seen):
                file.write_text(f"http://127.0.0.1:{other}/")
                wait_for(lambda: one.recorded.counts.get((OUTCOMES, ("sent",))))
            notifier.stop()
            assert len(seen) == 1
            assert b'"Pod/x","Pod/second"' in seen[0]
