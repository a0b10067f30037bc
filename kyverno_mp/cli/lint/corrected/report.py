"""Name what Kyverno 1.18 answers wrongly in a document, one code per correction.

Room: cli. Takes: a decoded document of any kind. Gives: Concerns. Next:
cli/lint/command, cli/explain/command.
Source: docs/differences.md (corrected, with the upstream report).

Only what the document really contains is named. Corrections of the command line alone
(exit codes, texts, ``test``) are in docs/upgrade.md.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.cli.lint.corrected.conditions import (
    LIST_KEY,
    MILLI,
    NOT_EQUALS,
    condition_concerns,
)
from kyverno_mp.cli.lint.corrected.queries import (
    ARITHMETIC,
    BRACES,
    LABEL_MATCH,
    query_concerns,
)
from kyverno_mp.cli.lint.corrected.rules import (
    EMPTY_MAP,
    EMPTY_SET,
    FOREACH_CONTEXT,
    IMAGE_RECORD,
    NULL_LABEL,
    rule_concerns,
)
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException

CORRECTED: Final = {
    EMPTY_MAP: "An empty map of a strategic merge patch is merged.",
    "corrected.absent_object": "In CEL, an absent object or oldObject is null.",
    NOT_EQUALS: "NotEquals is the negation of Equals, also for quantities and texts.",
    MILLI: "In a condition, m beside a number is milli, not minutes.",
    LIST_KEY: "A list as key of an ordering operator holds if any element does.",
    LABEL_MATCH: "label_match compares nested values.",
    ARITHMETIC: "In arithmetic, m beside a duration is minutes.",
    BRACES: "A variable with two levels of braces is a query.",
    FOREACH_CONTEXT: "The context of an inner foreach is known to the check.",
    EMPTY_SET: "A rule of which exclude leaves something is accepted.",
    NULL_LABEL: "A null label or annotation in a patch is accepted.",
    IMAGE_RECORD: "Only the rule's own verification of an image counts.",
    "corrected.autogen": "Autogen copies a mutating policy by its tokens.",
}
"""Code -> the correction; codes never change their meaning."""


def corrections(document: object) -> Iterator[Concern]:
    """Yield the corrections that change answers of the document, with their paths."""
    if isinstance(document, AnyPolicy):
        yield from rule_concerns(document)
    elif isinstance(document, AnyCleanupPolicy | PolicyException):
        spec = document.spec.raw()
        yield from condition_concerns(spec, "spec")
        yield from query_concerns(spec, "spec")
    else:
        # PERF: imports CEL.
        from kyverno_mp.cli.lint.corrected.cel import AnyOfCel, cel_concerns

        if isinstance(document, AnyOfCel):
            yield from cel_concerns(document)
