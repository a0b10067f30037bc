"""Compile the body of a verifyImages rule.

Room: compiler. Takes: a decoded rule with ``verifyImages``. Gives: VerifyImagesIR.
Next: compiler/build.py.
Source: docs/behaviour/images 1.1, 1.4, 2.5 (which strings are substituted).
"""

from typing import Final

from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import ImageBlockIR, VerifyImagesIR
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.image_verification import (
    Attestation,
    ImageVerification,
)
from kyverno_mp.values.kubernetes.image import ImageExtractor

_ENFORCE: Final = "Enforce"


def build_verify_images(rule: Rule) -> VerifyImagesIR:
    """Compile the blocks; raises ExpressionInvalid if an expression does not parse."""
    return VerifyImagesIR(
        blocks=tuple(map(_block, rule.verify_images)),
        extractors=tuple(
            (
                kind,
                tuple(
                    ImageExtractor(e.path, e.value, e.key, e.name, e.jmes_path)
                    for e in extractors
                ),
            )
            for kind, extractors in (rule.image_extractors or {}).items()
        ),
    )


def action_of(rule: Rule) -> str:
    """Return Enforce if any block sets it, else the first block's failure action."""
    named = [b.failure_action for b in rule.verify_images if b.failure_action]
    if _ENFORCE in named:
        return _ENFORCE
    return named[0] if named else ""


def _block(image_verification: ImageVerification) -> ImageBlockIR:
    block = image_verification.converted()
    raw = block.raw()
    for attestation in raw.get("attestations", []):
        attestation.pop("conditions", None)
    deny = None
    validate = block.validate
    if validate is not None:
        # KYVERNO: the message is substituted before attestations are loaded.
        raw["validate"] = {"message": validate.message}
        if validate.deny is not None:
            conditions = validate.deny.conditions
            deny = parse_conditions({} if conditions is None else conditions)
    return ImageBlockIR(
        settings=parse_document(raw),
        references=block.image_references,
        verify_digest=block.verify_digest,
        required=block.required,
        conditions=tuple(map(_conditions, block.attestations)),
        deny=deny,
        has_validate=validate is not None,
    )


def _conditions(attestation: Attestation) -> tuple[Document, tuple[Conditions, ...]]:
    built = (build_conditions(block) for block in attestation.conditions)
    return (
        parse_document([block.raw() for block in attestation.conditions]),
        tuple(block for block in built if block is not None),
    )
