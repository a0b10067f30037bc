"""Record a rule's queries about an image's signatures, with the answers.

Room: cli. Takes: an ImageReview. Gives: Trace, a ReviewedImages port; steps as JSON.
Next: command. May touch: the network, or a folder, through the review.
Source: docs/behaviour/images 2.4, 3.3 (the checks of one signature, in order).
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from kyverno_mp.cli.images.findings import described
from kyverno_mp.errors import DependencyError, ExpressionFailed, InputError
from kyverno_mp.images.keys import public_key_bytes
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.program.ports import RegistryAccess, SignatureQuery
from kyverno_mp.values.jsonvalue import Json

_Answer = TypeVar("_Answer")
_COSIGN: Final = "Cosign"
_CHECKS: Final = (
    ("timestamp", ("RFC3161", "a signed timestamp")),
    ("transparency log", ("verifying bundle", "tlog", "transparency log", "log query")),
    ("certificate log", ("SCT", "ctfe")),
    ("certificate", ("cert verification", "no certificate", "checking expiry", "x509")),
    ("claim", ("digest in claim", "subject digest", "payloadType", "predicate")),
    ("identity", ("mismatch:", "certificate not found", "invalid regexp")),
    ("annotations", ("required annotations",)),
    ("keys and roots", ("failed to load", "failed to get roots", "TUF")),
    ("found", ("no signatures found", "image tag not found", "MANIFEST_UNKNOWN")),
)
"""(check, words in the reasons of its failures); any other reason is a bad
signature."""


class Trace:
    """A port of verifyImages rules that records the answers."""

    def __init__(self, review: ImageReview) -> None:
        self._review = review
        self.steps: list[Json] = []

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest."""
        return self._review.digest(image, access, deadline_ns)

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed."""
        return self._traced(signature_query, deadline_ns, self._review.verify)

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the attestor's statements about the image."""
        return self._traced(signature_query, deadline_ns, self._review.statements)

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Do not prefetch, so that the steps have the rule's order."""
        del parts, deadline_ns

    def _traced(
        self,
        signature_query: SignatureQuery,
        deadline_ns: int,
        ask: Callable[[SignatureQuery, int], _Answer],
    ) -> _Answer:
        step: dict[str, Json] = {
            "attestor": signer_of(signature_query),
            "asksFor": signature_query.predicate_type or "signature",
            "type": signature_query.form,
            "holds": True,
        }
        self.steps.append(step)
        if signature_query.form == _COSIGN:
            step["signatures"] = self._attempts(signature_query, deadline_ns)
        try:
            return ask(signature_query, deadline_ns)
        except (ExpressionFailed, DependencyError) as error:
            step["holds"] = False
            step["check"] = check_of(error.message)
            step["reason"] = error.message
            raise

    def _attempts(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> list[Json]:
        attempts: list[Json] = []
        try:
            for layer, reason in self._review.attempts(signature_query, deadline_ns):
                attempt = {**described(layer), "holds": not reason}
                if reason:
                    attempt |= {"check": check_of(reason), "reason": reason}
                attempts.append(attempt)
        except (InputError, DependencyError):
            # The step records the reason.
            return attempts
        return attempts


def check_of(reason: str) -> str:
    """Return the name of the failed check."""
    for name, words in _CHECKS:
        if any(word in reason for word in words):
            return name
    return "signature"


def signer_of(signature_query: SignatureQuery) -> str:
    """Describe the required signer in one line."""
    if signature_query.key:
        der = public_key_bytes(signature_query.key)
        if der is None:
            return f"key {signature_query.key.strip().splitlines()[0]}"
        return f"key SHA256:{hashlib.sha256(der).hexdigest()}"
    if signature_query.certificate or not signature_query.is_keyless:
        return "certificates of the policy"
    identity = signature_query.identity
    parts = [
        f"{name} {value}"
        for name, value in (
            ("subject", identity.subject),
            ("subjectRegExp", identity.subject_reg_exp),
            ("issuer", identity.issuer),
            ("issuerRegExp", identity.issuer_reg_exp),
            *identity.extensions,
        )
        if value
    ]
    roots = "the policy" if signature_query.roots else "the trust root"
    return f"keyless, {', '.join(parts) or 'anyone'}, below the roots of {roots}"
