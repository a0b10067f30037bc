"""Read public keys from Secrets: the provider for ``k8s://<namespace>/<name>``.

Room: images. Takes: references, a reader of Secrets. Gives: KeyProviders. Next:
images/references.py. May touch: the API server through the given function, the clock.
Source: docs/behaviour/images 1.2 (references), 3.4 (PEM); cosign
pkg/cosign/kubernetes/secret.go; docs/images.md (keys in Secrets).

SAFETY: of a Secret only the public key is kept, and no message has its content.
"""

import base64
import binascii
import re
import threading
from collections import OrderedDict
from time import monotonic_ns
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from kyverno_mp.errors import DependencyError, KubeRefused
from kyverno_mp.images.keys import failed
from kyverno_mp.images.references import NO_PROVIDERS, KeyProviders
from kyverno_mp.limits import IMAGE_KEY_SECRETS_MAX
from kyverno_mp.program.ports import ReadNamedSecret
from kyverno_mp.values.jsonvalue import Json

_SCHEME: Final = "k8s"
_KEY: Final = "cosign.pub"
_KEPT_NS: Final = 60_000_000_000
"""How long a key is kept: a changed Secret takes effect after a minute."""
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


class SecretKeyReader:
    """Reads public keys from Secrets; threads may share it."""

    def __init__(self, read: ReadNamedSecret) -> None:
        self._read = read
        self._known: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, reference: str, tenant: str | None, deadline_ns: int) -> str:
        """Return the key as PEM. Raises: ExpressionFailed, DependencyError."""
        namespace, name = _place(reference)
        if tenant is not None and namespace != tenant:
            # SAFETY: tenants have no rights outside their namespace, but we have some.
            raise failed(
                "a namespaced policy can only refer to Secrets in its own namespace"
            )
        key, until_ns = self._known.get((namespace, name), ("", 0))
        if monotonic_ns() < until_ns:
            return key
        key = _public_key(self._secret(namespace, name, deadline_ns))
        with self._lock:
            self._known[namespace, name] = key, monotonic_ns() + _KEPT_NS
            self._known.move_to_end((namespace, name))
            if len(self._known) > IMAGE_KEY_SECRETS_MAX:
                self._known.popitem(last=False)
        return key

    def _secret(self, namespace: str, name: str, deadline_ns: int) -> Json:
        prefix = "checking if secret exists"
        try:
            found = self._read(namespace, name, deadline_ns)
        except KubeRefused as error:
            # KYVERNO: no permission is a failure; no answer is an error.
            raise failed(f"{prefix}: {error.message}") from error
        except DependencyError as error:
            text = f"{prefix}: {error.message}"
            raise type(error)(error.code, text) from error
        if found is None:
            raise failed(f'{prefix}: secrets "{name}" not found')
        return found


def _place(reference: str) -> tuple[str, str]:
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
