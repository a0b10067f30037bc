"""How a role is asked to take its leave before anything ends, and says that it has.

Room: process. Takes: nothing. Gives: the signal, the mark. Next: supervisor.py asks,
cluster.py answers. May touch: the file ``left`` in the runtime folder.
Source: spec/controllers.md 3.7.

At SIGTERM the webhook goes on answering for a while, with snapshots that follow the
cluster. Meanwhile the leader gives its lease back and, when no replica follows, removes
the webhook configurations: while they stand, somebody must answer.
"""

import signal
from pathlib import Path
from typing import Final

SIGNAL: Final = signal.SIGUSR1
TIMEOUT_S: Final = 10.0
_MARK: Final = "left"


def mark(runtime_dir: Path) -> None:
    """Say that the leave was taken."""
    (runtime_dir / _MARK).touch(mode=0o600)


def is_marked(runtime_dir: Path) -> bool:
    """Tell whether it was taken."""
    return (runtime_dir / _MARK).exists()
