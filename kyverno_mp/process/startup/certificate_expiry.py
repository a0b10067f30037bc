"""Read when the served certificate expires.

Room: process. Takes: the file of the certificate chain. Gives: a time for the metrics.
Next: process/roles/health.py. May touch: that file.
"""

from pathlib import Path

from cryptography import x509


class CertificateExpiry:
    """The expiry of a certificate file, read again after each change."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen = (0, 0)
        self._ends_s = 0.0

    def ends_s(self) -> float:
        """Return the Unix time at which the first certificate of the chain expires.

        0.0 if the file does not exist or contains no certificate.
        """
        if self._file is None:
            return 0.0
        try:
            facts = self._file.stat()
            seen = (facts.st_mtime_ns, facts.st_ino)
            if seen != self._seen:
                found = x509.load_pem_x509_certificate(self._file.read_bytes())
                self._ends_s = found.not_valid_after_utc.timestamp()
                self._seen = seen
        except (OSError, ValueError):
            return 0.0
        return self._ends_s
