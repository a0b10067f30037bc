"""The port through which ImageValidatingPolicies read and verify images.

Room: program. Gives: the queries, and the Protocol that images/policies satisfies.
Next: verification.py. May touch: nothing; the adapters do.
Source: docs/behaviour/images 8.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kyverno_mp.program.ports import Identity, LogTerms, RegistryAccess
from kyverno_mp.values.jsonvalue import Json


class ImageQuery(NamedTuple):
    """One image, and how its registry is read."""

    image: str
    access: RegistryAccess = RegistryAccess()


class TufQuery(NamedTuple):
    """The TUF repository of an attestor; ``path``: a root that is not read."""

    mirror: str = ""
    root: str = ""
    path: str = ""


class CosignQuery(NamedTuple):
    """An attestor by Cosign: a key, a certificate, or identities (None: not keyless).

    ``log`` None: a signature needs a log entry of the trust root's logs. Signatures are
    in ``repository``, "" = that of the image, under a tag with ``tag_prefix``.
    ``trusted_root``: JSON that replaces the TUF repository, None = the repository's.
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
    """An attestor by Notary: PEM of trusted certificates, and of time authorities.

    ``stamping``: None if the attestor names no time authorities.
    """

    certificates: str = ""
    stamping: str | None = None


AttestorQuery: TypeAlias = CosignQuery | NotaryQuery


class PolicyImages(Protocol):
    """The images of one review; a tag is resolved once.

    Raises: ExpressionFailed, DependencyError; DeadlinePassed, which is no verdict.
    """

    def data(self, asked: ImageQuery, deadline_ns: int) -> Mapping[str, Json]:
        """Return names, manifest and configuration of the image.

        Shape: ``{image, resolvedImage, registry, repository, identifier, tag, digest,
        imageIndex, manifest, config}``.
        """

    def at_once(self, parts: Sequence[Callable[[], None]], deadline_ns: int) -> None:
        """Run the parts, each about another image, in several threads if some are free.

        At the deadline those that have not begun are dropped. Raises: what a part
        raises.
        """

    def verify(
        self, asked: ImageQuery, attestor: AttestorQuery, deadline_ns: int
    ) -> None:
        """Require that the attestor has signed the image."""

    def statements(
        self,
        asked: ImageQuery,
        attestor: CosignQuery,
        kind: str,
        deadline_ns: int,
    ) -> Sequence[tuple[str, Json]]:
        """Return (predicate type, statement) of what the attestor states, at least one.

        ``kind``: a predicate type, or Cosign's short name for one.
        """

    def referrer(
        self,
        asked: ImageQuery,
        attestor: NotaryQuery,
        artifact_type: str,
        deadline_ns: int,
    ) -> str:
        """Return the digest of an artefact about the image that the attestor signed."""

    def document(self, asked: ImageQuery, digest: str, deadline_ns: int) -> Json:
        """Return the JSON document that an artefact about the image is."""
