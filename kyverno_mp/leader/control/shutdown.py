"""Implement the shutdown handshake, in which a role deregisters before it is stopped.

Room: leader. Takes: nothing. Gives: the request signal, the mark of completion.
Next: process/supervision/supervisor.py requests it, leader/control/run.py complies.
May touch: the files ``deregistered-<role>`` in the runtime folder.
Source: docs/behaviour/controllers 3.7.

After SIGTERM the webhook keeps answering for a while, with snapshots that follow the
cluster. Meanwhile the leader releases its lease and, if no replica remains, removes the
webhook configurations. While they exist, some webhook must answer.
"""

import signal
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGUSR1
TIMEOUT_S: Final = 10.0
_MARK: Final = "deregistered-"


def mark(runtime_dir: Path, role: str) -> None:
    """Record that the deregistration of a role is complete."""
    (runtime_dir / f"{_MARK}{role}").touch(mode=0o600)


def is_marked(runtime_dir: Path, role: str) -> bool:
    """Return whether the deregistration of a role is complete."""
    return (runtime_dir / f"{_MARK}{role}").exists()
