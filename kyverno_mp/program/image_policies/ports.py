"""Define the port through which ImageValidatingPolicies read and verify images.

Room: program. Gives: the queries, and the Protocol that images/policies implements.
Next: verification.py. May touch: nothing; the adapters do I/O.
Source: docs/behaviour/images 8.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kyverno_mp.program.ports import Identity, LogTerms, RegistryAccess
from kyverno_mp.values.jsonvalue import Json


class ImageQuery(NamedTuple):
    """One image, and the access settings for its registry.

    ``namespace``: the namespace of a namespaced policy.
    """

    image: str
    access: RegistryAccess = RegistryAccess()
    namespace: str = ""


class TufQuery(NamedTuple):
    """An attestor's TUF repository; ``path`` names a root file, which is never read."""

    mirror: str = ""
    root: str = ""
    path: str = ""


class CosignQuery(NamedTuple):
    """A Cosign attestor: a key, a certificate, or identities (None: not keyless).

    ``log`` None: a signature needs an entry in one of the trust root's logs. Signatures
    are in ``repository`` ("": the image's repository) under a tag with ``tag_prefix``.
    ``trusted_root`` is JSON that replaces the TUF repository, or None.
    """

    key: str | None = None
    kms: str = ""
    algorithm: str = ""
    identities: tuple[Identity, ...] | None = None
    certificate: str = ""
    chain: str = ""
    repository: str = ""
    pull_secrets: tuple[str, ...] = ()
    tag_prefix: str = ""
    log: LogTerms | None = None
    tuf: TufQuery | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    trusted_root: str | None = None


class NotaryQuery(NamedTuple):
    """A Notary attestor: PEM of trusted certificates and of timestamp authorities.

    ``stamping``: None if the attestor names no timestamp authorities.
    """

    certificates: str = ""
    stamping: str | None = None


AttestorQuery: TypeAlias = CosignQuery | NotaryQuery


class PolicyImages(Protocol):
    """The images of one review; a tag is resolved only once.

    Raises: ExpressionFailed, DependencyError; DeadlinePassed, which is not a verdict.
    """

    def data(self, image_query: ImageQuery, deadline_ns: int) -> Mapping[str, Json]:
        """Return the image's names, manifest and configuration.

        Shape: ``{image, resolvedImage, registry, repository, identifier, tag, digest,
        imageIndex, manifest, config}``.
        """

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts, one per image, in parallel threads if some are free.

        At the deadline, parts that have not started are dropped. Raises: the parts'
        errors.
        """

    def verify(
        self, image_query: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require that the attestor has signed the image."""

    def statements(
        self,
        image_query: ImageQuery,
        attestor: CosignQuery,
        kind: str,
        deadline_ns: int,
    ) -> Sequence[tuple[str, Json]]:
        """Return the attestor's statements (predicate type, statement), at least one.

        ``kind``: a predicate type, or Cosign's short name for one.
        """

    def referrer(
        self,
        image_query: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of the image's artifact that the attestor signed."""

    def document(self, image_query: ImageQuery, digest: str, deadline_ns: int) -> Json:
        """Return the JSON document in an artifact of the image."""
