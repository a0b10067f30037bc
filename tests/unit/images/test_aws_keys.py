"""Public keys in AWS KMS: the server of moto answers, and checks our signatures.

A failure means: a signature is checked with a key that its owner has replaced or
disabled, an outage of KMS stops every deployment, or a tenant uses the operator's
identity. Expected: AWS Signature Version 4; the references of
sigstore's pkg/signature/kms/aws; docs/images.md (keys in AWS KMS).
"""

import base64
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.errors import ExpressionFailed, RegistryUnavailable
from kyverno_mp.images.aws import (
    Aws,
    AwsIdentity,
    Credentials,
    Scope,
    signed,
)
from kyverno_mp.images.aws_keys import AwsKeys, aws_keys
from kyverno_mp.images.keys import pem_of_key, static_key
from kyverno_mp.images.references import referenced_key
from kyverno_mp.kube.connection import ReadPace
from kyverno_mp.limits import KMS_KEY_KEPT_S, KMS_KEY_READ_S, KMS_RETRY_S
from kyverno_mp.registry.exchange import RegistryCall, RegistryResponse
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.images import key_services
from tests.aws_rig import LATER_NS, Administrator, aws_of, let_in_only_signed
from tests.waiting import HANG_S

NOW = dt.datetime(2015, 8, 30, 12, 36, tzinfo=dt.UTC)
ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
ARN = f"arn:aws:kms:us-east-2:111122223333:key/{ID}"
CREDENTIALS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
IDENTITY = AwsIdentity("eu-west-1", CREDENTIALS)
NS = 10**9
KEY = ec.derive_private_key(7, ec.SECP256R1()).public_key()
DER = KEY.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def answer(status: int = 200, **content: Any) -> RegistryResponse:
    return RegistryResponse(status, {}, json.dumps(content).encode())


def key_answer() -> RegistryResponse:
    public = base64.b64encode(DER).decode()
    return answer(PublicKey=public, KeyUsage="SIGN_VERIFY")


class Service:
    """Answers as the test says, on a clock that the test moves."""

    def __init__(self, identity: AwsIdentity = IDENTITY) -> None:
        self.now_ns = 1
        self.calls: list[RegistryCall] = []
        self.answers: Callable[[RegistryCall], RegistryResponse] = lambda _call: (
            key_answer()
        )
        aws = Aws(identity, self._send, lambda: NOW)
        self.keys = AwsKeys(aws, lambda: self.now_ns)

    def _send(self, call: RegistryCall, _deadline_ns: int) -> RegistryResponse:
        self.calls.append(call)
        return self.answers(call)

    def key(self, reference: str = f"awskms:///{ID}", tenant: str | None = None) -> str:
        return referenced_key(reference, tenant, {"awskms": self.keys}, 0)

    def fail(self, *_call: object) -> RegistryResponse:
        raise RegistryUnavailable("registry.network", "no answer")


def test_requests_are_signed_as_aws_documents() -> None:
    """The case post-vanilla of AWS's own test suite."""
    scope = Scope("us-east-1", "service", NOW)
    headers = signed(CREDENTIALS, scope, "example.amazonaws.com", {}, b"")
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256"
        " Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request,"
        " SignedHeaders=host;x-amz-date,"
        " Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    )


@pytest.mark.parametrize(
    ("reference", "host", "name"),
    [
        (f"awskms:///{ID}", "kms.eu-west-1.amazonaws.com", ID),
        (f"awskms:///{ARN}", "kms.us-east-2.amazonaws.com", ARN),
        ("awskms:///alias/signer", "kms.eu-west-1.amazonaws.com", "alias/signer"),
        (
            "awskms:///arn:aws-cn:kms:cn-north-1:111122223333:alias/a",
            "kms.cn-north-1.amazonaws.com.cn",
            "arn:aws-cn:kms:cn-north-1:111122223333:alias/a",
        ),
        (f"awskms://kms.corp:4566/{ID}", "kms.corp:4566", ID),
    ],
)
def test_references_name_endpoint_and_key(reference: str, host: str, name: str) -> None:
    service = Service()
    assert service.key(reference) == pem_of_key(DER)
    (call,) = service.calls
    assert call.url == f"https://{host}/"
    assert json.loads(call.body or b"") == {"KeyId": name}
    assert call.headers["x-amz-target"] == "TrentService.GetPublicKey"


@pytest.mark.parametrize(
    "reference",
    [
        f"awskms://{ID}",
        "awskms:///",
        "awskms:///key",
        "awskms:///alias/",
        f"awskms://h/x/{ID}",
        f"awskms://u@h/{ID}",
        f"awskms://[/{ID}",
        f"awskms:///{ARN.replace('us-east-2', 'a/b')}",
        f"awskms:///{ARN.replace('us-east-2', 's3')}",
    ],
)
def test_other_references_are_rejected(reference: str) -> None:
    service = Service()
    with pytest.raises(ExpressionFailed):
        service.key(reference)
    assert service.calls == []


def test_tenants_do_not_use_the_identity() -> None:
    service = Service()
    service.key()
    with pytest.raises(ExpressionFailed, match="a namespaced policy cannot use"):
        service.key(tenant="team")
    assert len(service.calls) == 1


def test_a_key_is_read_again_after_an_hour() -> None:
    service = Service()
    for _ in range(3):
        service.key()
    assert len(service.calls) == 1
    service.now_ns += KMS_KEY_READ_S * NS
    service.key()
    assert len(service.calls) == 2


def test_an_outage_leaves_the_last_key_for_a_day() -> None:
    service = Service()
    service.key()
    service.answers = service.fail
    service.now_ns += KMS_KEY_READ_S * NS
    assert service.key() == pem_of_key(DER)
    # Each image does not ask again.
    calls = len(service.calls)
    service.key()
    assert len(service.calls) == calls
    service.now_ns += KMS_RETRY_S * NS
    service.key()
    assert len(service.calls) == calls + 1
    service.now_ns = 1 + KMS_KEY_KEPT_S * NS
    with pytest.raises(RegistryUnavailable):
        service.key()


def test_without_an_earlier_key_an_outage_is_an_error() -> None:
    """An error is not kept: the next image asks again."""
    service = Service()
    service.answers = service.fail
    for _ in range(2):
        with pytest.raises(RegistryUnavailable):
            service.key()
    service.answers = lambda _call: key_answer()
    assert service.key() == pem_of_key(DER)


@pytest.mark.parametrize("kind", ["NotFoundException", "DisabledException"])
def test_a_key_that_is_gone_is_used_no_longer(kind: str) -> None:
    service = Service()
    service.key()
    service.now_ns += KMS_KEY_READ_S * NS
    service.answers = lambda _call: answer(400, __type=kind, message="the secret")
    for _ in range(2):
        with pytest.raises(ExpressionFailed, match=kind) as error:
            service.key()
        assert "secret" not in error.value.message
    assert len(service.calls) == 2
    service.now_ns += KMS_RETRY_S * NS
    service.answers = lambda _call: key_answer()
    assert service.key() == pem_of_key(DER)


@pytest.mark.parametrize(
    "sent",
    [
        answer(500, __type="KMSInternalException"),
        answer(400, __type="ThrottlingException"),
        answer(400, __type="<script>"),
        RegistryResponse(200, {}, b"<html>"),
        answer(PublicKey="AAAA", KeyUsage="SIGN_VERIFY"),
    ],
)
def test_other_answers_are_outages(sent: RegistryResponse) -> None:
    service = Service()
    service.answers = lambda _call: sent
    with pytest.raises(RegistryUnavailable) as error:
        service.key()
    assert "script" not in error.value.message


def test_a_key_for_encryption_verifies_nothing() -> None:
    service = Service()
    service.answers = lambda _call: answer(KeyUsage="ENCRYPT_DECRYPT")
    with pytest.raises(ExpressionFailed, match="not for signatures"):
        service.key()


def test_without_identity_or_region_nothing_is_sent() -> None:
    for identity, reason in (
        (AwsIdentity("eu-west-1"), "no identity in AWS"),
        (IDENTITY._replace(region=""), "region of the key is not known"),
    ):
        service = Service(identity)
        with pytest.raises(ExpressionFailed, match=reason):
            service.key()
        assert service.calls == []


def test_it_is_off_by_default() -> None:
    assert not Settings().aws_kms
    with pytest.raises(ExpressionFailed, match="KYVERNO_MP_AWS_KMS"):
        static_key(f"awskms:///{ID}", "")


@pytest.mark.parametrize("host", ["127.0.0.1:1", "169.254.169.254", "10.0.0.1"])
def test_private_addresses_need_the_operators_allowlist(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for logs: the author of a policy names the endpoint."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_key)

    def on_call(_host: str, _outcome: str) -> None: ...

    rules, pace = read_rules("", ""), ReadPace(HANG_S, 1)
    providers = key_services(Settings(aws_kms=True), rules, on_call, pace)
    with pytest.raises(ExpressionFailed, match="not allowed"):
        providers["awskms"](f"awskms://{host}/{ID}", None, LATER_NS)
    assert key_services(Settings(), rules, on_call, pace) == {}


def keys_of(moto: int, **env: str) -> AwsKeys:
    """Return the provider of a pod with these variables."""
    provider = aws_keys(aws_of(moto, **env))["awskms"]
    assert isinstance(provider, AwsKeys)
    return provider


def test_a_signature_of_kms_is_verified_here(moto: int) -> None:
    administrator = Administrator(moto)
    name = administrator.create_key()
    administrator.kms("CreateAlias", AliasName="alias/signer", TargetKeyId=name)
    signature = administrator.sign(name, b"data")
    keys = keys_of(moto, AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    for key in (name, "alias/signer"):
        pem = keys(f"awskms://127.0.0.1:{moto}/{key}", None, LATER_NS)
        public = static_key(pem, "")
        assert public.check(signature, b"data") == ""
        assert public.check(signature, b"other") != ""


def test_a_key_that_kms_does_not_know_is_a_failure(moto: int) -> None:
    keys = keys_of(moto, AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    with pytest.raises(ExpressionFailed, match="NotFoundException"):
        keys(f"awskms:///{ID}", None, LATER_NS)


def test_a_workload_identity_is_exchanged_for_credentials(
    moto: int, tmp_path: Path
) -> None:
    name = Administrator(moto).create_key()
    token = tmp_path / "token"
    token.write_text("header.claims.signature\n")
    keys = keys_of(
        moto,
        AWS_ROLE_ARN="arn:aws:iam::123456789012:role/signer",
        AWS_WEB_IDENTITY_TOKEN_FILE=str(token),
    )
    assert static_key(keys(f"awskms:///{name}", None, LATER_NS), "")
    token.unlink()
    other = Administrator(moto).create_key()
    # The credentials are still valid.
    assert static_key(keys(f"awskms:///{other}", None, LATER_NS), "")


def test_the_service_checks_the_signature_of_each_request(moto: int) -> None:
    """From here on, moto lets in only what is signed as AWS demands."""
    administrator = Administrator(moto)
    name = administrator.create_key()
    access_key, secret_key = let_in_only_signed(administrator, "kms:GetPublicKey")
    reference = f"awskms://127.0.0.1:{moto}/{name}"
    keys = keys_of(moto, AWS_ACCESS_KEY_ID=access_key, AWS_SECRET_ACCESS_KEY=secret_key)
    assert static_key(keys(reference, None, LATER_NS), "")
    wrong = keys_of(moto, AWS_ACCESS_KEY_ID=access_key, AWS_SECRET_ACCESS_KEY="wrong")
    with pytest.raises((ExpressionFailed, RegistryUnavailable)):
        wrong(reference, None, LATER_NS)
