"""Fixtures of the end-to-end tests: one control plane for all of them.

They run if selected by path (``pytest tests/e2e``) or with KYVERNO_MP_E2E=1; the first
run compiles Kubernetes. KUBECONFIG names an existing cluster to use instead.
"""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.api import Api
from tests.e2e.binaries import find_binaries, find_kubectl
from tests.e2e.chainsaw.sweep import sweep_policies, sweep_webhooks
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.kubeconfig import Access, read_kubeconfig
from tests.e2e.prepared import running_plane
from tests.e2e.product import Product, log_ends

FOLDER = Path(__file__).parent

_PLANE: Final = pytest.StashKey[ControlPlane]()


@dataclass(frozen=True)
class Cluster:
    """The cluster under test; ``plane`` is None if the tests did not start it."""

    access: Access
    kubeconfig: Path
    kubectl: Path
    plane: ControlPlane | None


def _is_wanted(config: pytest.Config) -> bool:
    asked = any("e2e" in argument for argument in config.invocation_params.args)
    return asked or os.environ.get("KYVERNO_MP_E2E") == "1"


def _needs_cluster(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "cluster" in item.fixturenames


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Skip cluster tests unless selected; compile before timeouts run."""
    ours = [item for item in items if FOLDER in item.path.parents]
    needing = [item for item in ours if _needs_cluster(item)]
    if not _is_wanted(config):
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="run as `pytest tests/e2e`"))
    elif needing and not os.environ.get("KUBECONFIG"):
        find_binaries()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the running products to the report of a failed test."""
    report = yield
    if report.failed and FOLDER in item.path.parents:
        report.sections += [("log of kyverno-mp", text) for text in log_ends()]
    return report


@pytest.fixture(scope="session")
def cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield the cluster that KUBECONFIG names, or else a new control plane."""
    given = os.environ.get("KUBECONFIG")
    if given:
        path = Path(given)
        yield Cluster(read_kubeconfig(path), path, find_kubectl(), None)
        return
    folder = tmp_path_factory.mktemp("control-plane")
    with running_plane(folder, has_definitions=True) as plane:
        pytestconfig.stash[_PLANE] = plane
        try:
            yield Cluster(plane.access, plane.kubeconfig, find_kubectl(), plane)
        finally:
            del pytestconfig.stash[_PLANE]


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete a module's leftovers, even if it failed or was killed."""
    yield
    plane = request.config.stash.get(_PLANE, None)
    if plane is not None:
        with Api(plane.access) as api:
            sweep_webhooks(api)
            sweep_policies(api)


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[Api]:
    """Yield a connection as administrator."""
    with Api(cluster.access) as connection:
        yield connection


@pytest.fixture(scope="module")
def has_definitions() -> bool:
    """Return whether ``plane`` starts with our CustomResourceDefinitions."""
    return False


@pytest.fixture(scope="module")
def plane(
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    has_definitions: bool,
) -> Iterator[ControlPlane]:
    """Yield a separate control plane: an install changes global objects."""
    if cluster.plane is None:
        pytest.skip("an existing cluster has nodes of its own")
    folder = tmp_path_factory.mktemp("plane")
    with running_plane(folder, has_definitions=has_definitions) as plane:
        yield plane


@pytest.fixture(scope="module")
def shared_plane(cluster: Cluster, api: Api) -> ControlPlane:
    """Return the control plane of all tests, with our CustomResourceDefinitions."""
    if cluster.plane is None:
        pytest.skip("an existing cluster runs a kyverno-mp of its own")
    install_crds(api)
    return cluster.plane


@pytest.fixture(scope="module")
def product(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """Yield a running kyverno-mp that the API server calls."""
    running = Product(shared_plane, tmp_path_factory.mktemp("product"))
    running.start()
    try:
        yield running
    finally:
        running.stop()
