"""Verify that an object equals the YAML that a signer has signed.

Room: images. Takes: ManifestQueries of rules. Gives: ManifestAnswers. Next:
program/bodies/manifests. May touch: the network through its ports.
Source: docs/behaviour/images 7.

The object cannot influence how it is verified: its annotations contain the message and
the signatures, but never the key, the signer or an address.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.keys import (
    Check,
    Unproved,
    certificate_key,
    check_of,
    policy_certificate,
    static_key,
)
from kyverno_mp.images.manifests.compare import Difference, Flat, differences, shown
from kyverno_mp.images.manifests.dry_run import DryRunCreate, simulated
from kyverno_mp.images.manifests.ignored import ignored_fields
from kyverno_mp.images.manifests.message import decoded, failed, signed_objects
from kyverno_mp.images.references import NO_PROVIDERS, KeyProviders, referenced_key
from kyverno_mp.images.terms import NoTrustRoot, TrustRoot
from kyverno_mp.limits import (
    IMAGE_CERTIFICATES_MAX,
    MANIFEST_CANDIDATES_MAX,
    MANIFEST_COMPARED_MAX,
    MANIFEST_FIELDS_MAX,
    MANIFEST_SIGNATURES_MAX,
)
from kyverno_mp.policy.fields.image_verification import KeylessAttestor
from kyverno_mp.program.ports import ManifestAnswer, ManifestQuery, Once
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.images.manifests.keyless import Signature

_ABSENT: Final = "manifest.absent"
_NOWHERE: Final = "YAML manifest not found for this resource"
_UNJUDGED: Final = (
    "failed to verify signature: failed to judge signature type from public key"
    " configuration"
)
_EXEC: Final = "cosign.VerifyBlobCmd.Exec() returned an error"
_NO_KEY: Final = (
    "provide a key with --key or --sk, a certificate to verify against with"
    " --certificate, or a bundle with --bundle"
)


class ManifestVerifier:
    """The port for ``validate.manifests`` rules."""

    def __init__(
        self,
        trust: TrustRoot | None = None,
        until: Callable[[int], int] = int,
        providers: KeyProviders = NO_PROVIDERS,
        dry_runs: DryRunCreate | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``until``: returns the end of one read within a review's deadline.

        ``providers``: read the keys that references name. ``dry_runs``: creates objects
        in a dry run; None: without a cluster. ``now``: when a certificate has to be
        valid that no log has seen.
        """
        self._dry_runs = dry_runs
        self._trust: TrustRoot = trust or NoTrustRoot()
        self._until = until
        self._providers = providers
        self._now = now

    def verify(self, manifest_query: ManifestQuery, deadline_ns: int) -> ManifestAnswer:
        """Verify one attestor.

        Raises: ExpressionFailed; its code is ``manifest.absent`` if no signature
        exists.
        """
        annotations = _annotations(manifest_query.document)
        key = f"{manifest_query.domain}/message"
        encoded = annotations.get(key)
        if encoded is None:
            raise ExpressionFailed(_ABSENT, f"{_NOWHERE}: message not found")
        message, candidates = _opened(encoded, manifest_query.document)
        ignored = ignored_fields(
            manifest_query.document, manifest_query.ignored, manifest_query.domain
        )
        changes = _least(candidates, manifest_query.document, ignored)
        signatures = list(
            islice(
                _signatures(annotations, manifest_query.domain), MANIFEST_SIGNATURES_MAX
            )
        )
        if not signatures:
            reason = "failed to verify signature: signature not found"
            raise ExpressionFailed(_ABSENT, reason)
        signer = ""
        if manifest_query.keyless is not None:
            until = self._until(deadline_ns)
            signer = self._signer(
                manifest_query, manifest_query.keyless, message, signatures, until
            )
        else:
            manifest_query = self._with_key(manifest_query, self._until(deadline_ns))
            _check_signed(manifest_query, message, signatures, self._now())
        if changes and manifest_query.dry_run and self._dry_runs is not None:
            # SAFETY: only a signed manifest is sent to the API server.
            create = self._creating(self._dry_runs, manifest_query, deadline_ns)
            # Many attestors can name the same key.
            again = (manifest_query.dry_runs or Once()).get(
                lambda: simulated(candidates, manifest_query.document, ignored, create)
            )
            changes = changes if again is None else again
        diff = shown(changes) if changes else ""
        return ManifestAnswer(is_verified=not changes, signer=signer, diff=diff)

    def with_dry_runs(self, dry_runs: DryRunCreate) -> "ManifestVerifier":
        """Return a verifier that also compares with dry runs of the manifests."""
        return ManifestVerifier(
            self._trust, self._until, self._providers, dry_runs, self._now
        )

    def _creating(
        self, create: DryRunCreate, manifest_query: ManifestQuery, deadline_ns: int
    ) -> Callable[[dict[str, Json]], dict[str, Json] | None]:
        namespace, is_tenants = (
            manifest_query.dry_run,
            manifest_query.tenant is not None,
        )
        return lambda candidate: create(
            candidate, namespace, self._until(deadline_ns), is_tenants
        )

    def _with_key(self, manifest_query: ManifestQuery, until: int) -> ManifestQuery:
        if manifest_query.certificate or manifest_query.chain:
            return manifest_query
        try:
            key = referenced_key(
                manifest_query.key, manifest_query.tenant, self._providers, until
            )
        except ExpressionFailed as error:
            raise failed(f"{_UNJUDGED}: {error.message}") from error
        return manifest_query._replace(key=key)

    def _signer(
        self,
        manifest_query: ManifestQuery,
        keyless_attestor: KeylessAttestor,
        message: bytes,
        signatures: Sequence[str],
        until: int,
    ) -> str:
        """Return the name of the signer. Raises: ExpressionFailed."""
        # Imported late, because most manifests are signed with keys.
        from kyverno_mp.images.manifests.keyless import verified_signer

        annotations = _annotations(manifest_query.document)
        reasons = []
        for position, encoded in enumerate(signatures):
            try:
                signature = _keyless(
                    annotations, manifest_query.domain, position, encoded
                )
                return verified_signer(
                    signature, message, keyless_attestor, self._trust, until
                )
            except Unproved:
                # KYVERNO: upstream then tries a key and reports that none is given.
                count = f"signature {position + 1}/{len(signatures)}"
                reasons.append(f"[signer 1/1] [{count}] error: {_EXEC}: {_NO_KEY}")
            except ExpressionFailed as error:
                raise failed(f"failed to verify signature: {error.message}") from error
        raise _refused(reasons)


def _annotations(document: Mapping[str, Json]) -> dict[str, str]:
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if type(metadata) is dict else None
    pairs = annotations.items() if type(annotations) is dict else ()
    return {key: value for key, value in pairs if type(value) is str}


def _opened(
    encoded: str, document: Mapping[str, Json]
) -> tuple[bytes, list[dict[str, Json]]]:
    """Return the signed message and the objects in it that may be this object."""
    try:
        message = decoded(encoded, "message in the annotation")
        objects = signed_objects(message)
    except ExpressionFailed as error:
        raise failed(f"{_NOWHERE}: {error.message}") from error
    candidates = _candidates(objects, document)
    if not candidates:
        reason = "failed to find a YAML manifest in the gzipped message"
        raise ExpressionFailed(_ABSENT, f"{_NOWHERE}: {reason}")
    return message, candidates


def _candidates(
    objects: Sequence[dict[str, Json]], document: Mapping[str, Json]
) -> list[dict[str, Json]]:
    """Return the object with this name, or the most similar objects of its kind."""
    kind = document.get("kind")
    same = [candidate for candidate in objects if candidate.get("kind") == kind]
    named = [candidate for candidate in same if _name(candidate) == _name(document)]
    if named:
        namespace = _namespace(document)
        exact = [candidate for candidate in named if _namespace(candidate) == namespace]
        return [named[0] if len(named) == 1 or not exact else exact[0]]
    if not same:
        return []
    flat = Flat(dict(document))
    if len(same) * len(flat.values) > MANIFEST_COMPARED_MAX:
        message = f"more than {MANIFEST_COMPARED_MAX} fields in {len(same)} manifests"
        raise ExpressionFailed("manifest.fields", message)
    counts = [
        len(differences(candidate, flat, (), 2 * MANIFEST_FIELDS_MAX))
        for candidate in same
    ]
    least = min(counts)
    chosen = [
        candidate
        for candidate, count in zip(same, counts, strict=True)
        if count == least
    ]
    return chosen[:MANIFEST_CANDIDATES_MAX]


def _name(document: Mapping[str, Json]) -> tuple[str, Json]:
    metadata = document.get("metadata")
    group, slash, _ = str(document.get("apiVersion") or "").rpartition("/")
    name = metadata.get("name") if type(metadata) is dict else None
    return group if slash else "", name


def _namespace(document: Mapping[str, Json]) -> Json:
    metadata = document.get("metadata")
    return metadata.get("namespace") if type(metadata) is dict else None


def _least(
    candidates: Sequence[dict[str, Json]],
    document: Mapping[str, Json],
    ignored: Sequence[str],
) -> list[Difference]:
    """Return no differences if a candidate matches, else the first candidate's."""
    first: list[Difference] = []
    flat = Flat(dict(document))
    for candidate in candidates:
        changes = differences(candidate, flat, ignored)
        if not changes:
            return []
        first = first or changes
    return first


def _signatures(annotations: Mapping[str, str], domain: str) -> list[str]:
    signatures = []
    for index in range(len(annotations)):
        suffix = f"_{index}" if index else ""
        signature = annotations.get(f"{domain}/signature{suffix}")
        if signature is None:
            break
        signatures.append(signature)
    return signatures


def _check_signed(
    manifest_query: ManifestQuery,
    message: bytes,
    signatures: Sequence[str],
    now: datetime,
) -> None:
    """Require one signature by the attestor. Raises: ExpressionFailed."""
    check, label = _check(manifest_query, now)
    annotations = _annotations(manifest_query.document)
    reasons = []
    for position, encoded in enumerate(signatures):
        signature = _signature(encoded)
        if check is not None:
            reason = check(signature, message)
        elif manifest_query.chain:
            certificate = _part(
                annotations, manifest_query.domain, position, "certificate"
            )
            reason = _unvouched(
                manifest_query.chain, certificate, signature, message, now
            )
        else:
            reason = _NO_KEY
        if not reason:
            return
        count = f"signature {position + 1}/{len(signatures)}"
        reasons.append(f"[{label}] [{count}] error: {_EXEC}: {reason}")
    raise _refused(reasons)


def _refused(reasons: Sequence[str]) -> ExpressionFailed:
    return failed(
        f"failed to verify signature: verification failed for {len(reasons)}"
        f" signature. all trials: {json_text(list(reasons))}"
    )


def _keyless(
    annotations: Mapping[str, str], domain: str, position: int, encoded: str
) -> "Signature":
    from kyverno_mp.images.manifests.keyless import Signature

    certificate = _part(annotations, domain, position, "certificate")
    bundle = _part(annotations, domain, position, "bundle")
    return Signature(encoded, _signature(encoded), certificate, bundle)


def _part(annotations: Mapping[str, str], domain: str, position: int, name: str) -> str:
    """Return what an annotation beside a signature contains, "" without it."""
    suffix = f"_{position}" if position else ""
    encoded = annotations.get(f"{domain}/{name}{suffix}", "")
    return decoded(encoded, name).decode(errors="replace")


def _unvouched(
    chain: str, certificate: str, signature: bytes, message: bytes, now: datetime
) -> str:
    """Return why the signature is by nobody for whom the policy's chain vouches."""
    # Imported late, because most manifests are signed with keys.
    from kyverno_mp.images.sigstore.certificates import all_certificates, public_key_of

    if not certificate:
        return "the signature has no certificate"
    try:
        leaf = all_certificates(certificate, IMAGE_CERTIFICATES_MAX)[0]
        _check_chain(leaf, chain, now)
        return check_of(public_key_of(leaf))(signature, message)
    except Unproved as error:
        return str(error)
    except ExpressionFailed as error:
        return error.message


def _check_chain(leaf: x509.Certificate, chain: str, now: datetime) -> None:
    """Require that the chain vouches for a certificate now. Raises: Unproved."""
    from kyverno_mp.images.sigstore.certificates import all_certificates
    from kyverno_mp.images.sigstore.chains import verified_chain

    vouching = all_certificates(chain, IMAGE_CERTIFICATES_MAX)
    verified_chain(leaf, vouching[-1:], vouching[:-1], now)


def _check(manifest_query: ManifestQuery, now: datetime) -> tuple[Check | None, str]:
    if manifest_query.certificate:
        check = certificate_key(manifest_query.certificate, "sha256").check
        if manifest_query.chain:
            leaf = policy_certificate(manifest_query.certificate)
            try:
                _check_chain(leaf, manifest_query.chain, now)
            except Unproved as error:
                message = f"failed to load validate certificate chain: {error}"
                raise failed(f"failed to verify signature: {message}") from error
        return check, ""
    if manifest_query.chain or not manifest_query.key:
        return None, ""
    try:
        return static_key(manifest_query.key, "sha256").check, "publickey 1/1"
    except ExpressionFailed as error:
        # Upstream writes the reason to its log.
        raise failed(f"{_UNJUDGED}: {error.message}") from error


def _signature(encoded: str) -> bytes:
    try:
        return decoded(encoded, "signature")
    except ExpressionFailed:
        return b""
