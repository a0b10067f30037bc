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

    def get(self, place: _Place) -> _Found | None:
        found, until_ns = self._known.get(place, (None, 0))
        return found if monotonic_ns() < until_ns else None

    def put(self, place: _Place, found: _Found) -> None:
        self._known[place] = found, monotonic_ns() + self._kept_ns
        self._known.move_to_end(place)
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
        place = _place(reference)
        if tenant is not None and place[0] != tenant:
            # SAFETY: tenants have no rights outside their namespace, but we have some.
            raise failed(
                "a namespaced policy can only refer to Secrets in its own namespace"
            )
        found = self._keys.get(place) or self._failures.get(place)
        if found is None:
            found = self._shared(place, deadline_ns)
        if found.failure:
            raise failed(found.failure)
        return found.key

    def _shared(self, place: _Place, deadline_ns: int) -> _Found:
        """Read the Secret, or wait for the thread that is reading it.

        Threads share what the API server answered. If it did not answer the reading
        thread, whose deadline may be earlier, each waiting thread reads itself.
        """
        with self._lock:
            other = self._flights.get(place)
            if other is None:
                # Another thread may have ended its read since the first look-up.
                known = self._keys.get(place) or self._failures.get(place)
                if known is not None:
                    return known
                own = self._flights[place] = Future()
        if other is not None:
            return _awaited(other, deadline_ns) or self._found(place, deadline_ns)
        found = None
        try:
            found = self._found(place, deadline_ns)
        finally:
            with self._lock:
                if found is not None:
                    (self._failures if found.failure else self._keys).put(place, found)
                del self._flights[place]
            own.set_result(found)
        return found

    def _found(self, place: _Place, deadline_ns: int) -> _Found:
        try:
            return _Found(key=_public_key(self._secret(place, deadline_ns)))
        except ExpressionFailed as error:
            return _Found(failure=error.message)

    def _secret(self, place: _Place, deadline_ns: int) -> Json:
        namespace, name = place
        try:
            found = self._read(namespace, name, deadline_ns)
        except KubeRefused as error:
            # KYVERNO: no permission is a failure; no answer is an error.
            raise failed(f"{_PREFIX}: {error.message}") from error
        except DependencyError as error:
            message = f"{_PREFIX}: {error.message}"
            raise type(error)(error.code, message) from error
        if found is None:
            raise failed(f'{_PREFIX}: secrets "{name}" not found')
        return found


def _awaited(other: "Future[_Found | None]", deadline_ns: int) -> _Found | None:
    """Return what another thread finds, None if the API server does not answer it."""
    left_s = (deadline_ns - monotonic_ns()) / 1e9 if deadline_ns else None
    try:
        return other.result(left_s)
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
    given = data.get(_KEY) if type(data) is dict else None
    if type(given) is not str:
        raise failed(_MISSING)
    try:
        text = base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise failed(_MISSING) from None
    found = _PEM.search(text)
    if found is None:
        raise failed(_MISSING)
    if found[1] not in _PUBLIC:
        raise failed(
            f"unknown Public key PEM file type in {_KEY}. Are you passing the correct"
            " public key?"
        )
    try:
        der = base64.b64decode("".join(found[2].split()), validate=True)
        key = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise failed(f"the content of {_KEY} is not a valid public key") from None
    if not isinstance(
        key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
    ):
        raise failed("unsupported public key type")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
