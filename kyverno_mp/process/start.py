"""What every role is started with.

Room: process. Takes: nothing. Gives: Start. Next: process/roles.py and the modules of
the roles. May touch: nothing.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from kyverno_mp.process.certificate import Files
from kyverno_mp.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Opened and written by the supervisor's process before any fork."""

    settings: Settings
    runtime_dir: Path
    files: Files
    """The certificate to serve with."""
    reviews: socket.socket
    """Where the webhook listens."""
    probes: socket.socket
    """Where the health process listens."""
