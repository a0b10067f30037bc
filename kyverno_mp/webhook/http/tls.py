"""Serve TLS with a certificate that may be replaced while connections live.

Room: webhook. Takes: paths of PEM files. Gives: Certificates, whose context the
listener uses. Next: worker. May touch: reads the two files.
Source: docs/behaviour/controllers 2.1 (versions, suites); GHSA-hgv6-w7r3-w4qw (weak
ciphers).
"""

import logging
import ssl
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

CIPHERS: Final = ":".join(
    f"ECDHE-{key}-{cipher}"
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for key in ("ECDSA", "RSA")
)
"""The six suites of TLS 1.2; TLS 1.3 has only such suites."""

_Stamp = tuple[int, int, int]


class Certificates:
    """The certificate in force; ``refresh`` looks for a newer one.

    The listener's context never changes. At each handshake it hands over to the newest
    context, which was built whole and checked before it came into force, so that a torn
    or mismatched pair of files is never served.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Load the files. Raises: OSError, ssl.SSLError."""
        self._cert_file = cert_file
        self._key_file = key_file
        self._stamps = self._look()
        self._current = self._load()
        self.context = self._load()
        # Called at every handshake, also when the client names no server.
        self.context.sni_callback = self._hand_over

    def refresh(self) -> bool:
        """Load the files if they changed; True when a new certificate came into force.

        A pair that does not load is told and tried again when it changes once more.
        """
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return False
            self._stamps = stamps
            self._current = self._load()
        except (OSError, ssl.SSLError) as error:
            _LOG.warning("the new certificate cannot be used: %s", type(error).__name__)
            return False
        return True

    def _look(self) -> tuple[_Stamp, _Stamp]:
        # stat follows the symlinks by which kubelet swaps both files at once.
        first, second = self._cert_file.stat(), self._key_file.stat()
        return (
            (first.st_ino, first.st_mtime_ns, first.st_size),
            (second.st_ino, second.st_mtime_ns, second.st_size),
        )

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        # K8S: the API server speaks HTTP/1.1 to webhooks (kubernetes PR 82090).
        context.set_alpn_protocols(["http/1.1"])
        # PERF: it resumes no session, and beyond 25 idle connections it closes what it
        # opened: the tickets of so many handshakes would be made for nothing.
        context.num_tickets = 0
        # Without a password of ours OpenSSL would ask the terminal for one.
        context.load_cert_chain(self._cert_file, self._key_file, password="")
        return context

    def _hand_over(
        self,
        handshake: ssl.SSLSocket | ssl.SSLObject,
        _name: str | None,
        _context: ssl.SSLContext,
    ) -> None:
        handshake.context = self._current
