"""A parent of clean-up processes: each line of its input starts one, forked and warm.

Takes: addresses of API servers, one a line. Gives: the id of each process, one a line.
May touch: processes, which end with it.
"""

import os
import signal
import sys
import threading

from kyverno_mp.cleanup.start import run
from kyverno_mp.kube.access import at_url
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.process.supervision.parent_death import die_with_parent
from kyverno_mp.queues.clock import Clock
from tests.unit.cleanup.cluster import Recorded, dependencies_with


def main() -> None:
    """Start processes until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        parent = os.getpid()
        child = os.fork()
        if not child:
            die_with_parent(parent, signal.SIGKILL)
            client = Client(Pool(at_url(line.strip())), "cleaner")
            run(dependencies_with(client, Recorded(), Clock()), threading.Event())
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
