"""Configure Gunicorn in code and run its arbiter in this process.

Room: webhook. Takes: Settings, a listening socket, a Start. Gives: nothing; returns
when the arbiter ends.
Next: worker. May touch: this process becomes the arbiter: signals, children.
Source: docs/behaviour/controllers 2.1, 3.7; gunicorn 27 config.py,
glogging.py.
"""

import asyncio
import dataclasses
import gc
import math
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from gunicorn.app.base import BaseApplication
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger

from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.collector import tune
from kyverno_mp.webhook.worker import Served, Start, WebhookWorker

_NO_WORKER_EXIT: Final = 1
_SWITCH_S: Final = 0.001
"""How long the event loop waits for a computing thread each time it returns from the
kernel, several times per review. Python's default of 5 ms would add up."""


class _Starts:
    """Ends the arbiter if no worker is able to start.

    Gunicorn would replace such workers at once and without end, and clients would wait
    in the socket's queue. The supervisor restarts the arbiter with back-off instead,
    reports the crash loop, and refuses connections meanwhile.
    """

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failures = 0

    def worker_ended(self, arbiter: Any, worker: WebhookWorker) -> None:
        """Note the end of a worker. Raises: HaltServer."""
        living = arbiter.WORKERS.values()
        has_served = any(one.has_served() for one in (worker, *living))
        worker.forget()
        if has_served:
            self._failures = 0
            return
        self._failures += 1
        # An arbiter that is stopping has no listeners.
        if arbiter.LISTENERS and self._failures >= self._failures_max:
            raise HaltServer("no worker is able to start", _NO_WORKER_EXIT)


def gunicorn_options(
    settings: Settings,
    *,
    after_fork: Callable[[], None],
    before_fork: Callable[[], None],
    on_end: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the options that differ from Gunicorn's defaults, except ``bind``.

    ``on_end`` is called in the arbiter after the end of a worker.
    """

    def pre_fork(_arbiter: object, _worker: object) -> None:
        before_fork()

    def when_ready(_arbiter: object) -> None:
        # Called after the arbiter has set its handlers. Ctrl-C reaches every process of
        # the terminal, but the supervisor stops them in order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def post_fork(_arbiter: object, _worker: object) -> None:
        after_fork()

    def child_exit(arbiter: object, worker: WebhookWorker) -> None:
        on_end()
        starts.worker_ended(arbiter, worker)

    starts = _Starts(settings.crash_loop_deaths)
    return {
        "workers": settings.webhook_workers,
        "worker_class": WebhookWorker,
        "keepalive": settings.webhook_keepalive_s,
        "timeout": settings.worker_silence_s_max,
        "graceful_timeout": math.ceil(settings.drain_timeout_s),
        "preload_app": False,
        "control_socket_disable": True,
        "when_ready": when_ready,
        "pre_fork": pre_fork,
        "post_fork": post_fork,
        "child_exit": child_exit,
        "accesslog": None,
        "errorlog": "-",
        "logger_class": ArbiterLog,
        "loglevel": settings.log_level,
    }


def freeze() -> None:
    """Exclude all existing objects from garbage collection, so that forks share them.

    SAFETY: called in the arbiter before each fork. A collection in a worker would write
    to the shared pages and so copy them.
    """
    gc.collect()
    gc.freeze()


def tune_worker() -> None:
    """Configure the garbage collector for a worker's life."""
    tune()
    sys.setswitchinterval(_SWITCH_S)


# Gunicorn has no type hints.
class WebhookApplication(BaseApplication):  # type: ignore[misc]
    """Gunicorn's application object, configured in code, without files or arguments."""

    def __init__(self, options: dict[str, Any], start: Start) -> None:
        self._options = options
        self._start = start
        super().__init__()

    def load_config(self) -> None:
        """Set Gunicorn's options."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Start:
        """Return the worker's Start; called in the worker."""
        return self._start


def run(
    settings: Settings,
    listener: socket.socket,
    start: Start,
    is_leaving: Callable[[], bool],
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Run arbiter and workers until SIGTERM; ``start`` wires a forked worker.

    The supervisor opened ``listener`` and keeps it open, so that connections are queued
    instead of refused while the arbiter restarts. ``is_leaving``: whether the pod is
    about to end. ``on_end`` is called in the arbiter after the end of a worker.
    """

    def start_leavable(loop: asyncio.AbstractEventLoop) -> Served:
        return dataclasses.replace(start(loop), is_leaving=is_leaving)

    options = gunicorn_options(
        settings, before_fork=freeze, after_fork=tune_worker, on_end=on_end
    )
    options["bind"] = [f"fd://{listener.fileno()}"]
    WebhookApplication(options, start_leavable).run()


class ArbiterLog(Logger):  # type: ignore[misc]
    """Gunicorn's logger without its own handlers: records propagate to the root."""

    def setup(self, cfg: Any) -> None:
        """Set the level as Gunicorn does; the root logger writes the records."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log the arbiter's lines about each start and stop at level debug.

        They repeat our own lines, and show the address as an http:// URL.
        """
        self.debug(msg, *args, **kwargs)
