"""A real registry that demands client certificates, with an authority of its own.

A failure means: such a registry cannot be read, or another server, or the author of a
namespaced policy, uses the certificate. Expected: docker's certs.d; docs/images.md
(registries with certificates).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.registries import RegistryTransport
from kyverno_mp.errors import RegistryUnavailable
from kyverno_mp.images.access import RegistrySettings, ServedClients
from kyverno_mp.images.anonymous import for_policies
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import DockerConfig, RegistryCertificates
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.settings.settings import Settings
from tests.registry.conftest import Cli, Registry, make_certificate, serving
from tests.waiting import far_ns

_POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: tagged}
spec:
  rules:
  - name: tagged
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {message: m, pattern: {metadata: {name: "?*"}}}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate that is its own authority."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder)
    shutil.copy(folder / "tls.crt", folder / "clients.crt")
    return folder


@pytest.fixture(scope="module")
def demanding(keys: Path) -> Iterator[Registry]:
    with serving(keys, {}, "https") as registry:
        yield registry


@pytest.fixture
def certificates(
    keys: Path, demanding: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The files for the registry, where commands look for them."""
    folder = tmp_path / "certs.d" / demanding.host
    folder.mkdir(parents=True)
    for source, name in (
        ("tls.crt", "ca.crt"),
        ("tls.crt", "client.cert"),
        ("tls.key", "client.key"),
    ):
        shutil.copy(keys / source, folder / name)
    monkeypatch.setenv("KYVERNO_MP_REGISTRY_CERTIFICATES", str(folder.parent))
    return folder


@pytest.fixture
def image(cli: Cli, demanding: Registry, certificates: Path, tmp_path: Path) -> str:
    """A pushed image."""
    assert certificates.is_dir()
    policy = tmp_path / "policy.yaml"
    policy.write_text(_POLICY)
    name = demanding.image("team/policies:v1")
    pushed = cli("oci", "push", policy, "-i", name)
    assert pushed.code == 0, pushed.err
    return name


def test_a_command_proves_itself(cli: Cli, image: str, tmp_path: Path) -> None:
    pulled = cli("oci", "pull", tmp_path / "pulled", "-i", image)
    assert pulled.code == 0, pulled.err
    assert "name: tagged" in (tmp_path / "pulled" / "tagged.yaml").read_text()


@pytest.mark.parametrize(
    "gone",
    [("client.cert", "client.key"), ("client.key",), ("ca.crt",)],
    ids=["no certificate", "no key", "no authority"],
)
def test_without_all_files_the_registry_is_not_read(
    gone: tuple[str, ...], cli: Cli, image: str, certificates: Path, tmp_path: Path
) -> None:
    for name in gone:
        (certificates / name).unlink()
    pulled = cli("oci", "pull", tmp_path / "pulled", "-i", image)
    assert pulled.code != 0
    assert pulled.err


def test_a_key_that_cannot_be_read_is_named_by_its_registry(
    cli: Cli, image: str, demanding: Registry, certificates: Path, tmp_path: Path
) -> None:
    (certificates / "client.key").write_text("the secret")
    pulled = cli("oci", "pull", tmp_path / "pulled", "-i", image)
    assert pulled.code != 0
    assert f"{demanding.host}: its certificate or key cannot be read" in pulled.err
    assert "the secret" not in pulled.err


def test_a_folder_that_is_none_ends_the_command(
    cli: Cli, image: str, certificates: Path, tmp_path: Path
) -> None:
    """A registry would otherwise be read without what the operator demands."""
    shutil.rmtree(certificates.parent)
    pulled = cli("oci", "pull", tmp_path / "pulled", "-i", image)
    assert pulled.code != 0
    assert f"is none: {certificates.parent}" in pulled.err


def _clients(folder: Path, transport: RegistryTransport) -> ServedClients:
    settings = RegistrySettings(
        namespace="kyverno", certificates=RegistryCertificates(str(folder))
    )
    return ServedClients(settings, transport, "t", None, DockerConfig(Path("/nowhere")))


def _read(client: Client, image: str) -> int:
    reference = parse_reference(image)
    _, response = client.read(reference, "tags/list", far_ns(), bytes_max=1 << 20)
    return response.status


def test_the_webhook_proves_itself_for_cluster_wide_policies_only(
    image: str, certificates: Path
) -> None:
    """The connection of the first read stays open; the second must not use it."""
    folder = certificates.parent
    rules = read_rules("127.0.0.0/8", "")
    transport = RegistryTransport(rules, lambda host: [host])
    clients = _clients(folder, transport)
    settings = Settings(registry_certificates=str(folder))
    by_policy = for_policies(clients, settings, transport, "t")
    assert _read(by_policy(RegistryAccess()), image) == 200
    with pytest.raises(RegistryUnavailable):
        _read(by_policy(RegistryAccess(is_tenants=True)), image)
    assert _read(by_policy(RegistryAccess()), image) == 200
    transport.close()


def test_a_changed_certificate_is_used(image: str, certificates: Path) -> None:
    transport = RegistryTransport(read_rules("127.0.0.0/8", ""), lambda host: [host])
    client = _clients(certificates.parent, transport)(RegistryAccess())
    assert _read(client, image) == 200
    transport.close()
    make_certificate(certificates)
    (certificates / "tls.crt").replace(certificates / "client.cert")
    (certificates / "tls.key").replace(certificates / "client.key")
    with pytest.raises(RegistryUnavailable):
        _read(client, image)
    transport.close()
