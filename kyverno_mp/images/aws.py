"""Call the services of AWS with this pod's identity.

Room: images. Takes: the identity, an Exchange, which decides which addresses are
allowed. Gives: Aws, which signs and sends requests. Next: images/aws_keys.py,
images/aws_registries.py.
May touch: the network through the Exchange, the file with the identity's token, clocks.
Source: AWS Signature Version 4; AWS STS AssumeRoleWithWebIdentity.

SAFETY: the identity is the operator's, so callers use it for cluster-wide policies
only. No message has the answer of a server.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode

from kyverno_mp.errors import ExpressionFailed, RegistryUnavailable
from kyverno_mp.limits import IMAGE_LOG_BYTES_MAX
from kyverno_mp.registry.exchange import Exchange, RegistryCall, RegistryResponse
from kyverno_mp.values.jsonvalue import Json

_ERROR: Final = re.compile(r"[A-Za-z]{1,64}", re.ASCII)
_OK: Final = 200
_STS: Final = {
    name: re.compile(rf"<{name}>([^<]{{1,4096}})</{name}>")
    for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
}
REGION: Final = r"[a-z]{2,4}(?:-[a-z]{2,16}){1,3}-[0-9]{1,2}"
"""SAFETY: whoever names an image or a key chooses the region. Other names below AWS's
domain belong to its customers, such as those below ``s3``, and must get no token."""
EARLY: Final = timedelta(minutes=5)
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

    @property
    def is_complete(self) -> bool:
        """Whether requests can be signed with it."""
        return self.credentials is not None or bool(self.role and self.token_file)


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


class AwsService(NamedTuple):
    """A service in a region; ``target``: the prefix of its operations' names."""

    name: str
    region: str
    host: str
    target: str


class AwsAnswer(NamedTuple):
    """A service's response; ``error``: its printable name, "" without one."""

    content: dict[str, Json]
    error: str = ""


class Aws:
    """Signs and sends requests; threads may share it."""

    def __init__(
        self, identity: AwsIdentity, send: Exchange, now: Callable[[], datetime]
    ) -> None:
        self.region = identity.region
        self._identity = identity
        self._send = send
        self.now = now
        self._assumed: tuple[Credentials, datetime] | None = None

    @property
    def has_identity(self) -> bool:
        """Whether requests can be signed."""
        return self._identity.is_complete

    def ask(
        self,
        service: AwsService,
        operation: str,
        content: Mapping[str, str],
        deadline_ns: int,
    ) -> AwsAnswer:
        """Return the response to an operation, also if it is an error.

        Raises: ExpressionFailed (``images.aws``: no identity), DependencyError.
        """
        credentials = self._credentials(service.region, deadline_ns)
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"{service.target}.{operation}",
        }
        body = json.dumps(content).encode()
        scope = Scope(service.region, service.name, self.now())
        headers = signed(credentials, scope, service.host, headers, body)
        answer = self._post(service.host, headers, body, deadline_ns)
        answered = _content_of(answer)
        if answer.status == _OK:
            return AwsAnswer(answered)
        kind = str(answered.get("__type", "")).rpartition("#")[2]
        return AwsAnswer({}, kind if _ERROR.fullmatch(kind) else "an error")

    def forget_credentials(self) -> None:
        """Exchange the pod's token again: the credentials have perhaps ended early."""
        self._assumed = None

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
        if not identity.is_complete:
            raise ExpressionFailed(
                "images.aws",
                "this pod has no identity in AWS: give it AWS_ROLE_ARN and"
                " AWS_WEB_IDENTITY_TOKEN_FILE, or AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY",
            )
        assumed = self._assumed
        if assumed is None or self.now() >= assumed[1] - EARLY:
            assumed = self._assumed = self._assume(self.region or region, deadline_ns)
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
        answer = self._post(host_of("sts", region), headers, body, deadline_ns)
        xml = answer.body.decode("utf-8", "replace")
        parts = {name: pattern.search(xml) for name, pattern in _STS.items()}
        if answer.status != _OK or None in parts.values():
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


def host_of(service: str, region: str) -> str:
    """Return the host of a service, such as ``kms``, in a region."""
    china = ".cn" if region.startswith("cn-") else ""
    return f"{service}.{region}.amazonaws.com{china}"


def _content_of(answer: RegistryResponse) -> dict[str, Json]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    return content if type(content) is dict else {}


def _unavailable(message: str) -> RegistryUnavailable:
    return RegistryUnavailable("images.aws", message)
