"""Kyverno's own end-to-end cases, those whose every need is built, against kyverno-mp.

Red here means: a case that the real program passes on such a control plane fails here.
The other cases are told by ``python -m tests.e2e.chainsaw list``; known differences
stand in ledger.yaml, strict both ways.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kyverno_mp.errors import Error
from tests.e2e.api import Api, Refused
from tests.e2e.chainsaw.commands import command_environment
from tests.e2e.chainsaw.documents import Failed
from tests.e2e.chainsaw.index import FOREIGN_CRDS, Case, all_cases, stage
from tests.e2e.chainsaw.read import read_test
from tests.e2e.chainsaw.run import run_test
from tests.e2e.chainsaw.sweep import sweep
from tests.e2e.conftest import Cluster
from tests.e2e.crds import install_crds
from tests.e2e.product import Product

CASES = [case for case in all_cases() if case.verdict and not case.missing]
LEDGER: dict[str, str] = {
    one["case"]: one["reason"]
    for one in yaml.safe_load(Path(__file__).with_name("ledger.yaml").read_text()) or []
}


@pytest.fixture(scope="module")
def product(
    cluster: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    if cluster.plane is None:
        pytest.skip("an existing cluster runs a kyverno-mp of its own")
    install_crds(api)
    install_crds(api, FOREIGN_CRDS)
    running = Product(cluster.plane, tmp_path_factory.mktemp("product"))
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(
    case: Case, product: Product, cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    environment = command_environment(
        cluster.kubeconfig, cluster.kubectl, tmp_path / "bin"
    )
    known = case.id in LEDGER
    test = read_test(stage(case, tmp_path / "cases"), 8.0 if known else 60.0)
    sweep(api)
    try:
        run_test(test, api, environment)
    except (Failed, Refused, Error):
        if not known:
            raise
    else:
        assert not known, f"no longer differs: remove it from the ledger ({LEDGER})"
