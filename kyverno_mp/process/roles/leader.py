"""Run the leader of this pod, with or without a cluster, and its helpers.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM. Next: leader/loop.py,
leader/control/run.py, leader/authorizer.py, leader/compile_helpers.py.
May touch: this process becomes the leader; fork; the certificate files.
"""

import logging
import os
import signal
import socket
from functools import partial

from kyverno_mp.controllers.certificates.reconcile import CertificateSecrets
from kyverno_mp.leader import loop
from kyverno_mp.leader.authorizer import run_authorizer_leader
from kyverno_mp.leader.compile_cache import CompileCache
from kyverno_mp.leader.compile_helpers import CompileHelpers, serve
from kyverno_mp.leader.control.run import run_leader
from kyverno_mp.leader.policy_store import PolicyStore, new_store
from kyverno_mp.limits import COMPILE_HELPERS_MAX
from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.parent_death import die_with_parent
from kyverno_mp.settings.machine import cores
from kyverno_mp.settings.settings import Settings

_log = logging.getLogger(__name__)


def run(start: Start) -> None:
    """Publish snapshots until SIGTERM; the entry point of the leader."""
    settings, runtime_dir = start.settings, start.runtime_dir
    if settings.authz_mode:
        run_authorizer_leader(settings, runtime_dir)
        return
    # SAFETY: forked before this process has a thread.
    helpers = _fork_helpers(settings)
    try:
        if settings.standalone:
            loop.run(settings, runtime_dir, helpers=helpers)
        else:
            assert start.files is not None
            serve_with = partial(_serve_with, start.files)
            run_leader(settings, runtime_dir, serve_with, helpers)
    finally:
        helpers.close()


def _serve_with(files: Files, secrets: CertificateSecrets) -> None:
    files.replace(secrets.certificate, secrets.key)
    _log.info("serving with the certificate of the cluster")


def _fork_helpers(settings: Settings) -> CompileHelpers:
    """Fork a helper for each core; one core alone needs none."""
    count = min(cores(), COMPILE_HELPERS_MAX)
    links: list[socket.socket] = []
    pids: list[int] = []
    leader = os.getpid()
    for _ in range(count if count > 1 else 0):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for link in (ours, *links):
                link.close()
            _run_helper(settings, theirs, leader)
        theirs.close()
        links.append(ours)
        pids.append(pid)
    return CompileHelpers(links, pids)


def _run_helper(settings: Settings, link: socket.socket, leader: int) -> None:
    def store_of(cache: CompileCache) -> PolicyStore:
        return new_store(settings, cache=cache)

    try:
        die_with_parent(leader, signal.SIGKILL)
        serve(link, store_of)
    except Exception:  # noqa: BLE001 - the leader has no part of a helper's error
        _log.exception("a helper ends; the leader compiles its policies")
    finally:
        os._exit(0)
