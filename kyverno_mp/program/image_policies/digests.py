"""Replace the tags of an object's images by digests, as ``mutateDigest`` asks for.

Room: program. Takes: the references of a policy, the object's images, a reader of
digests. Gives: JSON patch operations, and the images without a digest. Next: plan.py.
May touch: registries, through the port.
Source: docs/behaviour/v1.19 5; Kyverno pkg/image/verification/evaluator/policy.go
(MutateDigest) at v1.19.1.

Nothing is verified here: the validating webhook does that.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program.image_policies.references import References
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import ImageSettings, list_images
from kyverno_mp.values.patches.json_diff import Operation
from kyverno_mp.values.patches.json_pointer import decoded

_STEPS_PER_IMAGE: Final = 50


class Tagged(NamedTuple):
    """An image without a digest. One is appended to ``reference``."""

    reference: str
    pointer: str


def tagged_images(
    resource: dict[str, Json],
    references: References,
    settings: ImageSettings,
    runtime: Runtime,
) -> list[Tagged]:
    """Return the images of containers that have no digest and that a policy selects.

    SAFETY: upstream selects by the complete reference (``docker.io/nginx:1``) and
    writes it. If only the reference as written is selected (``nginx:1``), it is kept:
    otherwise, the validating webhook would not select the image any more.
    Raises: ExpressionFailed, BudgetExceeded.
    """
    kind = resource.get("kind")
    chosen = []
    for image in list_images(
        resource, kind if type(kind) is str else "", settings=settings
    ):
        runtime.charge(_STEPS_PER_IMAGE)
        if image.get("digest"):
            continue
        pointer, complete = image["jsonPointer"], image["reference"]
        written = _at(resource, pointer)
        reference = next(
            (
                reference
                for reference in (complete, written)
                if references.select(reference, runtime)
            ),
            None,
        )
        if reference is not None:
            chosen.append(Tagged(reference, pointer))
    return chosen


def pinned(
    images: Sequence[Tagged], digest_of: Callable[[str], str]
) -> tuple[list[Operation], list[str]]:
    """Return the patch, and the reasons why images have no digest.

    Raises: DeadlinePassed.
    """
    patch: list[Operation] = []
    problems = []
    for reference, pointer in images:
        try:
            value = f"{reference}@{digest_of(reference)}"
        except DeadlinePassed:
            raise
        except (ExpressionFailed, DependencyError) as error:
            problems.append(
                f"failed to resolve digest for image {reference}: {error.message}"
            )
        else:
            patch.append({"op": "replace", "path": pointer, "value": value})
    return patch, problems


def _at(resource: Json, pointer: str) -> Json:
    for token in map(decoded, pointer.split("/")[1:]):
        resource = resource[int(token) if type(resource) is list else token]
    return resource
