"""Kyverno's own end-to-end cases, if all their needs are met, against kyverno-mp.

A failure means: a case that the real program passes on such a control plane fails here.
The other cases are listed by ``python -m tests.e2e.chainsaw list``; known differences
are in ledger.yaml, checked in both directions.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from kyverno_mp.errors import Error
from tests.e2e.api import Api, Refused
from tests.e2e.chainsaw.commands import command_environment
from tests.e2e.chainsaw.documents import Failed
from tests.e2e.chainsaw.index import (
    CLEANUP_VERBS,
    FOREIGN_CRDS,
    PROFILES,
    Case,
    all_cases,
    stage,
)
from tests.e2e.chainsaw.read import read_test
from tests.e2e.chainsaw.run import Hooks, PolicyKey, run_test
from tests.e2e.chainsaw.surroundings import grant_cleanup, put_back, put_up
from tests.e2e.chainsaw.sweep import sweep, sweep_certificates, sweep_webhooks
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product
from tests.waiting import pause, wait_for

_POOLS: Final = {
    "CLEANUP_WORKERS": "1",
    "BACKGROUND_WORKERS": "4",
    "REPORTS_WORKERS": "1",
}
RUNS: Final = 3
"""Some cases do not wait until their policy is in force.

The real program also had three runs for its verdict, one of which had to pass; later
runs wait longer.
"""
LEDGER: Final[dict[str, str]] = {
    one["case"]: one["reason"]
    for one in yaml.safe_load(Path(__file__).with_name("ledger.yaml").read_text()) or []
}
_LINKED_S: Final = 0.2
_LOOKS_MAX: Final = 500
"""The time for workers to link new policies, and for caches to follow."""


def _cases() -> list[Case]:
    """Return the cases by configuration of the product: each needs a separate start."""
    chosen = [case for case in all_cases() if case.verdict and not case.missing]
    return sorted(chosen, key=lambda case: case.profile)


class Products:
    """One product at a time, configured as a case needs it."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path) -> None:
        self._plane = plane
        self._api = api
        self._folder = folder
        self._running: dict[str, Product] = {}

    def need(self, profile: str) -> None:
        """Restart the product if its configuration changes."""
        if profile in self._running:
            return
        self.stop()
        sweep_webhooks(self._api)
        sweep_certificates(self._api)
        folder = self._folder / (profile or "usual")
        folder.mkdir(exist_ok=True)
        verbs = CLEANUP_VERBS.get(profile, CLEANUP_VERBS[""])
        grant_cleanup(self._api, verbs)
        extra = {**_POOLS, **PROFILES[profile]}
        product = Product(self._plane, folder, extra=extra)
        product.start()
        self._running = {profile: product}

    def await_no_policies(self) -> None:
        """Wait until no policy is in force: workers link the leader's publications."""
        for product in self._running.values():
            wait_for(partial(_has_none, product))
        time.sleep(_LINKED_S)

    def await_policy(self, key: PolicyKey, generation: int) -> None:
        """Wait until the workers serve a policy; one may be of no use to them."""
        for product in self._running.values():
            for _ in range(_LOOKS_MAX):
                if product.serves(*key, generation):
                    break
                pause()

    def stop(self) -> None:
        for product in self._running.values():
            product.stop()
        self._running = {}


def _has_none(product: Product) -> bool:
    return not product.policies()


@pytest.fixture(scope="module")
def products(
    cluster: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Products]:
    if cluster.plane is None:
        pytest.skip("an existing cluster runs a kyverno-mp of its own")
    install_crds(api)
    install_crds(api, FOREIGN_CRDS)
    put_up(api)
    running = Products(cluster.plane, api, tmp_path_factory.mktemp("products"))
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.id)
def test_case(
    case: Case, products: Products, cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    products.need(case.profile)
    assert cluster.plane is not None
    etcd_url = cluster.plane.etcd_url
    end = partial(end_namespace, api, etcd_url)
    environment = command_environment(
        cluster.kubeconfig, cluster.kubectl, tmp_path / "bin"
    )
    known = case.id in LEDGER
    left = 1 if known else RUNS
    while left:
        left -= 1
        test = read_test(stage(case, tmp_path / str(left)), 8.0 if known else 60.0)
        sweep(api, products.await_no_policies, etcd_url)
        put_back(api)
        try:
            is_first = left == RUNS - 1
            pause_s = 0.0 if is_first else 1.0
            run_test(
                *(test, api, environment),
                pause_s=pause_s,
                is_brief=is_first,
                hooks=Hooks(end, products.await_policy),
            )
        except (Failed, Refused, Error) as error:
            if not known and not left:
                raise
            print(f"run again: {error}")
        else:
            assert not known, f"no longer differs: remove it from the ledger ({LEDGER})"
            return
