"""Read and verify images for the ImageValidatingPolicies of one review.

Room: images. Takes: queries of policies, registry clients, trust roots. Gives:
PolicyReview, the PolicyImages of program/image_policies. Next: cosign.py, notary.py.
May touch: the network through images/artifacts.py; the given clock.
Source: docs/behaviour/images 8; Kyverno pkg/image/verifiers/ivpol, kyverno/sdk
extensions/imagedataloader.

A tag is resolved once per review, and all verification is about that digest.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic_ns

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    ExpressionFailed,
    InputError,
    RegistryUnavailable,
    without_frames,
)
from kyverno_mp.images.artifacts import Artifacts, Descriptor, json_object
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.bundles.bundle import Bundle, parse
from kyverno_mp.images.bundles.verify import Demands, check_bundle, statement_of
from kyverno_mp.images.cosign import verified_payloads, verified_statements
from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.policies import notary
from kyverno_mp.images.policies.cosign import (
    annotated,
    identified,
    material_of,
    terms_of_policy,
)
from kyverno_mp.images.policies.data import ReadImage, read_image
from kyverno_mp.images.policies.identity import check_identities
from kyverno_mp.images.policies.statements import payloads_of
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.references import KeyProviders, referenced_key
from kyverno_mp.images.sigstore.log_search import Send, search_log
from kyverno_mp.images.sigstore.proof import Layer, Terms
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.validity import Validity
from kyverno_mp.limits import IMAGE_POLICY_BYTES_MAX
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    ImageQuery,
    NotaryQuery,
)
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.reference import Reference
from kyverno_mp.values.jsonvalue import Json

_BUNDLE = "application/vnd.dev.sigstore.bundle"


@dataclass(frozen=True, slots=True)
class PolicyReader:
    """The clients, trust roots and helpers that all reviews of a process share.

    ``until`` returns the end of one read within a review's deadline. ``send`` queries
    transparency logs, None = no log is available. ``tenants_send`` does so for
    namespaced policies, None = ``send``.
    """

    client: Callable[[RegistryAccess], Client]
    now: Callable[[], datetime]
    until: Callable[[int], int]
    trust: PolicyTrust
    send: Send | None = None
    tenants_send: Send | None = None
    helpers: Helpers | None = None
    """Read several images of a review concurrently; None: one after the other."""
    providers: KeyProviders = field(default_factory=dict)
    """Read the keys that references name."""

    def begin(self) -> "PolicyReview":
        """Begin a review."""
        return PolicyReview(self)


class PolicyReview:
    """The images of one review."""

    def __init__(self, reader: PolicyReader) -> None:
        self._reader = reader
        self._images: dict[ImageQuery, ReadImage | Error] = {}
        self._bytes_left = IMAGE_POLICY_BYTES_MAX
        self._lock = threading.Lock()
        self._valid = Validity(reader.now)
        self.valid_s = self._valid.take_s

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts, concurrently if there are helpers."""
        helpers = self._reader.helpers
        if helpers is not None:
            helpers.run(parts, self._until(deadline_ns))

    def place(self, image_query: ImageQuery, deadline_ns: int) -> tuple[str, str]:
        """Return repository and digest of an image. Raises: as PolicyImages."""
        image = self._image(image_query, deadline_ns)
        return image.reference.place, image.digest

    def data(self, image_query: ImageQuery, deadline_ns: int) -> Mapping[str, Json]:
        """Return manifest and configuration. Raises: as PolicyImages."""
        return self._image(image_query, deadline_ns).data

    def verify(
        self, image_query: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require that the attestor has signed the image. Raises: as PolicyImages."""
        image = self._image(image_query, deadline_ns)
        until = self._until(deadline_ns)
        if isinstance(attestor, NotaryQuery):
            reader = notary.reader(
                attestor,
                self._artifacts(image_query.access),
                self._reader.now(),
                until,
                self._valid.hold,
            )
            reader.verify(image.reference, image.descriptor)
            return
        bundles = self._bundles(image_query, image, until)
        if bundles:
            self._held(bundles, image_query, attestor, image, until)
            return
        terms = self._terms(image_query, attestor, until)
        layers = self._layers(image_query, attestor, image, "sig", until)
        verified = verified_payloads(layers, image.digest, terms)
        annotated(identified(verified, attestor), attestor)

    def statements(
        self,
        image_query: ImageQuery,
        attestor: CosignQuery,
        kind: str,
        deadline_ns: int,
    ) -> Sequence[tuple[str, Json]]:
        """Return the attestor's statements. Raises: as PolicyImages."""
        image = self._image(image_query, deadline_ns)
        until = self._until(deadline_ns)
        bundles = self._bundles(image_query, image, until)
        if bundles:
            valid = self._held(bundles, image_query, attestor, image, until)
            return payloads_of(map(statement_of, valid), kind)
        terms = self._terms(image_query, attestor, until)
        if terms.log is None:
            # KYVERNO: unlike a signature, an attestation needs its log entry.
            raise failed("cosign bundle verification failed")
        layers = self._layers(image_query, attestor, image, "att", until)
        verified = identified(
            verified_statements(layers, image.digest, terms), attestor
        )
        if attestor.annotations:
            verified = annotated(verified, attestor)
        return payloads_of((signature.content for signature in verified), kind)

    def referrer(
        self,
        image_query: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of a signed artefact. Raises: as PolicyImages."""
        image = self._image(image_query, deadline_ns)
        reader = notary.reader(
            attestor,
            self._artifacts(image_query.access),
            self._reader.now(),
            self._until(deadline_ns),
            self._valid.hold,
        )
        return notary.signed_referrer(
            reader, image.reference, image.digest, artifact_type
        )

    def document(self, image_query: ImageQuery, digest: str, deadline_ns: int) -> Json:
        """Return the document of an artefact. Raises: as PolicyImages."""
        image = self._image(image_query, deadline_ns)
        artifacts = self._artifacts(image_query.access)
        until = self._until(deadline_ns)
        return notary.document_of(artifacts, image.reference, digest, until)

    def with_key(
        self, image_query: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> AttestorQuery:
        """Return the attestor with the key in place of a reference to one.

        Raises: ExpressionFailed, DependencyError.
        """
        if isinstance(attestor, NotaryQuery):
            return attestor
        return self._with_key(image_query, attestor, self._until(deadline_ns))

    def _with_key(
        self, image_query: ImageQuery, attestor: CosignQuery, until_ns: int
    ) -> CosignQuery:
        if attestor.identities is not None or attestor.key != "":
            # KYVERNO: ``kms`` only counts without ``data``, and never with identities.
            return attestor
        tenant = image_query.namespace if image_query.access.is_tenants else None
        providers = self._reader.providers
        key = referenced_key(attestor.kms, tenant, providers, until_ns)
        if key == attestor.kms:
            return attestor
        return attestor._replace(key=key, kms="")

    def _image(self, image_query: ImageQuery, deadline_ns: int) -> ReadImage:
        """Return the image, which is read once even if the read fails."""
        # SAFETY: with another kind of access, the reference may be another image or
        # none.
        outcome = self._images.get(image_query)
        if outcome is None:
            try:
                outcome = read_image(
                    self._artifacts(image_query.access),
                    image_query.image,
                    self._until(deadline_ns),
                )
                with self._lock:
                    self._bytes_left -= outcome.size
                if self._bytes_left < 0:
                    outcome = failed("the images of this review are too large")
            except (ExpressionFailed, RegistryUnavailable) as error:
                outcome = without_frames(error)
            self._images[image_query] = outcome
        if isinstance(outcome, Error):
            raise type(outcome)(outcome.code, outcome.message)
        return outcome

    def _artifacts(self, access: RegistryAccess) -> Artifacts:
        return Artifacts(self._reader.client(access))

    def _until(self, deadline_ns: int) -> int:
        return self._reader.until(deadline_ns)

    def _terms(
        self, image_query: ImageQuery, attestor: CosignQuery, until_ns: int
    ) -> Terms:
        reader, is_tenants = self._reader, image_query.access.is_tenants

        def search(signed: Signed) -> bytes:
            url = "" if attestor.log is None else attestor.log.url
            send = reader.send
            if is_tenants and reader.tenants_send is not None:
                send = reader.tenants_send
            if send is None:
                raise Unproved("searching log query: no log can be asked here")
            return search_log(url, signed, send, until_ns, is_quiet=is_tenants)

        def tick() -> None:
            if monotonic_ns() > until_ns:
                message = "the signatures were not checked in time"
                raise DeadlinePassed("images.deadline", message)

        trust = reader.trust.root(
            attestor.tuf, is_tenants=is_tenants, trusted_root=attestor.trusted_root
        )
        attestor = self._with_key(image_query, attestor, until_ns)
        terms = terms_of_policy(attestor, trust, reader.now(), until_ns, search)
        return replace(terms, tick=tick, hold=self._valid.hold)

    def _layers(
        self,
        image_query: ImageQuery,
        attestor: CosignQuery,
        image: ReadImage,
        suffix: str,
        until_ns: int,
    ) -> list[Layer]:
        """Return the signatures under the tag that is derived from the digest."""
        reference, access = image.reference, image_query.access
        if attestor.repository:
            message = f"failed to parse signature repository {attestor.repository}"
            reference = notary.parsed_as(attestor.repository, message)
        if attestor.pull_secrets:
            access = RegistryAccess(
                access.insecure, (), attestor.pull_secrets, access.is_tenants
            )
        return self._artifacts(access).signatures(
            reference, image.digest, suffix, until_ns, attestor.tag_prefix
        )

    def _bundles(
        self, image_query: ImageQuery, image: ReadImage, until_ns: int
    ) -> list[Bundle]:
        """Return the bundles that refer to the image.

        KYVERNO: unreadable bundles are skipped; if any bundle remains, only bundles
        count.
        """
        artifacts, reference, bundles = (
            self._artifacts(image_query.access),
            image.reference,
            [],
        )
        listed: list[dict[str, Json]] = []
        with self._suppressed():
            listed = artifacts.referring(reference, image.digest, until_ns)
        for entry in listed:
            if not str(entry.get("artifactType")).startswith(_BUNDLE):
                continue
            with suppress(Unproved), self._suppressed():
                bundles.append(
                    _bundle(artifacts, reference, str(entry["digest"]), until_ns)
                )
        return bundles

    @contextmanager
    def _suppressed(self) -> Iterator[None]:
        """Suppress a failed read; the result is then not cached.

        SAFETY: a read that fails now may succeed for the next review.
        """
        try:
            yield
        except (InputError, RegistryUnavailable):
            self._valid.hold(self._reader.now())

    def _held(
        self,
        bundles: Sequence[Bundle],
        image_query: ImageQuery,
        attestor: CosignQuery,
        image: ReadImage,
        until_ns: int,
    ) -> list[Bundle]:
        """Return the bundles that the attestor signed, at least one.

        KYVERNO: any statement by the identity is also a signature.
        Raises: ExpressionFailed, DependencyError.
        """
        trust = self._reader.trust.root(
            attestor.tuf,
            is_tenants=image_query.access.is_tenants,
            trusted_root=attestor.trusted_root,
        )
        trust.check(until_ns)
        log = attestor.log
        if log is not None and not log.url:
            raise failed("rekor URL must be provided")
        identities = attestor.identities
        if identities is None:
            raise failed("a bundle is verified by identity only")
        check_identities(identities)
        if len(identities) > 1:
            message = "unsupported: multiple identities are not supported at this time"
            raise failed(message)
        ignores_log = log is not None and log.is_ignored
        if ignores_log:
            # The certificate is only checked against today, so the result is not
            # cached.
            self._valid.hold(self._reader.now())
        demands = Demands(
            image.digest,
            identities[0],
            needs_log=not ignores_log,
            now=self._reader.now() if ignores_log else None,
            needs_scts=log is None or not log.ignores_scts,
        )
        material = material_of(trust, until_ns)
        valid, reasons = [], []
        for bundle in bundles:
            try:
                # This raises if the bundle has no statement.
                statement_of(bundle)
                check_bundle(bundle, material, demands)
            except Unproved as error:
                reasons.append(str(error))
            else:
                valid.append(bundle)
        if not valid or attestor.annotations:
            raise failed("no matching signatures: " + "\n ".join(reasons))
        return valid


def _bundle(
    artifacts: Artifacts, reference: Reference, digest: str, until_ns: int
) -> Bundle:
    """Read one bundle. Raises: InputError, DependencyError, Unproved."""
    manifest: Descriptor = artifacts.document(reference, digest, until_ns)
    layers = json_object(manifest.body, digest).get("layers")
    layer = layers[0] if type(layers) is list and layers else None
    if type(layer) is not dict:
        raise failed("layers not found")
    return parse(artifacts.blob(reference, str(layer.get("digest")), until_ns))
