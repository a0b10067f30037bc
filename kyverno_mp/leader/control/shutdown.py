"""The shutdown handshake: a role is asked to deregister before anything ends.

Room: leader. Takes: nothing. Gives: the signal that asks, the mark that answers.
Next: process/supervisor.py asks, leader/control/run.py answers.
May touch: the file ``deregistered`` in the runtime folder.
Source: docs/behaviour/controllers 3.7.

At SIGTERM the webhook goes on answering for a while, with snapshots that follow the
cluster. Meanwhile the leader gives its lease back and, when no replica follows, removes
the webhook configurations: while they stand, somebody must answer.
"""

import signal
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGUSR1
TIMEOUT_S: Final = 10.0
_MARK: Final = "deregistered"


def mark(runtime_dir: Path) -> None:
    """Say that nothing is registered any more that should not be."""
    (runtime_dir / _MARK).touch(mode=0o600)


def is_marked(runtime_dir: Path) -> bool:
    """Tell whether that was said."""
    return (runtime_dir / _MARK).exists()
