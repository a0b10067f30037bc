"""Parse image references by the rules of registry clients.

Room: registry. Takes: a reference as text. Gives: Reference. Next: registry/client.py.
Source: docs/behaviour/cel 7 (image: weak parsing of go-containerregistry).
"""

from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import ExpressionFailed, RequestInvalid
from kyverno_mp.values.kubernetes.image import DEFAULT_REGISTRY, parse_image

_HUB: Final = "index.docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """One image; ``digest`` is "" if the reference has only a tag."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def identifier(self) -> str:
        """The digest, or the tag if the reference has no digest."""
        return self.digest or self.tag

    @property
    def place(self) -> str:
        """The registry and the repository, joined by a slash."""
        return f"{self.registry}/{self.repository}"

    @property
    def name(self) -> str:
        """The whole reference; a digest replaces the tag."""
        return f"{self.place}@{self.digest}" if self.digest else f"{self}"

    def __str__(self) -> str:
        return f"{self.place}:{self.tag}"

    def at(self, digest: str) -> "Reference":
        """Return a reference to another manifest of this repository."""
        return Reference(self.registry, self.repository, "", digest)


def parse_reference(image: str) -> Reference:
    """Parse a reference. Raises: RequestInvalid (``registry.reference``).

    KYVERNO: clients use index.docker.io for Docker Hub, and its official images are in
    ``library`` (docs/behaviour/cel 7), unlike the ``images`` variable
    (docs/behaviour/engine 3.8).
    """
    try:
        info = parse_image(image)
    except ExpressionFailed as error:
        raise RequestInvalid(
            "registry.reference", f"could not parse reference: {image}"
        ) from error
    registry, repository = info.registry, info.path
    if registry in (DEFAULT_REGISTRY, _HUB):
        registry = _HUB
        if "/" not in repository:
            repository = f"library/{repository}"
    return Reference(registry, repository, info.tag, info.digest)
