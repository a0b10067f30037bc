"""Read the trust root from a TUF repository, Sigstore's public one or another.

Room: images. Takes: the first root metadata, a mirror's URL, a Fetch. Gives: a
TrustRoot. Next: images/terms.py. May touch: the network through the Fetch, a temporary
folder, the clock.
Source: docs/behaviour/images 3.8; the TUF specification, which ``tuf`` implements.

``tuf`` is imported for the first read, because most policies name their keys.
``public_root.json`` is version 12 of the root of sigstore/root-signing (Apache-2.0);
newer versions are found from there, each signed by its predecessor.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from cryptography import x509

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    ExpressionFailed,
    RegistryUnavailable,
)
from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.sigstore.certificates import all_certificates
from kyverno_mp.images.sigstore.logkeys import LogKeys, log_keys
from kyverno_mp.limits import (
    IMAGE_CERTIFICATES_MAX,
    IMAGE_TRUST_BYTES_MAX,
    IMAGE_TRUST_FILES_MAX,
    IMAGE_TRUST_PAUSE_S,
    IMAGE_TRUST_RETRY_S,
    IMAGE_TRUST_S,
)

Fetch: TypeAlias = Callable[[str, int], tuple[int, bytes]]
"""Reads a URL before a deadline; returns status and body."""

PUBLIC_MIRROR: Final = "https://tuf-repo-cdn.sigstore.dev"
_FULCIO: Final = (
    "fulcio.crt.pem",
    "fulcio_v1.crt.pem",
    "fulcio_intermediate_v1.crt.pem",
)
_REKOR: Final = ("rekor.pub",)
_CTFE: Final = ("ctfe.pub",)
_OK: Final = 200


def public_root() -> bytes:
    """Return the shipped root of Sigstore's public repository."""
    return Path(__file__).with_name("public_root.json").read_bytes()


@dataclass(slots=True)
class _Files:
    """The files of one read of the repository."""

    usages: Mapping[str, str]
    """File names and their usages, "" = unspecified."""
    contents: dict[str, bytes] = field(default_factory=dict)


class TufTrustRoot:
    """The trust root of one repository, which is read again after a day.

    SAFETY: unlike upstream's singleton, each repository has a separate trust root, and
    a failed read is retried after a minute.
    """

    def __init__(
        self, mirror: str, root: bytes | Callable[[int], bytes], fetch: Fetch
    ) -> None:
        """``root``: the first root metadata, or a function that reads it."""
        self._mirror = mirror.rstrip("/")
        self._root = root
        self._fetch = fetch
        self._lock = threading.Lock()
        self._files: _Files | None = None
        self._failure = ""
        self._until = 0.0
        self._pause_until = 0.0

    def fulcio_roots(self, deadline_ns: int) -> Sequence[x509.Certificate]:
        """Return the self-issued certificates. Raises: ExpressionFailed."""
        try:
            files = self._used("Fulcio", _FULCIO, deadline_ns)
        except ExpressionFailed as error:
            raise failed(f"initializing tuf: {error.message}") from error
        roots: list[x509.Certificate] = []
        for file in files:
            try:
                certificates = all_certificates(file, IMAGE_CERTIFICATES_MAX)
            except Unproved as error:
                reason = f"error unmarshalling certificates: {error}"
                raise failed(reason) from None
            roots += [
                certificate
                for certificate in certificates
                if certificate.subject == certificate.issuer
            ]
        if not roots:
            raise failed("none of the Fulcio roots have been found")
        return roots

    def rekor_keys(self, deadline_ns: int) -> LogKeys:
        """Return the keys of the transparency logs. Raises: ExpressionFailed."""
        return self._keys("Rekor", _REKOR, deadline_ns)

    def ctlog_keys(self, deadline_ns: int) -> LogKeys:
        """Return the certificate transparency logs' keys. Raises: ExpressionFailed."""
        return self._keys("CTFE", _CTFE, deadline_ns)

    def check(self, deadline_ns: int) -> None:
        """Require that the repository can be read. Raises: ExpressionFailed."""
        self._current(deadline_ns)

    def target(self, name: str, deadline_ns: int) -> bytes:
        """Return a file of the repository. Raises: ExpressionFailed."""
        content = self._current(deadline_ns).contents.get(name)
        if content is None:
            raise failed(f"the TUF repository has no file {name}")
        return content

    def _keys(self, usage: str, names: tuple[str, ...], deadline_ns: int) -> LogKeys:
        try:
            return log_keys(self._used(usage, names, deadline_ns))
        except ValueError as error:
            raise failed(f"the TUF repository has an unusable key: {error}") from None

    def _used(self, usage: str, names: tuple[str, ...], deadline_ns: int) -> list[str]:
        """Return the files for a usage, else the files with well-known names."""
        files = self._current(deadline_ns)
        chosen = [
            name for name, file_usage in files.usages.items() if file_usage == usage
        ]
        chosen = chosen or [name for name in names if name in files.contents]
        if not chosen:
            message = "no matching targets by custom metadata, fallbacks not found"
            raise failed(f"{message}: {', '.join(names)}")
        return [
            files.contents[name].decode(errors="replace") for name in sorted(chosen)
        ]

    def _current(self, deadline_ns: int) -> _Files:
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        if not self._lock.acquire(timeout=left_s if deadline_ns else -1):
            raise _late()
        try:
            if time.monotonic() >= self._until:
                self._read(deadline_ns)
            if self._files is None:
                raise failed(self._failure)
            return self._files
        finally:
            self._lock.release()

    def _read(self, deadline_ns: int) -> None:
        begun = time.monotonic()
        if begun < self._pause_until:
            raise _late()
        # SAFETY: expired keys are not used, even if the mirror is unavailable.
        self._files = None
        try:
            root = self._root
            if not isinstance(root, bytes):
                root = root(deadline_ns)
            with tempfile.TemporaryDirectory() as folder:
                self._files = _read_files(
                    folder, self._mirror, root, self._fetch, deadline_ns
                )
            self._until = time.monotonic() + IMAGE_TRUST_S
        except DeadlinePassed:
            self._until = 0.0
            now = time.monotonic()
            self._pause_until = now + min(now - begun, IMAGE_TRUST_PAUSE_S)
            raise
        except (ExpressionFailed, RegistryUnavailable) as error:
            self._failure = error.message
            self._until = time.monotonic() + IMAGE_TRUST_RETRY_S
        except _TufFailed as error:
            reason = "updating local metadata and targets: error updating to TUF remote"
            self._failure = f"{reason} mirror: tuf: {error}"
            self._until = time.monotonic() + IMAGE_TRUST_RETRY_S


def _late() -> DeadlinePassed:
    message = "the TUF repository was not read in time"
    return DeadlinePassed("images.deadline", message)


class _TufFailed(Exception):
    """The repository could not be read or verified."""


def _read_files(
    folder: str, mirror: str, root: bytes, fetch: Fetch, deadline_ns: int
) -> _Files:
    from tuf.api.exceptions import DownloadError, RepositoryError
    from tuf.ngclient.config import UpdaterConfig
    from tuf.ngclient.updater import Updater

    try:
        updater = Updater(
            folder,
            mirror,
            folder,
            f"{mirror}/targets",
            fetcher=_fetcher(fetch, deadline_ns),
            config=UpdaterConfig(targets_max_length=IMAGE_TRUST_BYTES_MAX),
            bootstrap=root,
        )
        updater.refresh()
        # The client has verified this file but has no public list of its names.
        listed = json.loads((Path(folder) / "targets.json").read_text())
        usages = dict(_usages(listed["signed"]["targets"]))
        files = _Files(usages)
        for name in usages:
            files.contents[name] = _target(updater, name, folder)
    except DownloadError as error:
        if isinstance(error.__cause__, DeadlinePassed):
            raise error.__cause__ from None
        raise _TufFailed(_reason(error)) from None
    except (RepositoryError, OSError, ValueError, KeyError, TypeError) as error:
        raise _TufFailed(_reason(error)) from None
    return files


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, Error):
        return f"{error}: {cause.message}"
    return str(error) or type(error).__name__


def _usages(targets: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and usages of the files for verification."""
    names = [*_FULCIO, *_REKOR, *_CTFE, "trusted_root.json"]
    chosen = 0
    for name, target in targets.items():
        custom = target.get("custom") or {}
        usage = (custom.get("sigstore") or {}).get("usage", "")
        if name in names or usage:
            chosen += 1
            if chosen > IMAGE_TRUST_FILES_MAX:
                raise _TufFailed(f"more than {IMAGE_TRUST_FILES_MAX} files")
            yield name, usage


def _target(updater: Any, name: str, folder: str) -> bytes:
    info = updater.get_targetinfo(name)
    if info is None or info.length > IMAGE_TRUST_BYTES_MAX:
        raise _TufFailed(f"the file {name} is missing or too large")
    path = Path(updater.download_target(info, str(Path(folder) / "target")))
    return path.read_bytes()


def _fetcher(fetch: Fetch, deadline_ns: int) -> Any:
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient.fetcher import FetcherInterface

    class Fetcher(FetcherInterface):
        """Reads through our own client, with its limits."""

        def _fetch(self, url: str) -> Iterator[bytes]:
            status, body = fetch(url, deadline_ns)
            if status != _OK:
                raise DownloadHTTPError(f"{url}: HTTP status {status}", status)
            return iter([body])

    return Fetcher()
