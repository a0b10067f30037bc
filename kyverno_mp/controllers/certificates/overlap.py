"""Trust a CA for a while after it leaves its Secret, and a new CA before it is used.

Room: controllers. Takes: the bundle and the pair from the Secrets, the time. Gives: the
bundle to register, whether to serve the pair now.
Next: controllers/certificates/controller.py.
Source: docs/behaviour/controllers 4 (rotation).

A renewed authority stays in its Secret next to the new one. If the Secret was deleted
or replaced, the old authority disappears at once, while replicas read the new pair at
different times. For some seconds, the API server would distrust the replicas that still
serve the old pair.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from kyverno_mp.controllers.certificates.make import certificate_pem
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted

LASTS: Final = timedelta(seconds=120)
"""How long a removed authority stays trusted; by then every replica has the new pair.
"""
FIRST_TRUSTED: Final = timedelta(seconds=15)
"""How long a new pair waits for the registration of its authority. Another replica may
have to take over the lease from one that dies meanwhile, which takes less time."""


class Overlap:
    """The authorities and pairs that this replica read; a call uses one timestamp."""

    def __init__(self) -> None:
        self._pem = b""
        self._present: tuple[x509.Certificate, ...] = ()
        self._left: dict[x509.Certificate, datetime] = {}
        self._waiting: tuple[bytes, bytes] = (b"", b"")
        self._since = datetime.min.replace(tzinfo=UTC)

    def bundle(self, pem: bytes, now: datetime) -> bytes:
        """Return ``pem`` and every valid authority that left it within ``LASTS``."""
        if pem != self._pem:
            before, self._present = self._present, certificates_of(pem)
            self._pem = pem
            self._left.update((one, now) for one in before)
            for one in self._present:
                self._left.pop(one, None)
        self._left = {
            one: since
            for one, since in self._left.items()
            if now - since < LASTS and now <= one.not_valid_after_utc
        }
        if not self._left:
            return pem
        return b"\n".join(filter(None, (pem.strip(), certificate_pem(*self._left))))

    def waits(
        self, pair: tuple[bytes, bytes], served: bytes, bundle: bytes, now: datetime
    ) -> bool:
        """Return whether to keep serving ``served`` before the new ``pair``.

        False if callers would soon reject ``served``.
        """
        then = now + FIRST_TRUSTED
        if not is_trusted(certificates_of(served), certificates_of(bundle), then):
            return False
        if pair != self._waiting:
            self._waiting, self._since = pair, now
        # If the clock is set back, the pair must not wait forever.
        return timedelta(0) <= now - self._since < FIRST_TRUSTED
