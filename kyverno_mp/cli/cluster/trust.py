"""Access the trust root and transparency logs from the command line.

Room: cli. Takes: the environment. Gives: a TrustRoot, functions that read URLs.
Next: cli/cluster/image_access.py. May touch: the environment, files that it names, the
network.
Source: docs/behaviour/images 3.8.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509

from kyverno_mp.cli.cluster.registry_access import user_agent
from kyverno_mp.images.keys import failed
from kyverno_mp.images.network import log_sender, mirror_reader
from kyverno_mp.images.sigstore.logkeys import LogKeys, log_keys
from kyverno_mp.images.sigstore.trust_root import (
    PUBLIC_MIRROR,
    TufTrustRoot,
    public_root,
)
from kyverno_mp.registry.exchange import exchange
from kyverno_mp.settings.read import environment

_REKOR: Final = "SIGSTORE_REKOR_PUBLIC_KEY"
_CTLOG: Final = "SIGSTORE_CT_LOG_PUBLIC_KEY_FILE"


def ask_log(url: str, query: bytes, deadline_ns: int) -> tuple[int, bytes]:
    """Query a transparency log; implements Send of images/sigstore/log_search."""
    return log_sender(exchange, user_agent())(url, query, deadline_ns)


class LocalTrustRoot:
    """The trust root named by the environment, in which files can replace log keys."""

    def __init__(self) -> None:
        self._tuf: TufTrustRoot | None = None
        self._lock = threading.Lock()

    def fulcio_roots(self, deadline_ns: int) -> Sequence[x509.Certificate]:
        """Return the roots. Raises: ExpressionFailed."""
        return self._repository().fulcio_roots(deadline_ns)

    def rekor_keys(self, deadline_ns: int) -> LogKeys:
        """Return the keys of the transparency logs. Raises: ExpressionFailed."""
        return _file_keys(_REKOR) or self._repository().rekor_keys(deadline_ns)

    def ctlog_keys(self, deadline_ns: int) -> LogKeys:
        """Return the keys of the certificate logs. Raises: ExpressionFailed."""
        return _file_keys(_CTLOG) or self._repository().ctlog_keys(deadline_ns)

    def check(self, deadline_ns: int) -> None:
        """Check that the repository can be read. Raises: ExpressionFailed."""
        self._repository().check(deadline_ns)

    def target(self, name: str, deadline_ns: int) -> bytes:
        """Return a file of the repository. Raises: ExpressionFailed."""
        return self._repository().target(name, deadline_ns)

    def _repository(self) -> TufTrustRoot:
        with self._lock:
            if self._tuf is None:
                mirror, root = _repository()
                self._tuf = TufTrustRoot(
                    mirror, root, mirror_reader(exchange, user_agent())
                )
            return self._tuf


def _repository() -> tuple[str, bytes]:
    """Return the mirror and first root from TUF_ROOT, else the public ones."""
    folder = environment().get("TUF_ROOT")
    root_folder = Path(folder) if folder else Path.home() / ".sigstore" / "root"
    mirror, root = PUBLIC_MIRROR, root_folder / "root.json"
    try:
        if (root_folder / "remote.json").is_file():
            named = json.loads((root_folder / "remote.json").read_text())
            mirror = str(named["mirror"])
        first = root.read_bytes() if root.is_file() else public_root()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise failed(
            f"unable to initialize client from {root_folder}: {error}"
        ) from error
    return mirror, first


def _file_keys(variable: str) -> LogKeys:
    named = environment().get(variable)
    if not named:
        return {}
    try:
        return log_keys([Path(named).read_text()])
    except (OSError, ValueError) as error:
        raise failed(f"error reading the key that {variable} names: {error}") from error
