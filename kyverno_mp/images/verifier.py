"""Verify images for the rules of one review: attestor by attestor.

Room: images. Takes: SignatureQueries of rules, registry clients. Gives: digests and
statements. Next: program/images.
May touch: the network through images/artifacts.py; the given clock.
Source: docs/behaviour/images 2.4, 3; docs/behaviour/lessons 4.2 row 1.

A tag is resolved once per review; that digest is verified and written into the object.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    InputError,
    RegistryUnavailable,
)
from kyverno_mp.images.artifacts import NOT_FOUND, Artifacts, Descriptor, parsed
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.cosign import (
    check_annotations,
    verified_payloads,
    verified_statements,
)
from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.references import NO_PROVIDERS, KeyProviders, referenced_key
from kyverno_mp.images.sigstore.identity import require_identity
from kyverno_mp.images.sigstore.log_search import Send, search_log
from kyverno_mp.images.sigstore.proof import Layer, Terms
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.terms import NoTrustRoot, TrustRoot, terms_of
from kyverno_mp.images.validity import Validity
from kyverno_mp.program.ports import RegistryAccess, SignatureQuery
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.images.bundles.bundle import Bundle
    from kyverno_mp.images.notation.reader import NotaryReader

_NOTARY: Final = "Notary"
_BUNDLE: Final = "SigstoreBundle"


class ImageReview:
    """The images of one review."""

    def __init__(  # noqa: PLR0913 - independent facts, most of them keyword-only
        self,
        client: Callable[[RegistryAccess], Client],
        now: Callable[[], datetime],
        deadline_ns: Callable[[int], int],
        *,
        trust: TrustRoot | None = None,
        send: Send | None = None,
        tenants_send: Send | None = None,
        helpers: Helpers | None = None,
        providers: KeyProviders = NO_PROVIDERS,
    ) -> None:
        """``deadline_ns`` returns the end of one read within a review's deadline.

        ``trust`` is used if a policy names no keys. ``send`` queries transparency logs;
        without it a signature needs a bundle. ``tenants_send`` does so for namespaced
        policies, None = ``send``. ``helpers`` verify several images concurrently.
        ``providers`` read referenced keys.
        """
        self._client = client
        self._now = now
        self._deadline_ns = deadline_ns
        self._trust = trust or NoTrustRoot()
        self._send = send
        self._tenants_send = tenants_send or send
        self._digests: dict[tuple[str, RegistryAccess], str] = {}
        self._failures: dict[
            tuple[str, RegistryAccess], ExpressionFailed | RegistryUnavailable
        ] = {}
        self._helpers = helpers
        self._providers = providers
        self._valid = Validity(now)
        self.valid_s = self._valid.take_s

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts, concurrently if there are helpers."""
        if self._helpers is not None:
            self._helpers.run(parts, self._deadline_ns(deadline_ns))

    def digest(self, image: str, access: RegistryAccess, deadline_ns: int) -> str:
        """Return the digest, which is resolved once even if that fails.

        Raises: ExpressionFailed, DependencyError.
        """
        # SAFETY: with another kind of access, the reference may be another image or
        # none.
        digest = self._digests.get((image, access))
        if digest is None:
            failure = self._failures.get((image, access))
            if failure is not None:
                raise type(failure)(failure.code, failure.message)
            artifacts = Artifacts(self._client(access))
            try:
                digest = artifacts.digest(image, self._deadline_ns(deadline_ns))
            except (ExpressionFailed, RegistryUnavailable) as error:
                self._failures[image, access] = type(error)(error.code, error.message)
                raise
            self._digests[image, access] = digest
        return digest

    def known_digest(self, image: str, access: RegistryAccess) -> str:
        """Return the digest if this review has resolved it, else ""."""
        return self._digests.get((image, access), "")

    def keep_digest(self, image: str, access: RegistryAccess, digest: str) -> None:
        """Use a digest that was resolved for another review."""
        self._digests[image, access] = digest

    def verify(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        """Return the digest that the attestor has signed.

        Raises: ExpressionFailed with upstream's message, DependencyError.
        """
        if signature_query.form == _NOTARY:
            return self._notary(signature_query, deadline_ns)
        if signature_query.form == _BUNDLE:
            return self._bundles(signature_query, deadline_ns)[0]
        until = self._deadline_ns(deadline_ns)
        terms = self._terms(signature_query, until)
        reference, digest = self._located(signature_query, deadline_ns)
        layers: list[Layer] = []
        artifacts = Artifacts(self._client(signature_query.access))
        until = self._deadline_ns(deadline_ns)
        if signature_query.oci11:
            # KYVERNO: if the referrers cannot be read, the tag is used silently.
            with suppress(InputError, DependencyError):
                layers = artifacts.referrers(reference, digest, until)
                if layers:
                    return _verified(layers, digest, terms, signature_query)
        layers = artifacts.signatures(reference, digest, "sig", until)
        return _verified(layers, digest, terms, signature_query)

    def statements(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Sequence[dict[str, Json]]:
        """Return the statements about the image that the attestor has signed.

        Raises: ExpressionFailed with upstream's message, DependencyError.
        """
        if signature_query.form == _NOTARY:
            return [self._notary_statement(signature_query, deadline_ns)]
        if signature_query.form == _BUNDLE:
            from kyverno_mp.images.bundles.reader import statements_of

            return statements_of(self._bundles(signature_query, deadline_ns)[1])
        terms = self._terms(signature_query, self._deadline_ns(deadline_ns))
        reference, digest = self._located(signature_query, deadline_ns)
        artifacts = Artifacts(self._client(signature_query.access))
        until = self._deadline_ns(deadline_ns)
        layers = artifacts.signatures(reference, digest, "att", until)
        statements = []
        for verified_statement in verified_statements(layers, digest, terms):
            try:
                require_identity(
                    [verified_statement.certificate], signature_query.identity
                )
            except ExpressionFailed:
                # KYVERNO: one statement of the type by another identity fails them all.
                if (
                    verified_statement.content.get("type")
                    == signature_query.predicate_type
                ):
                    raise
                # SAFETY: upstream passes such a signer's statement to conditions.
                continue
            statements.append(verified_statement)
        if signature_query.annotations:
            # KYVERNO: an envelope has no annotations, so required annotations always
            # fail.
            check_annotations([], signature_query.annotations)
        return [statement.content for statement in statements]

    def attempts(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> Iterator[tuple[Layer, str]]:
        """Yield each Cosign signature with the reason for its failure, "" if valid.

        For display only; ``verify`` and ``statements`` decide. Raises: as these.
        """
        terms = self._terms(signature_query, self._deadline_ns(deadline_ns))
        reference, digest = self._located(signature_query, deadline_ns)
        artifacts = Artifacts(self._client(signature_query.access))
        until = self._deadline_ns(deadline_ns)
        layers: list[Layer] = []
        if signature_query.oci11 and not signature_query.predicate_type:
            with suppress(InputError, DependencyError):
                layers = artifacts.referrers(reference, digest, until)
        suffix = "att" if signature_query.predicate_type else "sig"
        layers = layers or artifacts.signatures(reference, digest, suffix, until)
        for layer in layers:
            try:
                if signature_query.predicate_type:
                    for verified_statement in verified_statements(
                        [layer], digest, terms
                    ):
                        require_identity(
                            [verified_statement.certificate], signature_query.identity
                        )
                else:
                    _verified([layer], digest, terms, signature_query)
            except ExpressionFailed as error:
                reason = error.message.removeprefix("no matching signatures: ")
                yield layer, reason.removeprefix("no matching attestations: ")
            else:
                yield layer, ""

    def with_key(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> SignatureQuery:
        """Return the query with the key in place of a reference to one.

        Raises: ExpressionFailed, DependencyError.
        """
        return self._with_key(signature_query, self._deadline_ns(deadline_ns))

    def _with_key(
        self, signature_query: SignatureQuery, until_ns: int
    ) -> SignatureQuery:
        if signature_query.form in (_NOTARY, _BUNDLE):
            # KYVERNO: these types read no key.
            return signature_query
        tenant = signature_query.namespace if signature_query.is_tenants else None
        key = referenced_key(signature_query.key, tenant, self._providers, until_ns)
        return (
            signature_query
            if key == signature_query.key
            else signature_query._replace(key=key)
        )

    def _terms(self, signature_query: SignatureQuery, until_ns: int) -> Terms:
        send = self._tenants_send if signature_query.is_tenants else self._send

        def search(signed: Signed) -> bytes:
            if send is None:
                raise Unproved("searching log query: no log can be asked here")
            return search_log(
                signature_query.logs.url,
                signed,
                send,
                until_ns,
                is_quiet=signature_query.is_tenants,
            )

        def tick() -> None:
            if monotonic_ns() > until_ns:
                raise DeadlinePassed(
                    "images.deadline", "the signatures were not checked in time"
                )

        signature_query = self._with_key(signature_query, until_ns)
        terms = terms_of(
            signature_query, self._trust, self._now(), until_ns, search, tick
        )
        return replace(terms, hold=self._valid.hold)

    def _bundles(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> "tuple[str, list[Bundle]]":
        """Return the digest of the image and the valid bundles."""
        # Imported late, because reviews without bundles do not need it.
        from kyverno_mp.images.bundles.reader import bundles_of, verified_bundles

        reference = parsed(signature_query.image)
        until = self._deadline_ns(deadline_ns)
        try:
            image = self._described(reference, signature_query, deadline_ns)
            artifacts = Artifacts(self._client(signature_query.access))
            bundles = bundles_of(artifacts, reference, image, until)
        except (ExpressionFailed, RegistryUnavailable) as error:
            message = (
                f"failed to fetch bundles: {signature_query.image}: {error.message}"
            )
            raise type(error)(error.code, message) from error
        valid = verified_bundles(
            bundles, signature_query, image.digest, self._trust, until
        )
        return image.digest, valid

    def _notary(self, signature_query: SignatureQuery, deadline_ns: int) -> str:
        reader = self._notary_reader(signature_query, deadline_ns)
        reference = parsed(signature_query.image)
        try:
            image = self._described(reference, signature_query, deadline_ns)
        except (ExpressionFailed, RegistryUnavailable) as error:
            message = (
                f"failed to parse image reference: {signature_query.image}:"
                f" {error.message}"
            )
            raise type(error)(error.code, message) from error
        try:
            reader.verify(reference, image)
        except ExpressionFailed as error:
            message = (
                f"failed to verify {reference.place}@{image.digest}: {error.message}"
            )
            raise failed(message) from error
        return image.digest

    def _notary_statement(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> dict[str, Json]:
        reader = self._notary_reader(signature_query, deadline_ns)
        reference = parsed(signature_query.image)
        image = self._described(reference, signature_query, deadline_ns)
        return reader.statement(
            reference, image, signature_query.predicate_type, signature_query.image
        )

    def _notary_reader(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> "NotaryReader":
        # Imported late, because reviews without Notary signatures do not need it.
        from kyverno_mp.images.notation.reader import NotaryReader, load_trusted

        trusted = load_trusted(signature_query.certificate, signature_query.chain)
        artifacts = Artifacts(self._client(signature_query.access))
        until = self._deadline_ns(deadline_ns)
        return NotaryReader(artifacts, trusted, self._now(), until, self._valid.hold)

    def _described(
        self, reference: Reference, signature_query: SignatureQuery, deadline_ns: int
    ) -> Descriptor:
        """Return the descriptor of the image's tag, which is resolved once."""
        key = signature_query.image, signature_query.access
        digest = reference.digest or self._digests.get(key, "")
        named = Reference(
            reference.registry, reference.repository, reference.tag, digest
        )
        artifacts = Artifacts(self._client(signature_query.access))
        descriptor = artifacts.described(named, self._deadline_ns(deadline_ns))
        self._digests[key] = descriptor.digest
        return descriptor

    def _located(
        self, signature_query: SignatureQuery, deadline_ns: int
    ) -> tuple[Reference, str]:
        """Return the repository of the signatures, and the image's digest."""
        reference = parsed(signature_query.image)
        if signature_query.repository:
            message = (
                f"failed to parse signature repository {signature_query.repository}"
            )
            try:
                reference = parsed(signature_query.repository)
            except ExpressionFailed as error:
                raise failed(message) from error
        try:
            digest = self.digest(
                signature_query.image, signature_query.access, deadline_ns
            )
        except ExpressionFailed as error:
            if error.code != NOT_FOUND:
                raise
            raise failed(f"image tag not found: {error.message}") from error
        return reference, digest


def _verified(
    layers: Sequence[Layer], digest: str, terms: Terms, signature_query: SignatureQuery
) -> str:
    payloads = verified_payloads(layers, digest, terms)
    # KYVERNO: identity and annotations may match two different signatures.
    require_identity(
        [payload.certificate for payload in payloads], signature_query.identity
    )
    if signature_query.annotations:
        check_annotations(
            [payload.content for payload in payloads], signature_query.annotations
        )
    return digest
