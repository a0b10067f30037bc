"""The credentials that a registry receives, and the block that provides them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed, KubeRefused
from kyverno_mp.images.access import RegistrySettings, ServedClients
from kyverno_mp.images.serving import ServedImageData
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.credentials import DockerConfig, SecretKeys
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse, exchange
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.values.jsonvalue import Json
from tests.image_rig import OCI, Contents, Repository, serving
from tests.waiting import far_ns

_WAIT_NS = 60 * 10**9


def entry(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:word".encode()).decode()}


def secret(**users: str) -> Json:
    """Return a Secret; ``users`` has keys in which _ stands for a dot."""
    auths = {key.replace("_", "."): entry(user) for key, user in users.items()}
    content = json.dumps({"auths": auths}).encode()
    return {"data": {".dockerconfigjson": base64.b64encode(content).decode()}}


class Asked:
    """A registry that requires a password and records the users."""

    def __init__(self) -> None:
        self.users: list[str] = []

    def __call__(self, call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        given = call.headers.get("Authorization", "")
        if not given:
            return RegistryResponse(401, {"www-authenticate": "Basic"}, b"{}")
        user = base64.b64decode(given.removeprefix("Basic ")).decode()
        self.users.append(user.partition(":")[0])
        return RegistryResponse(404, {}, b"{}")


def user_for(
    image: str,
    access: RegistryAccess = RegistryAccess(),  # noqa: B008 - an immutable value
    secrets: dict[str, Json] | None = None,
    docker: Path = Path("/nowhere"),
    **fields: Any,
) -> str:
    """Return the user for calls to the registry, or "" without credentials."""
    asked = Asked()
    known = secrets or {}
    clients = ServedClients(
        RegistrySettings(namespace="kyverno", **fields),
        asked,
        "t",
        known.get,
        DockerConfig(docker),
    )
    place = parse_reference(image)
    until = far_ns()
    clients(access).read(place, "manifests/v1", until, bytes_max=100)
    return asked.users[0] if asked.users else ""


@pytest.mark.parametrize(
    ("names", "user"),
    [
        (("mine",), "mine"),
        (("kyverno/mine",), "mine"),
        (("/mine",), "mine"),
        (("other/mine",), ""),
        (("gone", "mine"), "mine"),
        (("elsewhere", "mine"), "mine"),
        ((), ""),
    ],
)
def test_secrets_in_a_block(names: tuple[str, ...], user: str) -> None:
    """Secrets of other namespaces are not found; unrelated Secrets are skipped."""
    known = {"mine": secret(r_test="mine"), "elsewhere": secret(x_test="x")}
    access = RegistryAccess(secrets=names)
    assert user_for("r.test/a/b:v1", access, known) == user


def test_a_block_with_credentials_has_only_these() -> None:
    known = {"common": secret(r_test="common"), "own": secret(x_test="own")}
    own = RegistryAccess(secrets=("own",))
    assert _common("r.test/a/b:v1", RegistryAccess(), known) == "common"
    assert _common("r.test/a/b:v1", own, known) == ""
    assert _common("x.test/a/b:v1", own, known) == "own"


def _common(
    image: str, access: RegistryAccess, known: dict[str, Json], **fields: Any
) -> str:
    asked = Asked()
    clients = ServedClients(
        RegistrySettings(namespace="kyverno", secrets=("common",), **fields),
        asked,
        "t",
        known.get,
        DockerConfig(Path("/nowhere")),
    )
    until = far_ns()
    clients(access).read(parse_reference(image), "x", until, bytes_max=100)
    return asked.users[0] if asked.users else ""


@pytest.mark.parametrize(
    ("access", "is_insecure", "user"),
    [
        (RegistryAccess(), False, "common"),
        (RegistryAccess(insecure=True), False, ""),
        (RegistryAccess(insecure=True, is_tenants=True), False, ""),
        # The operator has chosen insecure access for all registries.
        (RegistryAccess(insecure=True), True, "common"),
        (RegistryAccess(insecure=True, is_tenants=True), True, "common"),
        # The author of a ClusterPolicy chooses both the access and the Secret.
        (RegistryAccess(insecure=True, secrets=("own",)), False, "own"),
        (RegistryAccess(secrets=("own",), is_tenants=True), False, "own"),
    ],
)
def test_policy_does_not_expose_the_operators_credentials(
    access: RegistryAccess,
    is_insecure: bool,  # noqa: FBT001 - a parameter
    user: str,
) -> None:
    """Otherwise, the credentials could be read on an unencrypted connection."""
    known = {"common": secret(r_test="common"), "own": secret(r_test="own")}
    assert _common("r.test/a/b:v1", access, known, insecure=is_insecure) == user


@pytest.mark.parametrize("is_insecure", [True, False])
@pytest.mark.parametrize("named", [{"secrets": ("own",)}, {"providers": ("default",)}])
def test_insecure_tenant_block_gets_no_credentials(
    named: dict[str, tuple[str, ...]],
    is_insecure: bool,  # noqa: FBT001 - a parameter
) -> None:
    access = RegistryAccess(insecure=True, is_tenants=True, **named)
    with pytest.raises(ExpressionFailed, match="may not send credentials with"):
        user_for("r.test/a:v1", access, {"own": secret()}, insecure=is_insecure)


@pytest.mark.parametrize("is_own", [True, False])
def test_dockers_configuration(
    tmp_path: Path,
    is_own: bool,  # noqa: FBT001 - a parameter
) -> None:
    config = {"auths": {"r.test": entry("docker")}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    access = RegistryAccess(providers=("default",)) if is_own else RegistryAccess()
    helpers = () if is_own else ("default", "google")
    image = "r.test/a/b:v1"
    assert user_for(image, access, docker=tmp_path, helpers=helpers) == "docker"
    assert user_for(image, docker=tmp_path) == ""


@pytest.mark.parametrize(
    ("provider", "image", "is_known"),
    [
        ("google", "eu.gcr.io/p/i:v1", True),
        ("google", "europe-docker.pkg.dev/p/i:v1", True),
        ("amazon", "1.dkr.ecr.eu-west-1.amazonaws.com/p:v1", True),
        ("azure", "x.azurecr.io/p/i:v1", True),
        ("github", "ghcr.io/p/i:v1", True),
        ("github", "r.test/p/i:v1", False),
    ],
)
def test_cloud_helper_is_an_error_for_its_own_registries(
    provider: str,
    image: str,
    is_known: bool,  # noqa: FBT001 - a parameter
) -> None:
    access = RegistryAccess(providers=(provider,))
    if not is_known:
        assert user_for(image, access) == ""
        return
    with pytest.raises(ExpressionFailed, match=f"provider {provider} is not supp"):
        user_for(image, access)
    assert user_for(image, helpers=(provider,)) == ""


def test_a_forbidden_secret_is_an_error() -> None:
    def read(_name: str) -> Json:
        raise KubeRefused("kube.refused", "may not get secrets")

    clients = ServedClients(
        RegistrySettings(namespace="kyverno"),
        Asked(),
        "t",
        read,
        DockerConfig(Path("/nowhere")),
    )
    client = clients(RegistryAccess(secrets=("s",)))
    with pytest.raises(KubeRefused):
        client.read(parse_reference("r.test/a/b:v1"), "x", 2**62, bytes_max=100)


@pytest.mark.parametrize(
    ("key", "host", "repository", "holds"),
    [
        ("r.test", "r.test", "a/b", True),
        ("https://r.test", "r.test", "a/b", True),
        ("https://r.test/v1/", "r.test", "a/b", True),
        ("r.test:5000", "r.test:5000", "a", True),
        ("r.test:5000", "r.test", "a", False),
        ("*.test", "r.test", "a", True),
        ("*.test", "x.r.test", "a", False),
        ("r.test/a", "r.test", "a/b", True),
        ("r.test/a", "r.test", "ab", False),
        ("https://index.docker.io/v1/", "index.docker.io", "library/x", True),
        ("docker.io", "index.docker.io", "library/x", True),
        ("evil.test/r.test", "r.test", "a", False),
    ],
)
def test_keys_in_a_secret(
    key: str,
    host: str,
    repository: str,
    holds: bool,  # noqa: FBT001 - a parameter
) -> None:
    auths = json.dumps({"auths": {key: entry("u")}}).encode()
    data = {".dockerconfigjson": base64.b64encode(auths).decode()}
    assert (SecretKeys(data).credentials(host, repository) is not None) is holds


def test_longest_key_wins_and_invalid_entries_are_ignored() -> None:
    auths = {"r.test": entry("all"), "r.test/team": entry("team")}
    old = base64.b64encode(json.dumps(auths).encode()).decode()
    keys = SecretKeys({".dockercfg": old})
    found = keys.credentials("r.test", "team/app")
    assert found is not None
    assert found.username == "team"
    for text in ("", "!", base64.b64encode(b"[]").decode(), None):
        damaged = SecretKeys({".dockercfg": text, ".dockerconfigjson": text})
        assert damaged.credentials("r.test", "a") is None


def test_clients_are_bounded() -> None:
    clients = ServedClients(
        RegistrySettings(namespace="kyverno"),
        Asked(),
        "t",
        None,
        DockerConfig(Path("/nowhere")),
    )
    first = clients(RegistryAccess())
    assert clients(RegistryAccess()) is first
    for number in range(2 * limits.IMAGE_CLIENTS_MAX):
        clients(RegistryAccess(secrets=(f"s{number}",)))
    assert clients(RegistryAccess()) is not first


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
def host(contents: Contents) -> Iterator[str]:
    with serving(contents, is_canned=False) as found:
        yield found


def test_image_data(contents: Contents, host: str) -> None:
    """Context entries of the type imageRegistry receive this data."""
    repository = Repository("app")
    digest = repository.image()
    repository.load(contents)
    clients = ServedClients(
        RegistrySettings(namespace="kyverno"),
        exchange,
        "t",
        None,
        DockerConfig(Path("/nowhere")),
    )
    images = ServedImageData(clients, lambda _deadline: far_ns())
    found = images.image_data(f"{host}/app:v1", 0)
    assert found["resolvedImage"] == f"{host}/app@{digest}"
    assert found["configData"] == {"salt": "app v1 "}
    assert found["identifier"] == "v1"
    named = images.image_data(f"{host}/app:v1@{digest}", 0)
    assert named["identifier"] == f"v1@{digest}"
    # Kyverno takes what follows the last colon for a tag, also a port.
    port = host.rpartition(":")[2]
    only = images.image_data(f"{host}/app@{digest}", 0)
    assert only["identifier"] == f"{port}/app@{digest}"
    with pytest.raises(ExpressionFailed):
        images.image_data("no image", 0)
    typed = {"Content-Type": OCI}
    commas = b"[" + b"1," * (limits.REGISTRY_JSON_PARTS_MAX + 1) + b"1]"
    contents.answers["GET", "/v2/app/manifests/v1"] = (200, typed, commas)
    with pytest.raises(ExpressionFailed, match="not JSON"):
        images.image_data(f"{host}/app:v1", 0)
