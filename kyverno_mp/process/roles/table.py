"""Define the table of roles: the processes that the supervisor keeps alive.

Room: process. Takes: Start. Gives: roles_of, QUEUES. Next: process/serve.py passes them
to the supervisor. May touch: nothing before a role runs.
Source: docs/architecture.md 2.

A new role needs an entry here, a module with ``run(start)`` and its settings. A pool
also has a Lease and a ServiceAccount, both with upstream's name, and its permissions in
deploy/parts. Everything else is derived from the entry: the process, its part of
/healthz and readiness, its metrics, its heartbeat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kyverno_mp.process.roles import (
    authorizer,
    background,
    cleanup,
    dashboard,
    health,
    leader,
    reports,
    webhook,
)
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.readiness import AUTHORIZER, LEADER, WEBHOOK
from kyverno_mp.process.supervision.supervisor import Role
from kyverno_mp.settings.settings import Settings


def _always(_settings: Settings) -> bool:
    return True


def _runs_cleanup(settings: Settings) -> bool:
    return settings.cleanup_workers > 0


def _runs_background(settings: Settings) -> bool:
    return settings.background_workers > 0


def _runs_reports(settings: Settings) -> bool:
    return settings.reports_workers > 0


def _evaluators(settings: Settings) -> int:
    return settings.reports_workers


def _one(_settings: Settings) -> int:
    return 1


def _authorizes(settings: Settings) -> bool:
    return bool(settings.authz_mode)


def _servers(settings: Settings) -> int:
    """Return the number of gRPC servers; the arbiter forks the HTTP workers itself."""
    return settings.webhook_workers if settings.authz_mode == authorizer.ENVOY else 1


def _runs_webhook(settings: Settings) -> bool:
    return settings.runs_webhook


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One role; flags as in the supervisor's Role.

    ``deregisters``: applies in a cluster only. ``is_enabled``: whether the settings
    enable the role; a pool without workers is disabled. ``queues``: the queues whose
    depth the role's metric page reports. ``account``: the name of a pool's
    ServiceAccount and Lease, "" for roles that are not pools. ``count``: the number of
    processes of the role.
    """

    name: str
    run: Callable[[Start], None]
    drains: bool = False
    reloads: bool = False
    deregisters: bool = False
    is_enabled: Callable[[Settings], bool] = _always
    queues: tuple[str, ...] = ()
    account: str = ""
    count: Callable[[Settings], int] = _one


def _answer_probes(start: Start) -> None:
    settings = start.settings
    pools, files = pools_of(settings), start.files
    health.run(settings, start.runtime_dir, start.probes, QUEUES, pools, files)


def _show_pages(start: Start) -> None:
    dashboard.run(start, pools_of(start.settings))


def _shows_pages(settings: Settings) -> bool:
    return settings.dashboard


ROLES: Final = (
    Entry(
        name=LEADER,
        run=leader.run,
        reloads=True,
        deregisters=True,
        queues=("events", "controllers"),
    ),
    Entry(
        name=WEBHOOK,
        run=webhook.run,
        drains=True,
        queues=("audit", "io", "image", "long", "events"),
        is_enabled=_runs_webhook,
    ),
    Entry(
        name=AUTHORIZER,
        run=authorizer.run,
        drains=True,
        is_enabled=_authorizes,
        count=_servers,
    ),
    Entry(
        name=cleanup.NAME,
        run=cleanup.run,
        queues=("events",),
        is_enabled=_runs_cleanup,
        account=cleanup.ACCOUNT,
    ),
    Entry(
        name=background.NAME,
        run=background.run,
        queues=("events",),
        is_enabled=_runs_background,
        account=background.ACCOUNT,
    ),
    Entry(
        name=reports.NAME,
        run=reports.run,
        queues=("events",),
        is_enabled=_runs_reports,
        account=reports.ACCOUNT,
    ),
    Entry(
        name=reports.EVALUATOR,
        run=reports.run_evaluator,
        is_enabled=_runs_reports,
        count=_evaluators,
    ),
    Entry(name=dashboard.NAME, run=_show_pages, is_enabled=_shows_pages),
    Entry(name="health", run=_answer_probes),
)
QUEUES: Final[Mapping[str, tuple[str, ...]]] = {
    role.name: role.queues for role in ROLES
}


def pools_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of the pools that the settings enable."""
    return tuple(one.name for one in ROLES if one.account and one.is_enabled(settings))


def roles_of(start: Start) -> tuple[Role, ...]:
    """Return the roles that the settings enable, in start order."""
    settings = start.settings
    return tuple(
        Role(
            one.name if number == 0 else f"{one.name}-{number + 1}",
            partial(one.run, start),
            drains=one.drains,
            reloads=one.reloads,
            deregisters=one.deregisters and settings.registers,
            listener=start.reviews if one.name in (WEBHOOK, AUTHORIZER) else None,
        )
        for one in ROLES
        if one.is_enabled(settings)
        for number in range(one.count(settings))
    )
