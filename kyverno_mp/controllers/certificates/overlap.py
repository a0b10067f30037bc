"""Trust an authority for a while after it left its Secret, and a new one before use.

Room: controllers. Takes: the bundle and the pair as the Secrets have them, the time.
Gives: the bundle to register, whether to serve the pair now.
Next: certificates/controller.py. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 4 (rotation).

An authority that is renewed stays in its Secret beside the new one. One whose Secret
was deleted or replaced does not, and replicas read the new pair at different times: for
some seconds the API server would distrust those that serve the other one.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from kyverno_mp.controllers.certificates.make import certificate_pem
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted

LASTS: Final = timedelta(seconds=120)
"""So long an authority that left is trusted: every replica has the new pair by then."""
FIRST_TRUSTED: Final = timedelta(seconds=15)
"""A new pair waits so long, until its authority is registered: longer than it takes
another replica to go on with the lease of one that died over it."""


class Overlap:
    """What this replica saw of authorities and pairs; one clock reading a call."""

    def __init__(self) -> None:
        self._pem = b""
        self._present: tuple[x509.Certificate, ...] = ()
        self._left: dict[x509.Certificate, datetime] = {}
        self._waiting: tuple[bytes, bytes] = (b"", b"")
        self._since = datetime.min.replace(tzinfo=UTC)

    def bundle(self, pem: bytes, now: datetime) -> bytes:
        """Return ``pem`` and whatever left it not long ago and is valid still."""
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
        """Tell whether ``served`` is to be served on before the new ``pair`` is.

        Not when it is of no use soon: callers would refuse it.
        """
        then = now + FIRST_TRUSTED
        if not is_trusted(certificates_of(served), certificates_of(bundle), then):
            return False
        if pair != self._waiting:
            self._waiting, self._since = pair, now
        # A clock that was set back must not make it wait for ever.
        return timedelta(0) <= now - self._since < FIRST_TRUSTED
