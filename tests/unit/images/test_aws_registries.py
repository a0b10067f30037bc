"""Credentials for registries of AWS: the server of moto answers.

A failure means: images in ECR cannot be read, a tenant's policy reads them with the
operator's identity, or a token of it goes to another server. Expected: AWS ECR
GetAuthorizationToken; docs/images.md (registries of AWS).
"""

import base64
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import Error, ExpressionFailed, RegistryUnavailable
from kyverno_mp.images.access import RegistrySettings, ServedClients
from kyverno_mp.images.aws import Aws, AwsIdentity
from kyverno_mp.images.aws import Credentials as AwsCredentials
from kyverno_mp.images.aws_registries import AwsRegistries
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.credentials import Credentials, DockerConfig
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse
from kyverno_mp.registry.reference import parse_reference
from tests.aws_rig import LATER_NS, Administrator, aws_of, let_in_only_signed

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
IMAGE = f"{HOST}/team/app:v1"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
IDENTITY = AwsIdentity("us-east-1", AwsCredentials("AKID", "secret"))


def token(end: dt.datetime, pair: str = "AWS:word") -> RegistryResponse:
    data = {
        "authorizationToken": base64.b64encode(pair.encode()).decode(),
        "expiresAt": end.timestamp(),
        "proxyEndpoint": f"https://{HOST}",
    }
    return answer(authorizationData=[data])


def answer(status: int = 200, **content: Any) -> RegistryResponse:
    return RegistryResponse(status, {}, json.dumps(content).encode())


class Service:
    """Answers as the test says, on a clock that the test moves."""

    def __init__(self, identity: AwsIdentity = IDENTITY) -> None:
        self.now = NOW
        self.calls: list[RegistryCall] = []
        self.answers: Callable[[], RegistryResponse] = lambda: token(self.now + HOUR)
        self.registries = AwsRegistries(Aws(identity, self._send, lambda: self.now))

    def _send(self, call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        self.calls.append(call)
        return self.answers()


@pytest.mark.parametrize(
    ("host", "api"),
    [
        (HOST, "api.ecr.eu-west-1.amazonaws.com"),
        (
            "123456789012.dkr.ecr.us-gov-west-1.amazonaws.com",
            "api.ecr.us-gov-west-1.amazonaws.com",
        ),
        (
            "123456789012.dkr.ecr.ap-southeast-2.amazonaws.com",
            "api.ecr.ap-southeast-2.amazonaws.com",
        ),
        (
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            "api.ecr.cn-north-1.amazonaws.com.cn",
        ),
    ],
)
def test_the_region_of_the_registry_is_asked(host: str, api: str) -> None:
    service = Service()
    assert service.registries(host, 0) == Credentials("AWS", "word")
    (call,) = service.calls
    assert call.url == f"https://{api}/"
    assert call.is_verified
    assert call.headers["x-amz-target"].endswith(".GetAuthorizationToken")


@pytest.mark.parametrize(
    "host",
    [
        "ghcr.io",
        f"{HOST}.evil.example.com",
        f"evil.example.com:1/{HOST}",
        f"{HOST}:5000",
        "1.dkr.ecr.eu-west-1.amazonaws.com",
        "123456789012.dkr.ecr.eu.west.amazonaws.com",
        "123456789012.dkr.ecr.s3.amazonaws.com",
        "123456789012.dkr.ecr.s3-eu-west-1.amazonaws.com",
        "123456789012.dkr.ecr.eu-west.amazonaws.com",
    ],
)
def test_other_registries_get_no_token(host: str) -> None:
    service = Service()
    assert service.registries(host, 0) is None
    assert service.calls == []


def test_a_token_is_used_until_shortly_before_its_end() -> None:
    service = Service()
    for _ in range(3):
        service.registries(HOST, 0)
    service.registries(HOST.replace("eu-west-1", "us-east-1"), 0)
    assert len(service.calls) == 2
    service.now += HOUR
    service.registries(HOST, 0)
    assert len(service.calls) == 3


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (answer(400, __type="AccessDeniedException", message="x"), ExpressionFailed),
        (answer(500, __type="ServerException"), RegistryUnavailable),
        (answer(400, __type="<script>"), RegistryUnavailable),
        (RegistryResponse(200, {}, b"<script>"), RegistryUnavailable),
        (answer(authorizationData=[]), RegistryUnavailable),
        (answer(authorizationData=[{}]), RegistryUnavailable),
        (token(NOW, "AWS"), RegistryUnavailable),
        (token(NOW, "AWS:a\r\nX: y"), RegistryUnavailable),
    ],
)
def test_other_answers_give_no_credentials(
    sent: RegistryResponse, kind: type[Error]
) -> None:
    """None is kept: the next image asks again."""
    service = Service()
    service.answers = lambda: sent
    for _ in range(2):
        with pytest.raises(kind) as error:
            service.registries(HOST, 0)
        assert "script" not in error.value.message
    assert len(service.calls) == 2


class Read:
    """Reads an image in a pod with an identity; records what the registry gets."""

    def __init__(
        self,
        helpers: tuple[str, ...] = (),
        identity: AwsIdentity = IDENTITY,
        *,
        insecure: bool = False,
    ) -> None:
        self.passwords: list[str] = []
        self.service = Service(identity)
        self._clients = ServedClients(
            RegistrySettings(
                namespace="kyverno", helpers=(*helpers,), insecure=insecure
            ),
            self._send,
            "t",
            None,
            DockerConfig(Path("/nowhere")),
            {"amazon": self.service.registries},
        )

    def __call__(self, access: RegistryAccess, image: str = IMAGE) -> list[str]:
        reference = parse_reference(image)
        client = self._clients(access)
        client.read(reference, "manifests/v1", LATER_NS, bytes_max=100)
        return self.passwords

    def _send(self, call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        header = call.headers.get("Authorization")
        if header is None:
            return RegistryResponse(401, {"www-authenticate": "Basic"}, b"{}")
        pair = base64.b64decode(header.removeprefix("Basic ")).decode()
        self.passwords.append(pair.partition(":")[2])
        return RegistryResponse(200, {}, b"{}")


AMAZON = RegistryAccess(providers=("amazon",))


def test_a_policy_or_the_operator_names_the_provider() -> None:
    assert Read()(AMAZON) == ["word"]
    assert Read(("default", "amazon"))(RegistryAccess()) == ["word"]


@pytest.mark.parametrize(
    ("read", "access", "image"),
    [
        (Read(), RegistryAccess(), IMAGE),
        (Read(("amazon",)), RegistryAccess(is_tenants=True), IMAGE),
        (Read(("amazon",)), RegistryAccess(), "registry.example.com/app:v1"),
        (Read(("amazon",)), RegistryAccess(insecure=True), IMAGE),
        (Read(("amazon",), insecure=True), RegistryAccess(), IMAGE),
        (Read(), AMAZON, "registry.example.com/app:v1"),
    ],
    ids=["nobody", "tenant", "elsewhere", "insecure", "all insecure", "other registry"],
)
def test_others_read_without_the_identity(
    read: Read, access: RegistryAccess, image: str
) -> None:
    assert read(access, image) in ([], [""])
    assert read.service.calls == []


@pytest.mark.parametrize("access", [AMAZON._replace(is_tenants=True),
                                    AMAZON._replace(insecure=True)])  # fmt: skip
def test_the_identity_is_not_for_tenants_or_plain_text(access: RegistryAccess) -> None:
    read = Read()
    with pytest.raises(ExpressionFailed, match=r"amazon|credentials"):
        read(access)
    assert read.service.calls == []
    assert read.passwords == []


def test_without_an_identity_the_provider_is_an_error() -> None:
    """The message says what to give; the operator's helper reads as anybody."""
    read = Read(("amazon",), AwsIdentity("eu-west-1"))
    with pytest.raises(ExpressionFailed, match="give it AWS_ROLE_ARN"):
        read(AMAZON)
    assert read(RegistryAccess()) in ([], [""])
    assert read.service.calls == []


def test_the_pods_own_region_exchanges_its_token(tmp_path: Path) -> None:
    """Whoever names the image does not choose who receives the token."""
    (tmp_path / "token").write_text("t")
    role = "arn:aws:iam::123456789012:role/r"
    service = Service(AwsIdentity("us-east-1", None, role, str(tmp_path / "token")))
    with pytest.raises(RegistryUnavailable):
        service.registries(HOST, 0)
    (call,) = service.calls
    assert call.url == "https://sts.us-east-1.amazonaws.com/"


def test_the_service_gives_a_token_to_who_signs(moto: int) -> None:
    access_key, secret_key = let_in_only_signed(
        Administrator(moto), "ecr:GetAuthorizationToken"
    )
    signing = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    credentials = AwsRegistries(aws_of(moto, **signing))(HOST, LATER_NS)
    assert credentials is not None
    assert credentials.username == "AWS"
    assert credentials.password
    wrong = {**signing, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises((ExpressionFailed, RegistryUnavailable)):
        AwsRegistries(aws_of(moto, **wrong))(HOST, LATER_NS)
