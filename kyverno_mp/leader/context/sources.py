"""Define the source that keeps a GlobalContextEntry's data current, and its state.

Room: leader. Takes: an entry. Gives: EntryState, the state of an entry;
EntrySource, and SourceThread for its implementations. Next:
leader/context/calls.py, leader/context/resources.py. May touch: threads.
Source: docs/behaviour/controllers 1.5, 11.1-11.3; Kyverno pkg/globalcontext.

Each entry has its own threads, so that a slow, failing or huge entry does not delay
other entries. Its data is bounded; a larger entry is an error until it fits again.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from kyverno_mp.leader.context.entries import failed_values
from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRY_BYTES_MAX
from kyverno_mp.policy.documents.global_context_entry import GlobalContextEntry
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
_ERROR_PAUSE_S: Final = 10.0
TOO_LARGE: Final = (
    f"the data has more than {GLOBAL_CONTEXT_ENTRY_BYTES_MAX} bytes: name a"
    " namespace or a narrower urlPath, or split the entry"
)


@dataclass(frozen=True, slots=True)
class EntryState:
    """The current state of an entry.

    ``values`` are described in leader/context/entries.py. ``settled`` is True after the
    first attempt, with data or with an error.
    """

    values: Mapping[str, bytes]
    ready: bool = False
    message: str = "waiting for data"
    refreshed: datetime | None = None
    settled: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the size of the values in the segment."""
        return sum(map(len, self.values.values()))


class EntrySource(Protocol):
    """Keeps the data of one entry current."""

    state: EntryState

    def start(self) -> None:
        """Start the source."""

    def stop(self) -> None:
        """Stop; this can wait for a thread, but never for the network."""

    def retry_now(self) -> None:
        """Retry failures now, because the served kinds have changed."""


Report = Callable[[EntryState, EntryState], None]
"""Called with the previous and the new state of an entry."""


class SourceThread:
    """A thread that updates ``state``, and reports its changes."""

    def __init__(
        self, entry: GlobalContextEntry, state: EntryState, report: Report
    ) -> None:
        self._entry = entry
        self._name = entry.metadata.name
        self.state = state
        self._report = report
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run_until_stopped, name=f"gctx-{self._name}"[:15], daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to stop."""
        self._stopping.set()

    def retry_now(self) -> None:
        """Do nothing, because the source does not depend on kinds."""

    def _run(self) -> None:
        raise NotImplementedError

    def _run_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run()
            except Exception as error:  # noqa: BLE001 - or stale data would stay
                _log.exception(
                    "global context entry failed", extra=fields(entry=self._name)
                )
                self._fail(f"internal error: {type(error).__name__}")
                self._stopping.wait(_ERROR_PAUSE_S)

    def _set_state(self, state: EntryState) -> None:
        if state.message and state.message != self.state.message:
            _log.warning(
                "global context entry not ready",
                extra=fields(entry=self._name, problem=state.message),
            )
        before, self.state = self.state, state
        self._report(before, state)

    def _fail(self, message: str, detail: str = "") -> None:
        """Let every read fail with ``message``."""
        self._set_state(
            replace(
                self.state,
                values=failed_values(self._name, message),
                ready=False,
                message=detail or message,
                settled=True,
            )
        )
