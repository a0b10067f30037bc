"""Find the images of an object that a verifyImages rule selects.

Room: program.images. Takes: VerifyImagesIR, an object. Gives: Images. Next:
program/images/rule, program/images/outcomes.
Source: docs/behaviour/images 2.2; docs/behaviour/engine 3.8.
"""

from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.ir.rules import VerifyImagesIR
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.containers import count_containers
from kyverno_mp.values.kubernetes.image import list_images
from kyverno_mp.values.kubernetes.image_hosts import is_image_like

_STEPS_PER_IMAGE: Final = 20
_SHOWN: Final = (
    "reference",
    "referenceWithTag",
    "registry",
    "path",
    "name",
    "tag",
    "digest",
)


class Image(NamedTuple):
    """One image of an object.

    ``text``: registry/path:tag, or registry/path@digest; ``with_tag``: the text to
    which a digest is appended; ``shown``: the variable ``image``.
    """

    text: str
    with_tag: str
    digest: str
    pointer: str
    shown: dict[str, Json]

    def at(self, digest: str) -> str:
        """Return the reference with a digest instead of a tag."""
        if self.digest:
            return self.text
        return f"{self.with_tag.rpartition(':')[0]}@{digest}"


def images_of(
    ir: VerifyImagesIR, resource: dict[str, Json], scope: RuleContext
) -> list[Image]:
    """Return all images of the object.

    SAFETY: an image that does not parse is an error; upstream then ignores all images,
    so one invalid reference disables the whole rule.
    Raises: ExpressionFailed.
    """
    kind = resource.get("kind")
    extractors = dict(ir.extractors) or None
    scope.runtime.charge(_STEPS_PER_IMAGE * count_containers(resource))

    def searched(path: str, value: Json) -> Json:
        try:
            return search(path)(scope.runtime, value)
        except ExpressionInvalid as error:
            raise ExpressionFailed(error.code, error.message) from error

    settings = scope.cluster_data.settings().images._replace(search=searched)
    try:
        described = list_images(
            resource, kind if type(kind) is str else "", extractors, settings
        )
    except ExpressionFailed as error:
        prefix = "failed to instantiate handler: failed to extract images: "
        raise ExpressionFailed(error.code, prefix + error.message) from error
    return [_image(image) for image in described]


def _image(described: dict[str, Json]) -> Image:
    reference = described["reference"]
    with_tag = described.get("referenceWithTag") or reference
    return Image(
        reference,
        with_tag,
        described.get("digest") or "",
        described["jsonPointer"],
        {key: described[key] for key in _SHOWN if key in described},
    )


def is_among(reference: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a reference matches one of the patterns."""
    return any(is_image_like(pattern, reference) for pattern in patterns)
