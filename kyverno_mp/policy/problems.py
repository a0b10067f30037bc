"""Describe the problems of a document, each with its path, reason and code.

Room: policy. Takes: findings of decode and check. Gives: Problem, Findings,
DocumentInvalid. Next: all callers that show or count them.
Source: docs/behaviour/engine 10; k8s.io/apimachinery field.Error (messages of
``upstream``).
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.values.jsonvalue import Json

_RULE_PATH = re.compile(r"spec\.rules\[(\d+)\]")  # a constant pattern


class Problem(NamedTuple):
    """One reason why a document is rejected.

    Shape: ``Problem("policy.unknown_field", "spec.rules[0].mach", "r", 'unknown
    ...')``. ``upstream`` is the message of Kyverno's own webhook, "" if Kyverno leaves
    the check to the API server or does not check this. ``column`` counts from 1 within
    the field's text; 0 = the whole field.
    """

    code: str
    path: str
    rule: str
    reason: str
    upstream: str = ""
    column: int = 0
    known: tuple[str, ...] = ()
    """The fields that exist beside an unknown one."""

    def __str__(self) -> str:
        path = f"{self.path} (rule {self.rule})" if self.rule else self.path
        if self.column:
            path += f", column {self.column}"
        return f"{path}: {self.reason}" if path else self.reason


class Findings(NamedTuple):
    """The findings of decode or check; only problems reject the document."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


class DocumentInvalid(PolicyInvalid):
    """A rejected document; ``problems`` has all reasons, and the message joins them."""

    def __init__(self, problems: Iterable[Problem], location: Where) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.code, "; ".join(map(str, self.problems)), location)


def rule_name(raw: Json, path: str) -> str:
    """Return the name of the rule that contains ``path``, "" without one."""
    rule_match = _RULE_PATH.match(path)
    if rule_match is None:
        return ""
    try:
        name = raw["spec"]["rules"][int(rule_match[1])]["name"]
    except (KeyError, IndexError, TypeError):
        return ""
    return name if type(name) is str else ""


def too_deep(location: Where) -> PolicyInvalid:
    """Return the error for a document that is nested too deeply."""
    message = f"nested deeper than {JSON_DEPTH_MAX} levels"
    return PolicyInvalid("policy.too_deep", message, location)
