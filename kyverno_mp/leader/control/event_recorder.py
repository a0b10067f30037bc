"""Record the Events of a leader in a cluster from journals and controllers.

Room: leader. Takes: Settings, the runtime folder, the leader's view of the cluster.
Gives: EventRecorder, whose thread writes. Next: wire.py; controllers submit to it.
May touch: nothing itself; its components are in queues, kube and controllers.
Source: docs/behaviour/controllers 9.1, 10.3 (generateSuccessEvents,
successEventActions).
"""

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.controllers.admission_events import AdmissionEvents
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventFilter, Events, omitted_reasons
from kyverno_mp.kube.resource import Key
from kyverno_mp.leader.loop import SNAPSHOT
from kyverno_mp.policy.configuration import Configuration, successes_of
from kyverno_mp.queues.journal import EVENTS, JournalReader
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import EVENTS as EVENTS_BELL
from kyverno_mp.snapshot.bell import new_bell


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Identified(msgspec.Struct):
    metadata: _Metadata


_DECODER: Final = msgspec.json.Decoder(_Identified)


class EventRecorder:
    """The Events of this process; controllers add their own with ``events.submit``."""

    def __init__(
        self,
        settings: Settings,
        runtime_dir: Path,
        objects: Objects,
        configuration: Callable[[], Configuration],
        exception: Callable[[Key], bytes | None],
    ) -> None:
        """``exception`` returns the cached PolicyException for a key."""
        self.events = Events(
            objects,
            settings.pod_name or socket.gethostname(),
            event_filter=EventFilter(
                omitted_reasons(settings.omit_events),
                lambda: successes_of(configuration()),
            ),
            queued_max=settings.events_queued_max,
        )
        self._exception = exception
        self._admission = AdmissionEvents(
            JournalReader(EVENTS.folder(runtime_dir)),
            self.events,
            self._uid_of,
            partial(new_bell, runtime_dir / SNAPSHOT, EVENTS_BELL),
        )

    def start(self) -> None:
        """Start the writer thread."""
        self._admission.start()

    def stop(self) -> None:
        """Write the pending Events that the API server still accepts, and stop."""
        self._admission.stop()

    def gauges(self) -> Mapping[str, int]:
        """Return the event counters for the leader's metric page."""
        return {
            "events_queue_depth": self.events.queued_count,
            "events_queue_dropped": self.events.dropped,
        }

    def _uid_of(self, key: str) -> str:
        namespace, _, name = key.rpartition("/")
        document = self._exception((namespace, name))
        return "" if document is None else _DECODER.decode(document).metadata.uid
