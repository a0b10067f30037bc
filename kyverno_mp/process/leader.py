"""Be the leader of this pod, with a cluster or without.

Room: process. Takes: Start. Gives: nothing; ends with SIGTERM. Next: leader/loop.py,
leader/control/run.py. May touch: becomes the leader.
"""

from kyverno_mp.leader import loop
from kyverno_mp.leader.control.run import run_leader
from kyverno_mp.process.start import Start


def run(start: Start) -> None:
    """Publish until SIGTERM; the leader's entry."""
    if start.settings.standalone:
        loop.run(start.settings, start.runtime_dir)
    else:
        run_leader(start.settings, start.runtime_dir, start.files.cert, start.files.key)
