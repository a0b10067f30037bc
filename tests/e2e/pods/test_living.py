"""A cluster in use for a while: nothing is lost, forbidden or granted in vain.

A failure means: after an ordinary minute, an object, a report or a request is missing
or left over; a role needs a permission that deploy/ does not grant; or deploy/ grants
one that nothing needs.

LIVING_TURNS: the number of Namespaces (a minute by default). LIVING_KILLS=1: processes
are killed and the API server is frozen meanwhile, as in the daily job.
"""

import contextlib
import os
import random
import signal
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from kyverno_mp.limits import LOG_LINES_OF_CAUSE
from tests.e2e.api import Api
from tests.e2e.background import BACKGROUND
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.living import Faults, Living
from tests.e2e.logs import crowded
from tests.e2e.permissions import granted, is_explained, is_used, names_of
from tests.e2e.product import (
    ADMISSION,
    CLEANUP,
    RUNNING,
    Product,
    holder_of,
    log_ends,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TURNS: Final = int(os.environ.get("LIVING_TURNS", "60"))
KILLS: Final = os.environ.get("LIVING_KILLS") == "1"
KILLED_EACH: Final = 8
FROZEN_EACH: Final = 100
FROZEN_S: Final = 6.0
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REPORTS: Final = "kyverno-reports-controller"
POOLS: Final[dict[str, dict[str, str]]] = {
    BACKGROUND: {"BACKGROUND_WORKERS": "2"},
    CLEANUP: {"CLEANUP_WORKERS": "1"},
    REPORTS: {"REPORTS_WORKERS": "1"},
}
ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    ADMISSION: {"BACKGROUND_ELSEWHERE": "true", "REPORTS_ELSEWHERE": "true"},
    BACKGROUND: {**POOLS[BACKGROUND], "REPORTS_ELSEWHERE": "true"},
}
"""The settings of pods whose results others process, as in install-split.yaml."""
FORBIDDEN: Final = {(BACKGROUND, "create", "secrets"), (ADMISSION, "list", "secrets")}
"""The calls that the API server has to reject here, see living.Faults."""
SETTINGS: Final = {"RESTART_DELAY_S_MAX": "1", "DEPLOYMENT_NAME": ADMISSION}


@pytest.fixture(scope="module")
def has_definitions() -> bool:
    return True


@pytest.fixture(scope="module")
def own(plane: ControlPlane) -> Iterator[Api]:
    with Api(plane.access) as api:
        yield api


@contextlib.contextmanager
def running(
    plane: ControlPlane, folder: Path, *, split: bool
) -> Iterator[list[Product]]:
    """Run all roles, in one pod or each as its own account in its own pod."""
    together = ChainMap(*POOLS.values())
    pods: Mapping[str, Mapping[str, str]] = (
        {**POOLS, **ELSEWHERE} if split else {ADMISSION: together}
    )
    with contextlib.ExitStack() as stack:
        products = []
        for account, settings in pods.items():
            place = folder / account
            place.mkdir()
            extra = {**SETTINGS, **settings, "POD_NAME": account}
            workers = 1 if account == ADMISSION else 0
            product = Product(plane, place, workers, extra, account)
            product.start()
            stack.callback(product.stop)
            RUNNING.append(product)
            stack.callback(RUNNING.remove, product)
            products.append(product)
        try:
            yield products
        except BaseException:
            # The logs end before the test's report is made.
            print(*log_ends(), sep="\n")
            raise


def _is_led(api: Api) -> bool:
    return all(holder_of(api, lease) for lease in ("kyverno", *POOLS))


def _is_well(product: Product) -> bool:
    return not product.health()["reasons"]


class Chaos:
    """Kills a process of kyverno-mp now and then, and freezes the API server."""

    def __init__(self, plane: ControlPlane, products: list[Product]) -> None:
        self._plane = plane
        self._products = products
        self._dice = random.Random(1)
        self.kills = 0

    def __call__(self, turn: int) -> None:
        if turn % KILLED_EACH == 0:
            self._kill()
        if turn % FROZEN_EACH == 0:
            self._freeze()

    def _kill(self) -> None:
        processes = wait_for(self._processes)
        with contextlib.suppress(psutil.NoSuchProcess):
            self._dice.choice(processes).kill()
            self.kills += 1

    def _processes(self) -> list[psutil.Process]:
        """Return the roles and the webhook's workers, without the supervisors."""
        found: list[psutil.Process] = []
        with contextlib.suppress(OSError, psutil.NoSuchProcess, ValueError):
            for product in self._products:
                for pid in product.processes().values():
                    role = psutil.Process(pid)
                    found += [role, *role.children()]
        return found

    def _freeze(self) -> None:
        """Stop the API server until a request has waited in vain."""
        pid = self._plane.apiserver.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with Api(self._plane.access, FROZEN_S) as api, pytest.raises(OSError):  # noqa: PT011 - a time-out
                api.ask("GET", "/version")
        finally:
            os.kill(pid, signal.SIGCONT)


def test_what_is_not_done_is_said(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    """A failure means: rules do nothing for want of a right, and /healthz says "ok"."""
    with running(plane, tmp_path, split=False) as (product,):
        wait_for(lambda: _is_led(own))
        faults = Faults(plane, own)
        faults.create()
        wanted = (
            f"{BACKGROUND} may not create secrets",
            f"{ADMISSION} may not list secrets",
            f"GlobalContextEntry {faults.name}",
        )
        for text in wanted:
            wait_for(partial(_is_said, product, text))
        assert product.unready() == ""
        faults.mend()
        for text in wanted:
            wait_for(partial(_is_not_said, product, text))
        faults.remove()


def _is_said(product: Product, text: str) -> bool:
    return any(text in reason for reason in product.health()["reasons"])


def _is_not_said(product: Product, text: str) -> bool:
    return not _is_said(product, text)


@pytest.mark.parametrize("split", [False, True], ids=["one-pod", "split"])
def test_nothing_is_lost_or_left_over(
    own: Api, plane: ControlPlane, tmp_path: Path, *, split: bool
) -> None:
    with running(plane, tmp_path, split=split) as products:
        wait_for(lambda: _is_led(own))
        living = Living(plane, own)
        living.create_policies()
        chaos = Chaos(plane, products)
        living.turns(TURNS // 4 if split else TURNS, chaos if KILLS else None)
        living.settle()
        assert living.failed <= chaos.kills
        for product in products:
            wait_for(product.is_ready)
            wait_for(partial(_is_well, product))
        living.remove()


def test_permissions(plane: ControlPlane) -> None:
    """It reads the audit log of everything before."""
    calls = plane.audit.asked()
    ours = [one for one in calls if ":serviceaccount:kyverno:" in one.user]
    forbidden = {
        (one.user.rpartition(":")[2], one.verb, one.resource)
        for one in ours
        if one.code == 403
    }
    assert forbidden == FORBIDDEN
    everything = frozenset(granted())
    needed = names_of(ours)
    unused = [one for one in everything if not is_used(one, needed)]
    left = sorted(str(one) for one in unused if not is_explained(one, everything))
    assert not left, "\n".join(left)


def test_a_missing_report_definition_is_said_in_few_lines(
    own: Api, plane: ControlPlane, tmp_path: Path
) -> None:
    """A failure means: nobody notices that no report is written, or the log is full."""
    with running(plane, tmp_path, split=False) as (product,):
        wait_for(lambda: _is_led(own))
        living = Living(plane, own)
        living.create_policies()
        definition = f"{DEFINITIONS}/policyreports.wgpolicyk8s.io"
        own.delete(definition)
        # K8S: it ends after its objects. A report that is missing is a 404, too.
        wait_for(lambda: own.ask("GET", definition)[0] == 404)
        plane.audit.mark()
        living.turns(4)
        wait_for(partial(_is_said, product, "policyreports"))
        wait_for(lambda: _rejected(plane) > 3 * LOG_LINES_OF_CAUSE)
        text = product.program.log.read_text()
        install_crds(own)
        living.settle()
        wait_for(partial(_is_well, product))
        living.remove()
    assert crowded(text) == []


def _rejected(plane: ControlPlane) -> int:
    calls = plane.audit.asked(REPORTS)
    return sum(
        1 for one in calls if one.code == 404 and one.resource == "policyreports"
    )
