"""Define the inputs of every role.

Room: process. Takes: nothing. Gives: Start. Next: process/roles/table.py and the
modules of the roles. May touch: nothing.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Values that the supervisor opened or wrote before any fork."""

    settings: Settings
    runtime_dir: Path
    files: Files
    """The certificate to serve."""
    reviews: socket.socket | None
    """The webhook's listening socket, None in a pod without a webhook."""
    probes: socket.socket
    """The health process's listening socket."""
    dashboard: socket.socket | None = None
    """The dashboard's listening socket, None if it is off."""
