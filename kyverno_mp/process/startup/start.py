"""Define the inputs of every role.

Room: process. Takes: nothing. Gives: Start. Next: process/roles/table.py and the
modules of the roles.
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
    files: Files | None
    """The certificate to serve, None for an authorizer without TLS."""
    reviews: socket.socket | None
    """The listening socket of the webhook or authorizer, None in a pod without one. An
    authorizer for Envoy opens its own sockets for this address."""
    probes: socket.socket
    """The health process's listening socket."""
    dashboard: socket.socket | None = None
    """The dashboard's listening socket, None if it is off."""
