"""Determine the rules that may depend on redacted values of a recording.

Room: cli. Takes: RuleIR, JSON pointers of redacted values. Gives: RedactedReads.
Next: verdicts.
Source: program/rule_reads.py (what a rule reads); docs/replay.md.

A rule whose reads are unknown is treated as if it read everything.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.expr.reads import Reads
from kyverno_mp.ir.rules import CompiledPolicy, RuleIR
from kyverno_mp.program.rule_reads import rule_reads
from kyverno_mp.values.field_paths import EACH, Tokens
from kyverno_mp.values.wildcard import matches
from kyverno_mp.webhook.recording.redact import tokens_of_pointer

_ANNOTATION: Final = ("metadata", "annotations")
_OBJECTS: Final = ("object", "oldObject")


class RedactedReads:
    """The reads of the rules of one policy set, computed once."""

    def __init__(self, policies: Sequence[CompiledPolicy]) -> None:
        self._rules = {
            (policy.policy.key, policy.policy.kind, rule.name): rule
            for policy in policies
            for rule in policy.rules
        }
        self._reads: dict[tuple[str, str, str], Reads | None] = {}
        self._annotated = [
            (policy.policy.key, rule)
            for policy in policies
            for rule in policy.rules
            if _annotations(rule)
        ]

    def concerns(
        self, policy: tuple[str, str], rule: str, pointers: Sequence[str]
    ) -> bool:
        """Return whether a rule that ran may have read one of the values.

        ``policy``: the policy's key and kind.
        """
        key = (*policy, rule)
        ir = self._rules.get(key)
        if ir is None or ir.rule_type != "validate":
            return True
        if key not in self._reads:
            self._reads[key] = rule_reads(ir)
        reads = self._reads[key]
        return any(_meets(reads, tokens_of_pointer(pointer)) for pointer in pointers)

    def matching(self, pointers: Sequence[str]) -> set[str]:
        """Return the policies whose match or exclude blocks read one of the values."""
        names = [
            tokens[3]
            for pointer in pointers
            if (tokens := tokens_of_pointer(pointer))[1:3] == _ANNOTATION
            and len(tokens) > 3  # noqa: PLR2004 - object, metadata, annotations, name
        ]
        covers_all = any(
            tokens_of_pointer(pointer)[1:] == _ANNOTATION for pointer in pointers
        )
        return {
            key
            for key, rule in self._annotated
            if covers_all
            or any(
                matches(annotation, name)
                for annotation in _annotations(rule)
                for name in names
            )
        }


def _annotations(rule: RuleIR) -> list[str]:
    blocks = [block for block in (rule.match, rule.exclude) if block is not None]
    return [
        name
        for block in blocks
        for resource_filter in block.filters
        for name, _ in resource_filter.annotations
    ]


def _meets(reads: Reads | None, tokens: Tokens) -> bool:
    """Return whether a path in an object, or a path below, is read."""
    if reads is None:
        return True
    # Rules with known reads read only the objects of the request.
    return tokens[0] in _OBJECTS and _reaches(reads, tokens[1:])


def _reaches(reads: Reads, tokens: Tokens) -> bool:
    if reads.whole or not tokens:
        return True
    first, rest = tokens[0], tokens[1:]
    if first == EACH:
        below = list(reads.fields.values())
    else:
        below = [reads.fields[first]] if first in reads.fields else []
    if reads.element is not None:
        below.append(reads.element)
    return any(_reaches(inner, rest) for inner in below)
