"""The table of the roles: every process that the supervisor keeps alive.

Room: process. Takes: Start. Gives: roles_of, QUEUES. Next: process/serve.py passes them
to the supervisor. May touch: nothing before a role runs.
Source: docs/architecture.md 2.

A new role needs an entry here, a module with ``run(start)``, its settings (settings/)
and, if it has a ServiceAccount, its RBAC (deploy/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kyverno_mp.process import health, leader, webhook
from kyverno_mp.process.readiness import LEADER, WEBHOOK
from kyverno_mp.process.start import Start
from kyverno_mp.process.supervisor import Role
from kyverno_mp.settings.settings import Settings


def _always(_settings: Settings) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One role; flags as in the supervisor's Role.

    ``deregisters``: applies in a cluster only. ``wanted``: whether the settings enable
    the role; a pool without workers is disabled. ``queues``: the queues whose depth the
    role's metric page reports.
    """

    name: str
    run: Callable[[Start], None]
    drains: bool = False
    reloads: bool = False
    deregisters: bool = False
    wanted: Callable[[Settings], bool] = _always
    queues: tuple[str, ...] = ()


def _answer_probes(start: Start) -> None:
    health.run(start.settings, start.runtime_dir, start.probes, QUEUES)


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
        queues=("audit", "io", "long", "events"),
    ),
    Entry(name="health", run=_answer_probes),
)
QUEUES: Final[Mapping[str, tuple[str, ...]]] = {one.name: one.queues for one in ROLES}


def roles_of(start: Start) -> tuple[Role, ...]:
    """Return the roles that the settings enable, in start order."""
    settings = start.settings
    return tuple(
        Role(
            one.name,
            partial(one.run, start),
            drains=one.drains,
            reloads=one.reloads,
            deregisters=one.deregisters and not settings.standalone,
        )
        for one in ROLES
        if one.wanted(settings)
    )
