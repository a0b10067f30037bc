"""``apply --distribute``: let a Dask cluster evaluate the objects of a run.

Room: cli. Takes: a run before its first evaluation. Gives: Responses with
their locations, and Counts. Next: shard.
May touch: the scheduler of the cluster, and through it its workers. Source:
docs/fleets.md; dask.distributed.

SAFETY: the workers run what this process sends, and this process believes what they
answer: who reaches the scheduler is trusted.
"""

import concurrent.futures
import importlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.apply.finish import Remainder
from kyverno_mp.cli.apply.given import Given
from kyverno_mp.cli.apply.shard import (
    LINE,
    End,
    Row,
    Writer,
    responses_of,
    write_rows,
)
from kyverno_mp.cli.apply.work import Work, decode
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.cluster.dump import PACKED_OBJECT, Kept
from kyverno_mp.cli.cluster.spool import identity_of
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.exit_codes import STATE
from kyverno_mp.cli.sources.payloads import ContextFile
from kyverno_mp.cli.sources.resources import Location
from kyverno_mp.errors import Error
from kyverno_mp.values.jsonvalue import Json

_OBJECTS: Final = 500
"""Objects of a task: some 0.1 s of work, and some MB at most."""
_AHEAD: Final = 3
"""Tasks per thread of the cluster that are under way, so that memory is bounded."""
_SCHEMES: Final = {"dask": "tcp", "tls": "tls"}
_WORKERS_S: Final = 30
"""How long the scheduler may take to answer, and how long it may have no worker."""
_POLL_S: Final = 0.02
_LINKED: Final = threading.local()
"""Of a thread of a worker: the bytes of its last run, and what they became."""


def evaluate_far(
    work: Work, kept: Given
) -> tuple[list[tuple[Response, Location]], Counts]:
    """Return the responses for all objects, and the counts. Raises: CommandFailed."""
    assert isinstance(kept, Kept)
    address = work.options.distribute
    scheme, _, place = address.partition("://")
    if scheme not in _SCHEMES or not place:
        message = (
            f'--distribute "{address}": expected dask://HOST:PORT or tls://HOST:PORT'
        )
        raise CommandFailed(message)
    try:
        distributed: Any = importlib.import_module("distributed")  # the extra fleet
    except ImportError as error:
        message = f"--distribute needs the extra fleet: kyverno-mp[fleet] ({error})"
        raise CommandFailed(message) from error
    # The exit code and one line say what happened; the library would print its stack.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        with distributed.Client(
            f"{_SCHEMES[scheme]}://{place}", timeout=_WORKERS_S
        ) as client:
            client.wait_for_workers(1, timeout=_WORKERS_S)
            rows, counts = _collect(client, work.encode(), kept, distributed)
    except distributed.KilledWorker as error:
        raise CommandFailed(f"workers died again and again: {error}", STATE) from error
    except concurrent.futures.CancelledError as error:
        raise CommandFailed(f"{address}: the scheduler is lost", STATE) from error
    except OSError as error:  # also a timeout
        message = f"{address}: no scheduler with workers answers: {error}"
        raise CommandFailed(message, STATE) from error
    rows.sort(key=lambda row: (row.object, row.response))
    return [*responses_of(rows)], counts


def _collect(
    client: Any, data: bytes, kept: Kept, distributed: Any
) -> tuple[list[Row], Counts]:
    # The scheduler can make this result again on another worker; what is scattered is
    # lost with its worker.
    snapshot = client.submit(bytes, data, pure=False)
    rows: list[Row] = []
    counts = Counts()
    tasks = (
        client.submit(evaluate_part, snapshot, kept.packed(part), pure=False)
        for part in _parts(len(kept))
    )
    ahead = _AHEAD * max(1, sum(client.nthreads().values()))
    running = distributed.as_completed(
        task for task, _ in zip(tasks, range(ahead), strict=False)
    )
    for done in _finished(client, running):
        for line in done.result().splitlines():
            record = LINE.decode(line)
            if isinstance(record, Row):
                rows.append(record)
            elif isinstance(record, End):
                if record.rest.failure:
                    raise CommandFailed(record.rest.failure)
                counts.include(record.counts)
        done.release()
        if (task := next(tasks, None)) is not None:
            running.add(task)
    return rows, counts


def _finished(client: Any, running: Any) -> Iterator[Any]:
    """Yield the tasks as they end. Raises: CommandFailed if no worker is left."""
    since_s = time.monotonic()
    while not running.is_empty():
        if running.has_ready():
            yield next(running)
            since_s = time.monotonic()
        elif time.monotonic() - since_s < _WORKERS_S:
            time.sleep(_POLL_S)
        elif client.nthreads():
            since_s = time.monotonic()  # a task may take long
        else:
            raise CommandFailed("the scheduler has no worker any more", STATE)


def _parts(count: int) -> Iterator[range]:
    for start in range(0, count, _OBJECTS):
        yield range(start, min(count, start + _OBJECTS))


class _Sent:
    """The objects of a task, a Given."""

    def __init__(self, part: bytes) -> None:
        self._objects = msgspec.msgpack.decode(part, type=list[PACKED_OBJECT])
        self.numbers = [number for number, _, _ in self._objects]
        self.total = len(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def object(self, position: int) -> dict[str, Json]:
        raw: dict[str, Json] = msgspec.msgpack.decode(self._objects[position][2])
        return raw

    def identity(self, position: int) -> dict[str, Json]:
        return identity_of(self.object(position))

    def location(self, position: int) -> Location:
        return self._objects[position][1]

    def exceptions(self) -> tuple[dict[str, Json], ...]:
        return ()  # the process that sends the objects has compiled them


def evaluate_part(data: bytes, part: bytes) -> bytes:
    """Return the records of a part; a worker of the cluster calls this."""
    lines: list[str] = []
    writer, rest, counts = Writer(lines.append), Remainder(), Counts()
    try:
        work, evaluator = _linked(data)
        counts = write_rows(writer, evaluator, work, _Sent(part))
    except (CommandFailed, Error) as error:
        rest = Remainder(failure=error.message)
    writer.end(
        End(rows=0, counts=counts, objects=0, total=0, fingerprint="", rest=rest)
    )
    return "".join(lines).encode()


def _linked(data: bytes) -> tuple[Work, Evaluator]:
    """Link the policies once per thread: an Evaluator has state of its object."""
    if getattr(_LINKED, "data", None) == data:
        return _LINKED.work, _LINKED.evaluator
    work = decode(data)
    work.options.jobs = 1  # a worker has threads, so it must not fork
    options, context = work.options, work.context
    cluster_data = load_cluster_data(
        (),
        registry=options.registry,
        targets=work.targets,
        context=None if context is None else ContextFile(**context),
        plurals=work.plurals,
    )
    evaluator = work.evaluator(cluster_data)
    _LINKED.work, _LINKED.evaluator, _LINKED.data = work, evaluator, data
    return work, evaluator
