"""Read public keys from AWS KMS: the provider for ``awskms://``.

Room: images. Takes: references, the pod's identity in AWS, an Exchange, which decides
which addresses are allowed. Gives: KeyProviders. Next: images/references.py.
May touch: the network through the Exchange, the file with the identity's token, clocks.
Source: sigstore pkg/signature/kms/aws/client.go (references); AWS Signature Version 4;
AWS KMS GetPublicKey, AWS STS AssumeRoleWithWebIdentity.

The public key is read, and signatures are verified here. SAFETY: only cluster-wide
policies use the identity, and no message has the answer of a server.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key

from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    RegistryUnavailable,
    RequestInvalid,
)
from kyverno_mp.images.keys import failed, pem_of_key
from kyverno_mp.images.references import KeyProviders
from kyverno_mp.limits import (
    IMAGE_KEY_SECRETS_MAX,
    IMAGE_LOG_BYTES_MAX,
    KMS_KEY_KEPT_S,
    KMS_KEY_READ_S,
    KMS_RETRY_S,
)
from kyverno_mp.registry.exchange import Exchange, RegistryCall, RegistryResponse
from kyverno_mp.values.jsonvalue import Json

_SCHEME: Final = "awskms"
_KMS: Final = "kms"
_ID: Final = r"(?:mrk-)?[A-Fa-f0-9-]{32,36}"
_ARN: Final = r"arn:(?:aws|aws-us-gov|aws-cn):kms:([a-z0-9-]{1,32}):\d{12}:"
_ALIAS: Final = r"alias/[A-Za-z0-9/_-]{1,250}"
_REFERENCE: Final = re.compile(
    rf"awskms://([A-Za-z0-9.:\[\]-]{{0,255}})/((?:{_ARN}key/)?{_ID}|(?:{_ARN})?{_ALIAS})",
    re.ASCII,
)
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_ERROR: Final = re.compile(r"[A-Za-z]{1,64}", re.ASCII)
_REFUSED: Final = frozenset(
    {
        "AccessDeniedException",
        "DisabledException",
        "InvalidArnException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
        "UnsupportedOperationException",
        "ValidationException",
    }
)
"""Answers about the key; others are about the service, or our identity."""
_STS: Final = {
    name: re.compile(rf"<{name}>([^<]{{1,4096}})</{name}>")
    for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
}
_EARLY: Final = timedelta(minutes=5)
"""How long before their end credentials are replaced."""


class Credentials(NamedTuple):
    """What signs a request; ``token``: of temporary credentials."""

    access_key: str
    secret_key: str
    token: str = ""


class AwsIdentity(NamedTuple):
    """The pod's identity in AWS, from the variables that AWS's own programs read."""

    region: str = ""
    credentials: Credentials | None = None
    role: str = ""
    token_file: str = ""
    """A token of the pod's ServiceAccount, for ``role`` (workload identity)."""


def aws_identity(env: Mapping[str, str]) -> AwsIdentity:
    """Return the identity that the environment describes."""
    access_key = env.get("AWS_ACCESS_KEY_ID", "")
    secret_key = env.get("AWS_SECRET_ACCESS_KEY", "")
    token = env.get("AWS_SESSION_TOKEN", "")
    has_keys = access_key and secret_key
    return AwsIdentity(
        env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION", ""),
        Credentials(access_key, secret_key, token) if has_keys else None,
        env.get("AWS_ROLE_ARN", ""),
        env.get("AWS_WEB_IDENTITY_TOKEN_FILE", ""),
    )


def aws_keys(
    identity: AwsIdentity, send: Exchange, now: Callable[[], datetime]
) -> KeyProviders:
    """Return the provider."""
    return {_SCHEME: AwsKeys(identity, send, now)}


class _Key(NamedTuple):
    """A key in KMS."""

    host: str
    region: str
    name: str


class _Known(NamedTuple):
    """What the last reads of a key gave: the key, or the reason why there is none."""

    pem: str
    read_ns: int
    again_ns: int
    """When it is read again."""
    failure: str = ""


class AwsKeys:
    """Reads public keys from KMS; threads may share it.

    A key is read again after an hour. If KMS does not answer then, the last key is used
    for a day; if KMS says that there is no such key any more, it is not.
    """

    def __init__(
        self,
        identity: AwsIdentity,
        send: Exchange,
        now: Callable[[], datetime],
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._identity = identity
        self._send = send
        self._now = now
        self._clock_ns = clock_ns
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._assumed: tuple[Credentials, datetime] | None = None

    def __call__(self, reference: str, tenant: str | None, deadline_ns: int) -> str:
        """Return the key as PEM. Raises: ExpressionFailed, DependencyError."""
        if tenant is not None:
            # SAFETY: the identity is the operator's.
            raise failed("a namespaced policy cannot use keys of AWS KMS")
        key = _key_of(reference, self._identity.region)
        entry, now_ns = self._known.get(key), self._clock_ns()
        if entry is None or now_ns >= entry.again_ns:
            entry = self._read_again(key, entry, deadline_ns)
        if entry.failure:
            raise failed(entry.failure)
        return entry.pem

    def _read_again(self, key: _Key, last: _Known | None, deadline_ns: int) -> _Known:
        """Read a key, or return the last one. Raises: DependencyError."""
        now_ns = self._clock_ns()
        retry_ns = now_ns + KMS_RETRY_S * 10**9
        try:
            pem = self._read(key, deadline_ns)
            latest = _Known(pem, now_ns, now_ns + KMS_KEY_READ_S * 10**9)
        except (ExpressionFailed, RequestInvalid) as error:
            latest = _Known("", now_ns, retry_ns, error.message)
        except DependencyError:
            kept_ns = KMS_KEY_KEPT_S * 10**9
            if last is None or last.failure or now_ns >= last.read_ns + kept_ns:
                raise
            latest = last._replace(again_ns=retry_ns)
        self._known[key] = latest
        if len(self._known) > IMAGE_KEY_SECRETS_MAX:
            self._known.popitem(last=False)
        return latest

    def _read(self, key: _Key, deadline_ns: int) -> str:
        """Return the key of KMS. Raises: ExpressionFailed, DependencyError."""
        credentials = self._credentials(key.region, deadline_ns)
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": "TrentService.GetPublicKey",
        }
        body = json.dumps({"KeyId": key.name}).encode()
        scope = Scope(key.region, _KMS, self._now())
        headers = signed(credentials, scope, key.host, headers, body)
        answer = self._post(key.host, headers, body, deadline_ns)
        content = _content_of(answer)
        if answer.status != 200:  # noqa: PLR2004 - OK
            raise self._refusal(content)
        return _pem_of(content)

    def _refusal(self, content: dict[str, Json]) -> Exception:
        """Return the error for an answer without a key."""
        kind = str(content.get("__type", "")).rpartition("#")[2]
        if kind in _REFUSED:
            return failed(f"AWS KMS answers {kind}")
        # Perhaps the credentials have ended early.
        self._assumed = None
        printed = kind if _ERROR.fullmatch(kind) else "an error"
        return _unavailable(f"AWS KMS answers {printed}")

    def _post(
        self, host: str, headers: Mapping[str, str], body: bytes, deadline_ns: int
    ) -> RegistryResponse:
        call = RegistryCall(
            method="POST",
            url=f"https://{host}/",
            headers=headers,
            body=body,
            bytes_max=IMAGE_LOG_BYTES_MAX,
        )
        return self._send(call, deadline_ns)

    def _credentials(self, region: str, deadline_ns: int) -> Credentials:
        """Return what signs requests. Raises: ExpressionFailed, DependencyError."""
        identity = self._identity
        if identity.credentials is not None:
            return identity.credentials
        if not (identity.role and identity.token_file):
            raise failed(
                "this pod has no identity in AWS: give it AWS_ROLE_ARN and"
                " AWS_WEB_IDENTITY_TOKEN_FILE, or AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY"
            )
        assumed = self._assumed
        if assumed is None or self._now() >= assumed[1] - _EARLY:
            assumed = self._assumed = self._assume(region, deadline_ns)
        return assumed[0]

    def _assume(self, region: str, deadline_ns: int) -> tuple[Credentials, datetime]:
        """Exchange the pod's token for credentials. Raises: DependencyError."""
        identity = self._identity
        try:
            token = Path(identity.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unavailable("the pod's token for AWS cannot be read") from error
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": identity.role,
            "RoleSessionName": "kyverno-mp",
            "WebIdentityToken": token,
        }
        headers = {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        answer = self._post(_host_of("sts", region), headers, body, deadline_ns)
        xml = answer.body.decode("utf-8", "replace")
        parts = {name: pattern.search(xml) for name, pattern in _STS.items()}
        if answer.status != 200 or None in parts.values():  # noqa: PLR2004 - OK
            raise _unavailable("AWS STS gives this pod no credentials")
        key, secret, session, until = (
            match[1] if match else "" for match in parts.values()
        )
        try:
            end = datetime.fromisoformat(until)
        except ValueError as error:
            raise _unavailable("AWS STS gives this pod no credentials") from error
        return Credentials(key, secret, session), end.replace(tzinfo=end.tzinfo or UTC)


class Scope(NamedTuple):
    """For what and when a request is signed."""

    region: str
    service: str
    now: datetime


def signed(
    credentials: Credentials,
    scope: Scope,
    host: str,
    headers: Mapping[str, str],
    body: bytes,
) -> dict[str, str]:
    """Return the headers, in lower case, of a signed ``POST /``.

    Source: AWS Signature Version 4.
    """
    time = scope.now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    signed_headers = {**headers, "x-amz-date": time}
    if credentials.token:
        signed_headers["x-amz-security-token"] = credentials.token
    covered = sorted({**signed_headers, "host": host}.items())
    names = ";".join(name for name, _ in covered)
    request = "\n".join(
        (
            *("POST", "/", ""),
            *(f"{name}:{value}" for name, value in covered),
            *("", names, hashlib.sha256(body).hexdigest()),
        )
    )
    parts = (time[:8], scope.region, scope.service, "aws4_request")
    digest = hashlib.sha256(request.encode()).hexdigest()
    string_to_sign = "\n".join(("AWS4-HMAC-SHA256", time, "/".join(parts), digest))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*parts, string_to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    signed_headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{'/'.join(parts)},"
        f" SignedHeaders={names}, Signature={key.hex()}"
    )
    return signed_headers


def _key_of(reference: str, region: str) -> _Key:
    """Return the key that a reference names. Raises: ExpressionFailed."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise failed(
            "kms specification should be in the format"
            " awskms://[ENDPOINT]/[ID/ALIAS/ARN] (endpoint optional)"
        )
    host, name = parts[1], parts[2]
    region = parts[3] or parts[4] or region
    if not _REGION.fullmatch(region):
        raise failed("the region of the key is not known: give its ARN, or AWS_REGION")
    try:
        valid = not host or bool(urlsplit(f"https://{host}").hostname)
    except ValueError:
        valid = False
    if not valid:
        raise failed("the endpoint of the key is invalid")
    return _Key(host or _host_of(_KMS, region), region, name)


def _host_of(service: str, region: str) -> str:
    china = ".cn" if region.startswith("cn-") else ""
    return f"{service}.{region}.amazonaws.com{china}"


def _content_of(answer: RegistryResponse) -> dict[str, Json]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    return content if type(content) is dict else {}


def _pem_of(content: dict[str, Json]) -> str:
    """Return the key of an answer. Raises: ExpressionFailed, DependencyError."""
    encoded, usage = content.get("PublicKey"), content.get("KeyUsage")
    if type(usage) is str and usage != "SIGN_VERIFY":
        raise failed("the key of AWS KMS is not for signatures")
    try:
        der = base64.b64decode(encoded if type(encoded) is str else "", validate=True)
        load_der_public_key(der)
    except (binascii.Error, ValueError, TypeError, UnsupportedAlgorithm):
        raise _unavailable("AWS KMS answers without a public key") from None
    return pem_of_key(der)


def _unavailable(message: str) -> RegistryUnavailable:
    return RegistryUnavailable("images.kms", message)
