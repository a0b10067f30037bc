"""Check that the images of an object have digests, and that the rule verified them.

Room: program.images. Takes: objects with the record. Gives: Outcomes of the check.
Next: program/images/record, program/rule.
Source: docs/behaviour/images 2.7; docs/behaviour/engine 8.8; docs/behaviour/v1.19.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.rules import ImageBlockIR, PolicyIR, VerifyImagesIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, Outcome
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.record import ScopedRecord, rule_key
from kyverno_mp.program.images.selection import Image, images_of, is_among
from kyverno_mp.program.request import VerifiedImages
from kyverno_mp.values.jsonvalue import Json


class ImageCheckBody:
    """The check after verification: images have digests and are verified."""

    def __init__(self, ir: VerifyImagesIR, policy: PolicyIR, rule: str) -> None:
        """``policy``, ``rule``: of this check; only their own outcomes count."""
        self._ir = ir
        self._key = rule_key(policy, rule)

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
                record = scope.shared.request.verified_images or ScopedRecord(target)
                status, message = self._checked(block, image, record)
                if status == result.FAIL:
                    return [Outcome(status, message)]
                passed = passed or status == result.PASS
                if status == result.SKIP:
                    skipped.append(image.text)
        if not skipped:
            return [Outcome(result.PASS, "image verified")]
        word, names = "verified" if passed else "skipped", " ".join(skipped)
        status = result.PASS if passed else result.SKIP
        return [Outcome(status, f"image {word}, skipped images: {names}")]

    def _checked(
        self, block: ImageBlockIR, image: Image, verified_images: VerifiedImages
    ) -> tuple[str, str]:
        if block.verify_digest and not image.digest:
            return result.FAIL, f"missing digest for {image.text}"
        if not block.required:
            return "", ""
        if verified_images.problem:
            reason = f"failed to parse scoped image metadata: {verified_images.problem}"
            return result.FAIL, reason
        status = verified_images.verified(self._key, image.text)
        # SAFETY: outcomes of other rules and policies, e.g. of a tenant, do not count.
        if not status:
            return result.FAIL, f"unverified image {image.text}"
        return status, ""
