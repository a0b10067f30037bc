"""Run one verifyImages rule on one object: verify, write digests, record outcomes.

Room: program.images. Takes: RuleIR linked once; Request and RuleContext per review; the
ImageState of the object. Gives: RuleResults; the state has the changed object.
Next: program/images/verification. May touch: registries through program/ports.py.
Source: docs/behaviour/images 2.2-2.5, 2.7; docs/behaviour/engine 0.5, 8.7.

Over 400 lines: the state of an object and the rule that changes this state.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, ExpressionFailed, InputError
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import ImageBlockIR, PolicyIR, RuleIR, VerifyImagesIR
from kyverno_mp.policy.fields.image_verification import (
    IMAGE_VERIFICATION,
    ImageVerification,
)
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import Outcome, cut
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.ahead import read_ahead
from kyverno_mp.program.images.attestations import link_checks, verify_attestations
from kyverno_mp.program.images.attestors import BlockReader, verify_sets
from kyverno_mp.program.images.filled import require_filled
from kyverno_mp.program.images.record import (
    DONE,
    ImageRecord,
    RuleKey,
    ScopedRecord,
    rule_key,
)
from kyverno_mp.program.images.selection import Image, images_of, is_among
from kyverno_mp.program.ports import ReviewedImages
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule_gate import RuleGate, excepted
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.values.patches.json_pointer import decoded, entry_at

_MISSING: Final = object()


@dataclass(slots=True)
class ImageState:
    """One object while the policies of a review verify its images.

    ``given``: the object before the current policy's first rule. All rules of the
    policy use its images, so a digest written by one rule hides no image from the next.
    """

    images: ReviewedImages
    resource: dict[str, Json]
    given: dict[str, Json] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """The digests to which the object's tags were first resolved."""
    record: ImageRecord = field(default_factory=ImageRecord)
    is_stored: bool = True
    """The object goes to an API server, and its annotations to the check. Elsewhere,
    the check gets the record itself, and the object has only what Kyverno 1.18 adds."""
    _old: ScopedRecord | None = None

    def annotate(self) -> None:
        """Write the record into the object, replacing any record sent by the user."""
        self.resource = self.record.written(self.resource, is_scoped=self.is_stored)

    def verified_before(self, request: Request, key: RuleKey, reference: str) -> bool:
        """Return whether the old object's record has a verification by the rule."""
        if self._old is None:
            self._old = ScopedRecord(request.old_object)
        return bool(self._old.verified(key, reference))

    def resolved(self, image: Image, reader: BlockReader) -> str:
        """Return the digest that all blocks verify.

        SAFETY: with other credentials, a registry could return another image for the
        same tag.
        Raises: ExpressionFailed, DependencyError.
        """
        digest = reader.images.digest(image.text, reader.access, reader.deadline_ns)
        first = self.digests.setdefault(image.text, digest)
        if digest != first:
            message = f"{image.text} was resolved to {first}, and then to {digest}"
            raise ExpressionFailed("image.digest", message)
        return digest

    def current(self, image: Image) -> str:
        """Return the image's reference as it is in the object now."""
        first = self.digests.get(image.text)
        now = _at(self.resource, image.pointer)
        if first is None or not str(now).endswith(f"@{first}"):
            return image.text
        return image.at(first)


class _LinkedBlock:
    """One linked verifyImages entry."""

    __slots__ = ("checks", "deny", "ir", "settings")

    def __init__(self, ir: ImageBlockIR) -> None:
        self.ir = ir
        self.settings = link_document(ir.settings)
        self.checks = tuple(map(link_checks, ir.conditions))
        self.deny = link_conditions(ir.deny) if ir.deny is not None else None

    def verifies(self, image: Image, block: ImageVerification) -> bool:
        """Return whether the entry requires signatures for an image."""
        return is_among(image.text, self.ir.references) and not is_among(
            image.text, block.skip_image_references
        )

    def rendered(self, scope: RuleContext) -> ImageVerification:
        """Substitute the variables of the entry. Raises: ExpressionFailed."""
        try:
            raw = self.settings(scope)
            if not self.ir.settings.is_constant:
                require_filled(self.ir.settings.source, raw)
            return IMAGE_VERIFICATION.convert(raw)
        except (ExpressionFailed, msgspec.ValidationError) as error:
            reason = getattr(error, "message", str(error))
            message = f"failed to substitute variables: {reason}"
            raise ExpressionFailed("image.settings", message) from error


class LinkedImageRule:
    """One linked verifyImages rule."""

    __slots__ = ("_blocks", "_gate", "ir", "key", "matches", "policy", "verification")

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.policy = policy
        self.ir = ir
        self.key = rule_key(policy, ir.name)
        self.verification = ir.verify_images or VerifyImagesIR(())
        self._gate = RuleGate(policy, ir)
        self.matches = self._gate.matches
        self._blocks = tuple(map(_LinkedBlock, self.verification.blocks))

    def run(
        self, request: Request, scope: RuleContext, state: ImageState
    ) -> list[RuleResult]:
        """Return the results of a matching rule; the changed object is in the state."""
        try:
            images = self._selected(state, scope)
        except InputError as error:
            return [
                self._result(
                    scope, Outcome(result.ERROR, error.message, code=error.code)
                )
            ]
        if not images:
            return []
        try:
            refused = self._gate.refusal(scope)
            if refused is not None:
                return [self._result(scope, refused)]
            matched = self._gate.matched_exceptions(request, scope)
        except Exception:
            self._fail(state, images)
            raise
        if matched:
            rule_result = self._result(scope, excepted(matched))
            rule_result.exceptions = tuple(ir.key for ir in matched)
            return [rule_result]
        outcomes: list[Outcome] = []
        try:
            # SAFETY: the list is extended one by one, so outcomes before an error are
            # kept.
            outcomes.extend(self._verified(request, scope, state, images))
        except InputError as error:
            outcomes.append(Outcome(result.ERROR, error.message, code=error.code))
            self._fail(state, images)
        except Exception:
            self._fail(state, images)
            raise
        state.annotate()
        return [self._result(scope, outcome) for outcome in outcomes]

    def leave_out(self, now: Request, scope: RuleContext, state: ImageState) -> None:
        """Record that the rule does not run. Raises: InputError.

        SAFETY: only images that it has verified before, and that are unchanged, count
        as verified.
        """
        for image in self._selected(state, scope):
            if self._is_verified_before(image, now, state):
                state.record.add(self.key, image.text, result.PASS)
            else:
                state.record.skipped.add(image.text)

    def _is_verified_before(
        self, image: Image, request: Request, state: ImageState
    ) -> bool:
        """Return whether the rule has verified an image that is unchanged since."""
        return _is_unchanged(image, state.given, request) and state.verified_before(
            request, self.key, image.text
        )

    def record_failed(self, scope: RuleContext, state: ImageState) -> None:
        """Record failures if the rule cannot run. Raises: InputError."""
        self._fail(state, self._selected(state, scope))

    def _fail(self, state: ImageState, images: list[Image]) -> None:
        """Record failures because the rule raised."""
        for image in images:
            state.record.add(self.key, state.current(image), result.FAIL)

    def _selected(self, state: ImageState, scope: RuleContext) -> list[Image]:
        """Return the images that blocks select, repeated for each block.

        KYVERNO: an image selected by two blocks is verified twice in each block
        (docs/behaviour/images 2.2).
        """
        if not state.given:
            return []
        images = images_of(self.verification, state.given, scope)
        return [
            image
            for image in images
            for block in self.verification.blocks
            if is_among(image.text, block.references)
        ]

    def _verified(
        self,
        request: Request,
        scope: RuleContext,
        state: ImageState,
        images: list[Image],
    ) -> Iterator[Outcome]:
        """Yield the outcomes one by one. Raises: InputError."""
        blocks = [block.rendered(scope) for block in self._blocks]
        for linked, block in zip(self._blocks, blocks, strict=True):
            reader = BlockReader(
                block,
                state.images,
                scope.runtime.deadline_ns,
                is_tenants=bool(self.policy.namespace),
                namespace=self.policy.namespace,
            )
            if len(images) > 1:
                to_verify = [
                    (image, linked.verifies(image, block))
                    for image in images
                    if not self._is_verified_before(image, request, state)
                ]
                reader = read_ahead(reader, to_verify)
            for image in images:
                if self._is_verified_before(image, request, state):
                    # KYVERNO: such an image has no result (docs/behaviour/images 2.3).
                    state.record.add(self.key, image.text, result.PASS)
                    continue
                run = _BlockRun(self, linked, blocks, reader, scope)
                yield from run.on(image, state)

    def denied(self, blocks: list[ImageVerification], scope: RuleContext) -> str | None:
        """Evaluate the deny conditions of all blocks; None if the rule has none."""
        if not any(block.ir.has_validate for block in self._blocks):
            return None
        for linked, block in zip(self._blocks, blocks, strict=True):
            if linked.deny is None:
                continue
            try:
                denies, message = linked.deny.evaluate(scope)
            except ExpressionFailed as error:
                return f"failed to check deny conditions: {error.message}"
            if denies:
                written_message = (
                    block.validate.message if block.validate is not None else ""
                )
                parts = "; ".join(filter(None, (written_message, message)))
                return parts or "validation error: imageVerify  failed"
        return ""

    def _result(self, scope: RuleContext, outcome: Outcome) -> RuleResult:
        return RuleResult(
            rule=self.ir.name,
            rule_type=result.IMAGE_VERIFY,
            status=outcome.status,
            message=cut(outcome.message),
            properties=self._gate.report_properties(scope),
            warns=outcome.warns,
            code=outcome.code,
        )


@dataclass(frozen=True, slots=True)
class _BlockRun:
    """One ``verifyImages`` block, applied to the images of one object."""

    rule: LinkedImageRule
    linked: _LinkedBlock
    blocks: list[ImageVerification]
    reader: BlockReader
    scope: RuleContext

    def on(self, image: Image, state: ImageState) -> list[Outcome]:
        """Return the outcomes for one image: none, one, or two if the digest fails."""
        block, outcomes = self.reader.block, []
        before = self.scope.root
        try:
            verdict = self._verdict(image)
        finally:
            # Predicates of one image must not be visible to the next.
            self.scope.root = before
        if verdict is not None and verdict.status == result.PASS and not image.digest:
            try:
                state.resolved(image, self.reader)
            except (ExpressionFailed, DependencyError) as error:
                reason = f"failed to verify image {image.text}: {error.message}"
                verdict = Outcome(result.ERROR, reason)
        reference = image.text
        if block.mutate_digest and not image.digest:
            try:
                reference = self._write_digest(image, state)
                verdict = verdict or Outcome(result.PASS, "mutated image digest")
            except (ExpressionFailed, DependencyError) as error:
                reason = f"failed to fetch image reference: {reference}"
                reason += f", error: {error.message}"
                outcomes.append(
                    Outcome(result.ERROR, f"failed to update digest: {reason}")
                )
        if verdict is not None:
            if block.attestors or block.attestations:
                record, key = state.record, self.rule.key
                record.add(key, reference, verdict.status)
                if verdict.status not in DONE:
                    record.add(key, state.current(image), verdict.status)
            outcomes.append(verdict)
        return outcomes

    def _write_digest(self, image: Image, state: ImageState) -> str:
        """Append the digest to the image in the object; return the new reference."""
        digest = state.resolved(image, self.reader)
        value = f"{image.with_tag}@{digest}"
        now = _at(state.resource, image.pointer)
        if now not in (value, _at(state.given, image.pointer)):
            raise ExpressionFailed("image.digest", f"another rule has written {now}")
        patch = [{"op": "replace", "path": image.pointer, "value": value}]
        state.resource = apply_patch(state.resource, patch, self.scope.runtime)
        pinned = state.record.pinned[image.text] = image.at(digest)
        return pinned

    def _verdict(self, image: Image) -> Outcome | None:
        block = self.reader.block
        if not (block.attestors or block.attestations):
            return None
        reference = image.text
        name = self.rule.policy.name
        skip = (
            f"skipping image reference image {reference}, policy {name}"
            f" ruleName {self.rule.ir.name}"
        )
        if not is_among(reference, self.linked.ir.references):
            return Outcome(result.SKIP, skip)
        if is_among(reference, block.skip_image_references):
            return Outcome(result.SKIP, skip, warns=True)
        self.scope.root = {**self.scope.root, "image": image.shown}
        if block.attestors:
            failures = verify_sets(self.reader, reference)
            if failures:
                reasons = "; ".join(failure.text for failure in failures)
                outage = any(failure.is_outage for failure in failures)
                status = result.ERROR if outage else result.FAIL
                return Outcome(status, f"failed to verify image {reference}: {reasons}")
            if not block.attestations:
                return Outcome(
                    result.PASS, f"verified image signatures for {reference}"
                )
            reader = self.reader
            digest = reader.images.digest(reference, reader.access, reader.deadline_ns)
            reference = image.at(digest)
        return self._attested(image, reference)

    def _attested(self, image: Image, reference: str) -> Outcome:
        reason, reference = verify_attestations(
            self.reader, self.linked.checks, image, reference, self.scope
        )
        if reason:
            return Outcome(result.FAIL, reason)
        denial = self.rule.denied(self.blocks, self.scope)
        if denial is None:
            return Outcome(result.PASS, f"verified image attestations for {reference}")
        if denial:
            return Outcome(result.FAIL, f"validation in verifyImages failed: {denial}")
        name = self.rule.ir.name
        return Outcome(result.PASS, f"verifyImages validation is passed in {name} rule")


def _is_unchanged(image: Image, resource: dict[str, Json], request: Request) -> bool:
    if not request.old_object:
        return False
    before, now = _at(request.old_object, image.pointer), _at(resource, image.pointer)
    return before is not _MISSING and before == now


def _at(resource: Json, pointer: str) -> Json:
    value = resource
    for token in map(decoded, pointer.split("/")[1:]):
        if type(value) not in (dict, list):
            return _MISSING
        value, reason = entry_at(value, token)
        if reason:
            return _MISSING
    return value
