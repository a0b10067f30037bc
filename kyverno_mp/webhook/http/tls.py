"""Serve TLS with a certificate that can be replaced while connections are open.

Room: webhook. Takes: paths of PEM files. Gives: Certificates, whose context the
listener uses. Next: worker. May touch: reads these files.
Source: docs/behaviour/controllers 2.1 (versions, suites); GHSA-hgv6-w7r3-w4qw (weak
ciphers).
"""

import contextlib
import logging
import ssl
from pathlib import Path
from typing import Final

from kyverno_mp.settings.settings import Settings

_LOG = logging.getLogger(__name__)

CIPHERS: Final = ":".join(
    f"ECDHE-{key}-{cipher}"
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for key in ("ECDSA", "RSA")
)
"""The six cipher suites of TLS 1.2; TLS 1.3 has only suites of this kind."""

_Stamp = tuple[int, int, int]


class Certificates:
    """The certificate in force; ``refresh`` checks for a newer one.

    So does each handshake. The listener's context never changes. At each handshake it
    switches to the newest context, which was fully built and checked before. A partly
    written or mismatched pair of files is therefore never served.
    """

    def __init__(
        self, cert_file: Path, key_file: Path, client_ca_file: Path | None = None
    ) -> None:
        """Load the files. Raises: OSError, ssl.SSLError.

        ``client_ca_file`` verifies client certificates, which stay optional: probes
        have none.
        """
        self._cert_file = cert_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self._stamps = self._read_stamps()
        self._current = self._load()
        self.context = self._load()
        # Called at every handshake, even if the client names no server.
        self.context.sni_callback = self._hand_over

    def refresh(self) -> bool:
        """Load the files if they changed; True if a new certificate came into force.

        If a pair cannot be loaded, this is logged, and the pair is retried when it
        changes again.
        """
        try:
            stamps = self._read_stamps()
            if stamps == self._stamps:
                return False
            self._stamps = stamps
            self._current = self._load()
        except (OSError, ssl.SSLError) as error:
            _LOG.warning("the new certificate cannot be used: %s", type(error).__name__)
            return False
        return True

    def _read_stamps(self) -> tuple[_Stamp, ...]:
        # stat follows the symlinks with which the kubelet swaps all files atomically.
        files = (self._cert_file, self._key_file, self._client_ca_file)
        facts = [file.stat() for file in files if file is not None]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in facts)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        # K8S: the API server speaks HTTP/1.1 to webhooks (kubernetes PR 82090).
        context.set_alpn_protocols(["http/1.1"])
        # PERF: the API server resumes no sessions and closes connections beyond 25 idle
        # ones, so session tickets for its many handshakes would be wasted.
        context.num_tickets = 0
        # Without this empty password, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(self._cert_file, self._key_file, password="")
        if self._client_ca_file is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(self._client_ca_file)
        return context

    def _hand_over(
        self,
        handshake: ssl.SSLSocket | ssl.SSLObject,
        _name: str | None,
        _context: ssl.SSLContext,
    ) -> None:
        # A worker may look for a newer pair late, when the API server already trusts
        # only that one. PERF: a handshake costs a thousand times as much.
        with contextlib.suppress(OSError):
            if self._read_stamps() != self._stamps and self.refresh():
                _LOG.info("serving a new certificate")
        handshake.context = self._current


def client_ca_of(settings: Settings) -> Path | None:
    """Return the file with the authorities of client certificates, if there is one."""
    return Path(settings.client_ca_file) if settings.client_ca_file else None
