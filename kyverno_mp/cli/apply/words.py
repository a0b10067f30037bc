"""Return the word for a rule's result in tables, SARIF, JUnit and TAP.

Room: cli. Takes: Responses. Gives: a word. Next: output, structured.
Source: docs/behaviour/cli 10.
"""

from collections.abc import Sequence

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.sources.resources import Location
from kyverno_mp.program import result
from kyverno_mp.program.result import RuleResult

LocatedResponses = Sequence[tuple[Response, Location]]
"""Responses with the locations of their objects."""


def result_word(response: Response, rule: RuleResult, *, audit_warn: bool) -> str:
    """Return Pass, Fail, Warn, Error or Skip."""
    if rule.status == result.FAIL and (
        not response.policy.scored or (audit_warn and response.action == "Audit")
    ):
        return "Warn"
    word = rule.status.capitalize()
    return "Warn" if word == "Warning" else word
