"""Run the leader of this pod, with or without a cluster.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM. Next: leader/loop.py,
leader/control/run.py, leader/authorizer.py. May touch: this process becomes the leader.
"""

from kyverno_mp.leader import loop
from kyverno_mp.leader.authorizer import run_authorizer_leader
from kyverno_mp.leader.control.run import run_leader
from kyverno_mp.process.startup.start import Start


def run(start: Start) -> None:
    """Publish snapshots until SIGTERM; the entry point of the leader."""
    if start.settings.authz_mode:
        run_authorizer_leader(start.settings, start.runtime_dir)
    elif start.settings.standalone:
        loop.run(start.settings, start.runtime_dir)
    else:
        assert start.files is not None
        run_leader(start.settings, start.runtime_dir, start.files.cert, start.files.key)
