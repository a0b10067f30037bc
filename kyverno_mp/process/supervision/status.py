"""Report the supervisor's state to the health process through one small file.

Room: process. Takes: states from supervisor.py. Gives: SupervisorStatus, written
to a file and read from it. Next: process/supervision/readiness.py.
May touch: ``supervisor_status.json`` in the runtime folder.
"""

from pathlib import Path

import msgspec

from kyverno_mp.snapshot.room import replace_record
from kyverno_mp.values.records import UNDECODABLE


class ProcessState(msgspec.Struct, frozen=True):
    """One supervised process. ``pid`` is 0 while it waits for its next start."""

    name: str
    pid: int
    restarts: int = 0
    crash_loop: bool = False


class SupervisorStatus(msgspec.Struct, frozen=True):
    """The supervisor's state of all processes."""

    pid: int
    draining: bool = False
    processes: tuple[ProcessState, ...] = ()
    refused: int = 0
    """Connections refused because the webhook was down in a crash loop."""


_NAME = "supervisor_status.json"
_DECODER = msgspec.json.Decoder(SupervisorStatus)


def write_supervisor_status(directory: Path, supervisor: SupervisorStatus) -> bool:
    """Replace the file; return False if it stays, because the folder is full."""
    return replace_record(directory / _NAME, msgspec.json.encode(supervisor))


def is_draining(directory: Path) -> bool:
    """Return whether the supervisor has received the order to end."""
    supervisor = read_supervisor_status(directory)
    return supervisor is not None and supervisor.draining


def read_supervisor_status(directory: Path) -> SupervisorStatus | None:
    """Return the last status, None if none exists yet."""
    try:
        return _DECODER.decode((directory / _NAME).read_bytes())
    except (OSError, *UNDECODABLE):
        return None
