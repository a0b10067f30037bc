"""Read public keys from Secrets: the provider for ``k8s://<namespace>/<name>``.

Room: images. Takes: references, a reader of Secrets. Gives: KeyProviders. Next:
images/references.py. May touch: the API server through the given function, the clock.
Source: docs/behaviour/images 1.2 (references), 3.4 (PEM); cosign
pkg/cosign/kubernetes/secret.go; docs/images.md (keys in Secrets).

SAFETY: of a Secret only the public key is kept, and no message has its content. A
policy of a tenant can name a Secret without a key in many entries, for many images, so
the reason is kept too, for a moment, and concurrent threads share one read.
"""

import base64
import binascii
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from time import monotonic_ns
from typing import Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    KubeRefused,
)
from kyverno_mp.images.keys import failed
from kyverno_mp.images.references import NO_PROVIDERS, KeyProviders
from kyverno_mp.limits import IMAGE_KEY_FAILURES_MAX, IMAGE_KEY_SECRETS_MAX
from kyverno_mp.program.ports import ReadNamedSecret
from kyverno_mp.values.jsonvalue import Json

_SCHEME: Final = "k8s"
_KEY: Final = "cosign.pub"
_KEPT_NS: Final = 60_000_000_000
"""How long a key is kept: a changed Secret takes effect after a minute."""
_FAILURE_KEPT_NS: Final = 1_000_000_000
"""How long a failure is kept: a created or repaired Secret takes effect after this."""
_PREFIX: Final = "checking if secret exists"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_PEM: Final = re.compile(
    r"(?:\A|\n)-----BEGIN ([A-Z0-9 ]+)-----[ \t\r]*\n([A-Za-z0-9+/=\s]*?)\n?"
    r"-----END \1-----",
    re.ASCII,
)
_PUBLIC: Final = ("PUBLIC KEY", "RSA PUBLIC KEY")
_MISSING: Final = f"PEM decoding failed: the Secret has no public key in {_KEY}"


def key_providers(read: ReadNamedSecret | None) -> KeyProviders:
    """Return the providers; that of ``k8s://`` needs a cluster: None, there is none."""
    return NO_PROVIDERS if read is None else {_SCHEME: SecretKeyReader(read)}


class _Found(NamedTuple):
    """The key of a Secret, or the reason why it has none."""

    key: str = ""
    failure: str = ""


_Place = tuple[str, str]


class _Kept:
    """Results of reads, each kept for a limited time; the latest ones if too many."""

    def __init__(self, kept_ns: int, number_max: int) -> None:
        self._kept_ns, self._number_max = kept_ns, number_max
        self._known: OrderedDict[_Place, tuple[_Found, int]] = OrderedDict()

    def get(self, key: _Place) -> _Found | None:
        result, until_ns = self._known.get(key, (None, 0))
        return result if monotonic_ns() < until_ns else None

    def put(self, key: _Place, result: _Found) -> None:
        self._known[key] = result, monotonic_ns() + self._kept_ns
        self._known.move_to_end(key)
        if len(self._known) > self._number_max:
            self._known.popitem(last=False)


class SecretKeyReader:
    """Reads public keys from Secrets; threads may share it."""

    def __init__(self, read: ReadNamedSecret) -> None:
        self._read = read
        self._keys = _Kept(_KEPT_NS, IMAGE_KEY_SECRETS_MAX)
        # Failures have separate places: they never replace a key.
        self._failures = _Kept(_FAILURE_KEPT_NS, IMAGE_KEY_FAILURES_MAX)
        self._flights: dict[_Place, Future[_Found | None]] = {}
        self._lock = threading.Lock()

    def __call__(self, reference: str, tenant: str | None, deadline_ns: int) -> str:
        """Return the key as PEM. Raises: ExpressionFailed, DependencyError."""
        key = _place(reference)
        if tenant is not None and key[0] != tenant:
            # SAFETY: tenants have no rights outside their namespace, but we have some.
            raise failed(
                "a namespaced policy can only refer to Secrets in its own namespace"
            )
        result = self._keys.get(key) or self._failures.get(key)
        if result is None:
            result = self._shared(key, deadline_ns)
        if result.failure:
            raise failed(result.failure)
        return result.key

    def _shared(self, key: _Place, deadline_ns: int) -> _Found:
        """Read the Secret, or wait for the thread that is reading it.

        Threads share what the API server answered. If it did not answer the reading
        thread, whose deadline may be earlier, each waiting thread reads itself.
        """
        with self._lock:
            other_flight = self._flights.get(key)
            if other_flight is None:
                # Another thread may have ended its read since the first look-up.
                recent = self._keys.get(key) or self._failures.get(key)
                if recent is not None:
                    return recent
                flight = self._flights[key] = Future()
        if other_flight is not None:
            return _awaited(other_flight, deadline_ns) or self._found(key, deadline_ns)
        result = None
        try:
            result = self._found(key, deadline_ns)
        finally:
            with self._lock:
                if result is not None:
                    (self._failures if result.failure else self._keys).put(key, result)
                del self._flights[key]
            flight.set_result(result)
        return result

    def _found(self, key: _Place, deadline_ns: int) -> _Found:
        try:
            return _Found(key=_public_key(self._secret(key, deadline_ns)))
        except ExpressionFailed as error:
            return _Found(failure=error.message)

    def _secret(self, key: _Place, deadline_ns: int) -> Json:
        namespace, name = key
        try:
            secret = self._read(namespace, name, deadline_ns)
        except KubeRefused as error:
            # KYVERNO: no permission is a failure; no answer is an error.
            raise failed(f"{_PREFIX}: {error.message}") from error
        except DependencyError as error:
            message = f"{_PREFIX}: {error.message}"
            raise type(error)(error.code, message) from error
        if secret is None:
            raise failed(f'{_PREFIX}: secrets "{name}" not found')
        return secret


def _awaited(flight: "Future[_Found | None]", deadline_ns: int) -> _Found | None:
    """Return what another thread finds, None if the API server does not answer it."""
    left_s = (deadline_ns - monotonic_ns()) / 1e9 if deadline_ns else None
    try:
        return flight.result(left_s)
    except FutureTimeout as error:
        message = f"{_PREFIX}: the Secret was not read in time"
        raise DeadlinePassed("images.deadline", message) from error


def _place(reference: str) -> _Place:
    """Return namespace and name of a Secret. Raises: ExpressionFailed."""
    parts = reference.removeprefix(f"{_SCHEME}://").split("/")
    if not reference.startswith(f"{_SCHEME}://") or len(parts) != 2:  # noqa: PLR2004
        raise failed(
            "kubernetes specification should be in the format"
            " k8s://<namespace>/<secret>"
        )
    if not all(_NAME.fullmatch(part) for part in parts):
        raise failed("the namespace or the name of the Secret is invalid")
    return parts[0], parts[1]


def _public_key(secret: Json) -> str:
    """Return the key of a Secret as PEM. Raises: ExpressionFailed."""
    data = secret.get("data") if type(secret) is dict else None
    encoded = data.get(_KEY) if type(data) is dict else None
    if type(encoded) is not str:
        raise failed(_MISSING)
    try:
        pem = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise failed(_MISSING) from None
    match = _PEM.search(pem)
    if match is None:
        raise failed(_MISSING)
    if match[1] not in _PUBLIC:
        raise failed(
            f"unknown Public key PEM file type in {_KEY}. Are you passing the correct"
            " public key?"
        )
    try:
        der = base64.b64decode("".join(match[2].split()), validate=True)
        key = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise failed(f"the content of {_KEY} is not a valid public key") from None
    if not isinstance(
        key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
    ):
        raise failed("unsupported public key type")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
