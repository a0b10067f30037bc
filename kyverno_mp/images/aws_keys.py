"""Read public keys from AWS KMS: the provider for ``awskms://``.

Room: images. Takes: references, an Aws. Gives: KeyProviders.
Next: images/references.py.
May touch: the network through images/aws.py, clocks.
Source: sigstore pkg/signature/kms/aws/client.go (references); AWS KMS GetPublicKey.

The public key is read, and signatures are verified here. SAFETY: only cluster-wide
policies use the identity, and no message has the answer of a server.
"""

import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key

from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    RegistryUnavailable,
    RequestInvalid,
)
from kyverno_mp.images.aws import REGION, Aws, AwsService, host_of
from kyverno_mp.images.keys import failed, pem_of_key
from kyverno_mp.images.references import KeyProviders
from kyverno_mp.limits import (
    IMAGE_KEY_SECRETS_MAX,
    KMS_KEY_KEPT_S,
    KMS_KEY_READ_S,
    KMS_RETRY_S,
)
from kyverno_mp.values.jsonvalue import Json

_SCHEME: Final = "awskms"
_KMS: Final = "kms"
_ID: Final = r"(?:mrk-)?[A-Fa-f0-9-]{32,36}"
_ARN: Final = rf"arn:(?:aws|aws-us-gov|aws-cn):kms:({REGION}):\d{{12}}:"
_ALIAS: Final = r"alias/[A-Za-z0-9/_-]{1,250}"
_REFERENCE: Final = re.compile(
    rf"awskms://([A-Za-z0-9.:\[\]-]{{0,255}})/((?:{_ARN}key/)?{_ID}|(?:{_ARN})?{_ALIAS})",
    re.ASCII,
)
_REGION: Final = re.compile(REGION, re.ASCII)
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


def aws_keys(aws: Aws) -> KeyProviders:
    """Return the provider."""
    return {_SCHEME: AwsKeys(aws)}


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
        aws: Aws,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._aws = aws
        self._clock_ns = clock_ns
        self._known: OrderedDict[_Key, _Known] = OrderedDict()

    def __call__(self, reference: str, tenant: str | None, deadline_ns: int) -> str:
        """Return the key as PEM. Raises: ExpressionFailed, DependencyError."""
        if tenant is not None:
            # SAFETY: the identity is the operator's.
            raise failed("a namespaced policy cannot use keys of AWS KMS")
        key = _key_of(reference, self._aws.region)
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
        service = AwsService(_KMS, key.region, key.host, "TrentService")
        content = {"KeyId": key.name}
        answer = self._aws.ask(service, "GetPublicKey", content, deadline_ns)
        if answer.error in _REFUSED:
            raise failed(f"AWS KMS answers {answer.error}")
        if answer.error:
            self._aws.forget_credentials()
            raise _unavailable(f"AWS KMS answers {answer.error}")
        return _pem_of(answer.content)


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
    return _Key(host or host_of(_KMS, region), region, name)


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
