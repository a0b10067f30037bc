"""Run the webhook's arbiter on the socket that the supervisor opened.

Room: process. Takes: Settings, a listening socket, certificate files. Gives: nothing;
ends with the arbiter. Next: webhook/server.py. May touch: becomes the arbiter.
"""

import socket
from pathlib import Path

from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.process.certificate import Files
from kyverno_mp.queues.journal import FOLDER
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook import server
from kyverno_mp.webhook.start import Places, make_start


def run(
    settings: Settings, runtime_dir: Path, listener: socket.socket, files: Files
) -> None:
    """Serve until SIGTERM; the arbiter's entry."""
    places = Places(
        snapshot=runtime_dir / SNAPSHOT,
        pages=runtime_dir / PAGES,
        cert=files.cert,
        key=files.key,
        journals=None if settings.standalone else runtime_dir / FOLDER,
    )
    server.run(settings, listener, make_start(settings, places))
