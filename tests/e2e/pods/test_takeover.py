"""docs/upgrade.md with Kyverno itself: its program is taken over under load, and back.

A failure means: readers of the page lose or misjudge requests, or find things that
nobody removes. test_upgrade.py has the same with stand-ins, in every run; this one
needs KYVERNO_MP_TEST_KYVERNO (kyverno_real.py) and is not in ``tox -e e2e``.
"""

import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    ROOT,
    Installation,
    installation,
    until,
)
from tests.e2e.kyverno_real import Kyverno, find_kyverno
from tests.e2e.reader import Reader
from tests.e2e.takeover import CALLERS, Takeover

pytestmark = pytest.mark.timeout(1800)
KYVERNOS_PODS: Final = 3
"""Two, and one that starts when the Deployment of ours is not yet complete."""
OTHERS: Final = ("background", "cleanup", "reports")
PAGE: Final = "upgrade.md"
_OF_CLUSTER: Final = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterroles,"
    "clusterrolebindings,priorityclasses,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,customresourcedefinitions"
)
_OF_NAMESPACE: Final = (
    "leases,secrets,configmaps,services,deployments,roles,rolebindings,"
    "serviceaccounts,poddisruptionbudgets,networkpolicies,updaterequests"
)
_WITH_FINALIZERS: Final = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,clusterpolicies,"
    "policies,validatingpolicies,mutatingpolicies,generatingpolicies,"
    "imagevalidatingpolicies"
)


@pytest.fixture(scope="module")
def kyverno() -> Kyverno:
    return find_kyverno()


@pytest.fixture(scope="module")
def before(
    kyverno: Kyverno,
    cluster: Cluster,
    plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """Yield a cluster in which Kyverno runs."""
    with installation(plane, cluster.kubectl, kyverno.image) as made:
        made.kubectl("create", "-f", "-", text=kyverno.definitions())
        kyverno.install(plane, tmp_path_factory.mktemp("chart"))
        _await_rollout(made)
        yield made


@pytest.fixture(scope="module")
def takeover(before: Installation, plane: ControlPlane) -> Takeover:
    """Return the policies and clients; everything is in force."""
    made = Takeover(plane)
    with Api(plane.access) as api:
        made.create_policies(api)
    try:
        until(made.is_in_force, "Kyverno serves every kind")
    except AssertionError as error:
        raise AssertionError("\n".join(made.first)) from error
    return made


@pytest.fixture(scope="module")
def reader(
    cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Reader:
    """Return a reader who keeps the flag for exceptions, as step 2 says."""
    made = Reader(plane, cluster.kubectl, tmp_path_factory.mktemp("checkout"))
    (made.folder / "deploy").unlink()
    shutil.copytree(ROOT / "deploy", made.folder / "deploy")
    for name in ("parts/deployment.yaml", "install.yaml"):
        file = made.folder / "deploy" / name
        text = file.read_text()
        assert "args: [serve]" in text
        flag = "args: [serve, --exceptionNamespace=*]"
        file.write_text(text.replace("args: [serve]", flag))
    return made


def _await_rollout(found: Installation) -> None:
    """Wait for the controllers that have a program."""
    for name in (DEPLOYMENT, "kyverno-background-controller"):
        found.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{name}")


@pytest.fixture(scope="module")
def leftovers(before: Installation, takeover: Takeover) -> "Leftovers":
    assert takeover.first == []
    return Leftovers(before)


def _await_only(found: Installation, prefix: str) -> None:
    def is_so() -> bool:
        pods = [pod for pod in found.pods if pod.name.startswith(DEPLOYMENT)]
        return bool(pods) and all(
            pod.raw["spec"]["containers"][0]["image"].startswith(prefix) for pod in pods
        )

    until(is_so, f"only {prefix} is left")


class Leftovers:
    """What is in the cluster beside the users' objects."""

    def __init__(self, found: Installation) -> None:
        self._found = found
        self.before = self.now()

    def now(self) -> set[str]:
        """Return kinds and names, and the finalizers of policies and webhooks."""
        names = {
            name
            for kinds in (_OF_CLUSTER, _OF_NAMESPACE)
            for name in self._found.kubectl(
                "-n", NAMESPACE, "get", kinds, "-o", "name"
            ).split()
            if "kube-root-ca.crt" not in name and "system:" not in name
        }
        each = '{.kind}/{.metadata.name}/{.metadata.finalizers}{" "}'
        path = f"jsonpath={{range .items[*]}}{each}{{end}}"
        listed = self._found.kubectl("get", "-A", _WITH_FINALIZERS, "-o", path)
        return names | {one for one in listed.split() if not one.endswith("/")}


def test_it_is_taken_over(
    before: Installation,
    takeover: Takeover,
    reader: Reader,
    leftovers: Leftovers,
) -> None:
    """No request fails or is judged by nobody or by both."""
    told = reader.follow(PAGE, "### 1. Check the policies")
    assert "taken-generates" in told
    reader.follow(PAGE, "### 2. Save what will change")
    reader.follow(PAGE, "### 3. Make Helm forget its release")
    with takeover.load():
        reader.follow(PAGE, "### 4. Install over Kyverno")
        _await_only(before, "registry.example.com/kyverno-mp:")
    takeover.tell()
    assert takeover.wrong == []
    # Kyverno's pods close their connections when they end, and the page says so.
    assert len(takeover.cut) <= KYVERNOS_PODS * (CALLERS + 1)
    # A pod of Kyverno may end after its answer, before it has written what to generate.
    # Namespaces are created more seldom than its pods end.
    until(lambda: len(takeover.unfinished()) <= KYVERNOS_PODS, "the rest is generated")
    gone = leftovers.before - leftovers.now()
    assert gone == {
        "secret/sh.helm.release.v1.kyverno.v1",
        *(f"deployment.apps/kyverno-{one}-controller" for one in OTHERS),
    }


def test_the_way_back(
    before: Installation,
    takeover: Takeover,
    reader: Reader,
    kyverno: Kyverno,
    leftovers: Leftovers,
) -> None:
    """Kyverno judges again and does what was left undone; nothing of ours remains."""
    with takeover.load():
        reader.follow(PAGE, "### The way back")
        _await_only(before, "reg.kyverno.io/kyverno/")
    takeover.tell()
    # First what takes time: the other assertions are about what has happened.
    if kyverno.runs_background:
        until(lambda: not takeover.lacking(), "everything is generated")
    assert takeover.wrong == []
    assert takeover.cut == []
    print(sorted(leftovers.now() ^ leftovers.before))
