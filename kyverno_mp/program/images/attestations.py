"""Require the statements that attestations specify, and check their conditions.

Room: program.images. Takes: the attestations of one block after substitution, their
linked conditions. Gives: the failure message. Next: program/images/rule.
May touch: registries through program/ports.py.
Source: docs/behaviour/images 2.5.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.expr.conditions.link import ConditionsProgram, link_conditions
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import Resolve, link_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.policy.fields.image_verification import Attestation, Attestor
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.images.ahead import WITH_DIGEST
from kyverno_mp.program.images.attestors import (
    BlockReader,
    attestation_sets,
    nested_set,
)
from kyverno_mp.program.images.selection import Image
from kyverno_mp.program.key_entries import expanded
from kyverno_mp.values.dotted import merged
from kyverno_mp.values.effort import weigh
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json


class LinkedChecks(NamedTuple):
    """The conditions of one attestation."""

    document: Resolve
    blocks: tuple[ConditionsProgram, ...]


def link_checks(pair: tuple[Document, tuple[Conditions, ...]]) -> LinkedChecks:
    """Link the conditions of one attestation."""
    document, blocks = pair
    return LinkedChecks(link_document(document), tuple(map(link_conditions, blocks)))


def verify_attestations(
    reader: BlockReader,
    checks: Sequence[LinkedChecks],
    image: Image,
    reference: str,
    scope: RuleContext,
) -> tuple[str, str]:
    """Return the first failed attestation's message, or ""; and the reference.

    ``reference``: the image's current reference; some signature forms add the digest.
    """
    for index, attestation in enumerate(reader.block.attestations):
        if not (attestation.type or attestation.predicate_type):
            return f".attestations[{index}]: missing type", reference
        verification = _Attestation(
            reader, attestation, checks[index], index, image, reference
        )
        reason = verification.verify(scope)
        reference = verification.text
        if reason:
            return reason, reference
    return "", reference


class _Attestation:
    """The state of verifying one attestation."""

    def __init__(
        self,
        reader: BlockReader,
        attestation: Attestation,
        checks: LinkedChecks,
        index: int,
        image: Image,
        reference: str,
    ) -> None:
        self._reader = reader
        self._given = attestation
        self._type = attestation.type or attestation.predicate_type
        self._checks = checks
        self._index = index
        self._reasons: list[str] = []
        self._image = image
        self.text = reference

    def verify(self, scope: RuleContext) -> str:
        """Verify all sets; the message includes the reasons of earlier sets."""
        attestation_path = f".attestations[{self._index}]"
        sets = list(attestation_sets(self._reader.block, self._given, attestation_path))
        if not sets:
            # SAFETY: upstream accepts any keyless signer here.
            reason = "neither the attestation nor its block has attestors"
            return f"{attestation_path}: {reason}"
        for path, listed in sets:
            entries: Sequence[Attestor] = listed.entries
            if not self._given.attestors:
                entries = list(expanded(listed))
            verified, required = self._verify_entries(
                entries, listed.count, path, scope
            )
            if verified < required:
                reasons = "; ".join(self._reasons) or "attestations verification failed"
                return (
                    f"image attestations verification failed, verifiedCount:"
                    f" {verified}, requiredCount: {required}, error: {reasons}"
                )
        return ""

    def _verify_entries(
        self,
        entries: Sequence[Attestor],
        count: int | None,
        path: str,
        scope: RuleContext,
    ) -> tuple[int, int]:
        """Return how many entries hold, and how many have to."""
        verified, required = 0, count or max(1, len(entries))
        for position, entry in enumerate(entries):
            if entry.attestor is not None:
                holds = self._verify_nested(entry, f"{path}.entries[{position}]", scope)
            else:
                reason = self._verify_entry(entry, path, scope)
                holds = not reason
                if reason:
                    self._reasons.append(reason)
            verified += holds
            if verified >= required:
                break
        return verified, required

    def _verify_nested(self, entry: Attestor, path: str, scope: RuleContext) -> bool:
        """Verify the set inside an entry, with the count of entries as everywhere.

        SAFETY: upstream ignores nested attestors, and accepts any keyless signer.
        """
        try:
            nested = nested_set(entry, path)
        except ExpressionFailed as error:
            self._reasons.append(error.message)
            return False
        entries = list(expanded(nested))
        path = f"{path}.attestor"
        verified, required = self._verify_entries(entries, nested.count, path, scope)
        return verified >= required

    def _verify_entry(self, entry: Attestor, path: str, scope: RuleContext) -> str:
        reader = self._reader
        try:
            query = reader.query(entry, self.text, self._type)
            statements = reader.images.statements(query, reader.deadline_ns)
            self._show(statements, scope)
            self._resolve()
        except (ExpressionFailed, DependencyError) as error:
            return error.message
        # KYVERNO: the index shown for the entry is the attestation's index.
        location = f"{path}.entries[{self._index}]{reader.kind_of(entry)}"
        reason = self._check(statements, scope)
        return f"{location}: {reason}" if reason else ""

    def _show(self, statements: Sequence[dict[str, Json]], scope: RuleContext) -> None:
        """Set the variable named after the attestation to the first predicate.

        SAFETY: only a predicate of the wanted type is used; upstream uses the first of
        any type.
        """
        with_predicate = [
            statement
            for statement in statements
            if type(statement.get("predicate")) is dict
        ]
        if not with_predicate:
            raise ExpressionFailed(
                "image.predicate", "predicate not found in any statement"
            )
        for statement in with_predicate:
            if statement.get("type") == self._type:
                predicate = statement["predicate"]
                scope.runtime.charge(weigh(predicate, scope.runtime.charge))
                if self._given.name:
                    scope.root = {**scope.root, self._given.name: predicate}
                return

    def _resolve(self) -> None:
        """KYVERNO: only some forms contain the digest (docs/behaviour/images 2.3)."""
        reader = self._reader
        if reader.block.type in WITH_DIGEST:
            digest = reader.images.digest(
                self._image.text, reader.access, reader.deadline_ns
            )
            self.text = self._image.at(digest)

    def _check(self, statements: Sequence[dict[str, Json]], scope: RuleContext) -> str:
        of_type = [
            statement for statement in statements if statement.get("type") == self._type
        ]
        if not of_type:
            return f"attestions not found for predicate type {self._type}"
        for statement in of_type:
            try:
                holds, message = self._holds(statement, scope)
            except ExpressionFailed as error:
                prefix = "failed to check attestations: failed to substitute variables"
                return f"{prefix} in attestation conditions: {error.message}"
            if not holds:
                return (
                    f"attestation checks failed for {self.text} and predicate"
                    f" {self._type}: {message}"
                )
        return ""

    def _holds(
        self, statement: dict[str, Json], scope: RuleContext
    ) -> tuple[bool, str]:
        """Evaluate the conditions; the predicate's keys are top-level variables."""
        predicate = statement.get("predicate")
        before = scope.root
        if type(predicate) is dict:
            scope.runtime.charge(weigh(predicate, scope.runtime.charge))
            scope.root = merged(before, predicate)
        try:
            # All variables must resolve, even those in conditions that are not
            # evaluated.
            self._checks.document(scope)
            for program in self._checks.blocks:
                holds, message = program.evaluate(scope)
                if not holds:
                    return False, _resolved(message, scope)
        finally:
            scope.root = before
        return True, ""


def _resolved(message: str, scope: RuleContext) -> str:
    """Substitute the variables of messages, which the policy's author wrote."""
    if "{{" not in message:
        return message
    return sprint(link_document(parse_document(message))(scope))
