"""Record the verified images of an object, and check the record.

Room: program.images. Takes: outcomes by reference; objects. Gives: the annotation,
Outcomes of the check. Next: program/images/rule, program/rule.
May touch: nothing outside its arguments.
Source: docs/behaviour/images 2.3 (step 6), 2.7; docs/behaviour/engine 8.8.
"""

from collections.abc import Collection, Mapping
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.rules import ImageBlockIR, VerifyImagesIR
from kyverno_mp.limits import IMAGE_RECORD_CHARACTERS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.selection import Image, images_of, is_among
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json

ANNOTATION: Final = "kyverno.io/verify-images"
OF_TENANTS: Final = "kyverno.io/verify-images-of-namespace"
"""References in the record that only policies of the namespace have verified."""
_DONE: Final = frozenset({result.PASS, result.SKIP})


def annotated(
    resource: dict[str, Json],
    outcomes: Mapping[str, str],
    of_tenants: Collection[str] = (),
) -> dict[str, Json]:
    """Return the object with the outcomes, or without the annotation if none.

    ``of_tenants``: references that only policies of the namespace have verified.

    SAFETY: an annotation from the user proves nothing, so it is always removed.
    """
    metadata = resource.get("metadata")
    if type(metadata) is not dict:
        metadata = {}
    given = metadata.get("annotations")
    had = given if type(given) is dict else {}
    if not outcomes and ANNOTATION not in had and OF_TENANTS not in had:
        return resource
    ours = (ANNOTATION, OF_TENANTS)
    kept = {key: value for key, value in had.items() if key not in ours}
    if outcomes:
        kept[ANNOTATION] = json_text(dict(sorted(outcomes.items())))
    if of_tenants:
        kept[OF_TENANTS] = json_text(sorted(of_tenants))
    metadata = {key: value for key, value in metadata.items() if key != "annotations"}
    if kept:
        metadata["annotations"] = kept
    return {**resource, "metadata": metadata}


def vouched_by_tenants(annotations: Mapping[str, Json]) -> Collection[str]:
    """Return the references that only policies of the namespace have verified."""
    text = annotations.get(OF_TENANTS)
    if type(text) is not str or len(text) > IMAGE_RECORD_CHARACTERS_MAX:
        return ()
    try:
        found = decode_json(text)
    except JsonInvalid:
        return ()
    return [one for one in found if type(one) is str] if type(found) is list else ()


class ImageCheckBody:
    """The check after verification: images have digests and are verified."""

    def __init__(self, ir: VerifyImagesIR, *, is_tenants: bool = False) -> None:
        """``is_tenants``: the policy is namespaced."""
        self._ir = ir
        self._is_tenants = is_tenants

    def fast(self, _scope: RuleContext, target: Json) -> int:
        """Return NONE for a deletion; otherwise ``explain`` has to decide."""
        return EXPLAIN if target else NONE

    def concerns(self, scope: RuleContext, target: Json) -> bool:
        """Return whether a block selects an image, or ``explain`` returns an error."""
        if type(target) is not dict or not target:
            return False
        references = tuple(r for b in self._ir.blocks for r in b.references)
        try:
            images = images_of(self._ir, target, scope)
        except ExpressionFailed:
            return True
        return any(is_among(image.text, references) for image in images)

    def explain(self, scope: RuleContext, target: Json) -> list[Outcome]:
        """Return one outcome; the first failure decides."""
        if type(target) is not dict or not self.concerns(scope, target):
            return []
        images = images_of(self._ir, target, scope)
        passed, skipped = False, []
        for block in self._ir.blocks:
            for image in images:
                if not is_among(image.text, block.references):
                    continue
                status, text = self._checked(block, image, target)
                if status == result.FAIL:
                    return [Outcome(status, text)]
                passed = passed or status == result.PASS
                if status == result.SKIP:
                    skipped.append(image.text)
        if not skipped:
            return [Outcome(result.PASS, "image verified")]
        word, names = "verified" if passed else "skipped", " ".join(skipped)
        status = result.PASS if passed else result.SKIP
        return [Outcome(status, f"image {word}, skipped images: {names}")]

    def _checked(
        self, block: ImageBlockIR, image: Image, resource: dict[str, Json]
    ) -> tuple[str, str]:
        if block.verify_digest and not image.digest:
            return result.FAIL, f"missing digest for {image.text}"
        if not block.required:
            return "", ""
        metadata = resource.get("metadata")
        given = metadata.get("annotations") if type(metadata) is dict else None
        if type(given) is not dict or not given:
            return result.FAIL, f"unverified image {image.text}"
        text = given.get(ANNOTATION)
        if type(text) is not str:
            return result.FAIL, "image is not verified"
        try:
            known = decode_json(text)
        except JsonInvalid as error:
            return result.FAIL, f"failed to parse image metadata: {error}"
        status = known.get(image.text) if type(known) is dict else None
        if type(status) is not str or status not in _DONE:
            return result.FAIL, f"unverified image {image.text}"
        # SAFETY: an outcome from a namespaced policy does not satisfy a cluster policy.
        if not self._is_tenants and image.text in vouched_by_tenants(given):
            return result.FAIL, f"unverified image {image.text}"
        return status, ""
