"""The table of the roles: every process that the supervisor keeps alive.

Room: process. Takes: Start. Gives: roles_of, QUEUES. Next: process/serve.py gives them
to the supervisor. May touch: nothing before a role runs.
Source: docs/architecture.md 2.

A new role is an entry here and a module with ``run(start)``; besides it needs its
settings (settings/) and, if it has an account, its part of the RBAC (deploy/).
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

    ``deregisters``: in a cluster. ``wanted``: whether settings ask for it, as a pool is
    off that has no workers. ``queues``: those whose depth its page of metrics tells.
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
    """Return the roles that the settings ask for, in the order of their starts."""
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
