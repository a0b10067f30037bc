"""Substitute the variables of a rule's message when the message is needed.

Room: program. Takes: ValidateIR.message. Gives: messages to the validate bodies.
Source: docs/behaviour/engine 3.6, 5.7, 6.2.
"""

from kyverno_mp.errors import InputError
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import ValidateIR
from kyverno_mp.values.jsonvalue import Json

_PARSED_PER_STEP = 4
_NOT_A_STRING = (
    "the produced message didn't resolve to a string, check your policy definition."
)


class Message:
    """The message of one validate rule."""

    def __init__(self, rule: str, validate: ValidateIR) -> None:
        self._rule = rule
        self.raw = validate.raw_message
        self._document = validate.message
        self._render = (
            link_document(validate.message) if validate.message is not None else None
        )

    def for_pattern(self, scope: Scope, failure: str) -> tuple[str, str]:
        """Return (message, "") or ("", the complete text to use instead).

        ``failure`` is the pattern's failure, which replaces an unresolved variable.
        """
        if self._render is None:
            return "", ""
        try:
            message = self._render(scope)
        except InputError:
            # Applies to an exceeded budget, too: a reported failure stays a failure.
            return "", (
                f"validation error: variables substitution error in rule {self._rule}"
                f" execution error: {failure}"
            )
        if not isinstance(message, str):
            # KYVERNO: upstream panics here (docs/behaviour/engine 5.7); we use deny's
            # text.
            return "", _NOT_A_STRING
        return message, ""

    def constant(self) -> str | None:
        """Return the result of ``for_pattern`` if it is the same for every request."""
        if self._document is None:
            return ""
        message = self._document.constant if self._document.is_constant else None
        return message if isinstance(message, str) else None

    def constant_for_deny(self) -> str | None:
        """Return the result of ``for_deny`` if the conditions have no messages."""
        if _has_variables(self.raw):
            return None
        return self.raw or f"validation error: rule {self._rule} failed"

    def for_deny(self, scope: Scope, condition_message: str) -> str:
        """Return the message of a denial (docs/behaviour/engine 6.2)."""
        parts = [part for part in (self.raw, condition_message) if part]
        if not parts:
            return f"validation error: rule {self._rule} failed"
        message = "; ".join(parts)
        if not _has_variables(message):
            return message
        scope.runtime.charge(len(message) // _PARSED_PER_STEP)
        return _rendered(parse_document(message), scope, condition_message)


def _has_variables(message: str) -> bool:
    return "{{" in message or "$(" in message or "\\" in message


def _rendered(document: Document, scope: Scope, fallback: str) -> str:
    try:
        message: Json = link_document(document)(scope)
    except InputError:
        return fallback
    return message if isinstance(message, str) else _NOT_A_STRING
