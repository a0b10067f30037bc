"""Compile the template of a GeneratingPolicy: YAML documents with placeholders.

Room: compiler. Takes: a Template, the Builder of its policy. Gives: documents of the IR
and the Builder's problems, with the lines of the YAML; ``placeholders``.
Next: program/cel_policies/template.py.
Source: docs/behaviour/v1.19 5; Kyverno
pkg/cel/policies/gpol/template/{scanner,template}.go at v1.19.0.
"""

import re
from collections.abc import Iterator
from typing import Final

from kyverno_mp.compiler.cel_kinds.validating_policy import Builder
from kyverno_mp.errors import ExpressionInvalid, PolicyInvalid
from kyverno_mp.expr.cel.fold import constant_failure
from kyverno_mp.expr.cel.linking.program import compile_expression
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.ir.cel_policies import HoleIR, TemplateDocumentIR
from kyverno_mp.limits import TEMPLATE_DEPTH_MAX
from kyverno_mp.policy.cel_kinds.policies import Template
from kyverno_mp.policy.reading.decode import is_too_deep
from kyverno_mp.policy.reading.yaml_documents import (
    PLACEHOLDER,
    PlacedText,
    YamlDocument,
    parse_template,
)
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json

_ESCAPED: Final = "\\(("
_IN_KEY: Final = (
    "placeholders are not supported in mapping keys; use a whole-value placeholder on"
    " the parent field instead (e.g. `labels: (( variables.labels ))`)"
)
_STOP: Final = re.compile(r"""["'()]""")
_QUOTE_STOP: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CEL: Final = "cel"
_CHARACTERS_PER_STEP_BITS: Final = 6


class TemplateInvalid(Exception):
    """The text of a template cannot be used; the message is upstream's."""


def compile_template(
    builder: Builder, template: Template, path: str
) -> tuple[TemplateDocumentIR, ...]:
    """Return the documents; none, and a problem of the builder, for an invalid one."""
    try:
        documents = _parsed(template.value)
        return tuple(
            _Document(builder, template, document).compiled() for document in documents
        )
    except TemplateInvalid as error:
        builder.refused(template.value, f"{path}.value", str(error))
        return ()


def placeholders(template: Template) -> Iterator[str]:
    """Yield the expressions of a template; none if it is invalid."""
    if template.interpolate != _CEL:
        return
    try:
        waiting: list[Json] = [document.raw for document in _parsed(template.value)]
        while waiting:
            value = waiting.pop()
            if type(value) is PlacedText:
                yield from (part for part, is_text in _scanned(value) if not is_text)
            elif type(value) is dict:
                waiting += value.values()
            elif type(value) is list:
                waiting += value
    except TemplateInvalid:
        return


def _parsed(template: str) -> list[YamlDocument]:
    """Return the documents, at least one. Raises: TemplateInvalid."""
    try:
        documents = parse_template(template)
    except PolicyInvalid as error:
        line = f"line {error.where.line}: " if error.where.line else ""
        reason = f"failed to parse YAML: yaml: {line}{error.message}"
        raise TemplateInvalid(reason) from None
    for document in documents:
        if is_too_deep(document.raw, TEMPLATE_DEPTH_MAX):
            reason = f"nested deeper than {TEMPLATE_DEPTH_MAX} levels"
            raise TemplateInvalid(f"line {document.line}: {reason}")
        if document.duplicate_key:
            reason = f'mapping key "{document.duplicate_key}" already defined'
            raise TemplateInvalid(f"line {document.line}: {reason}")
    if not documents:
        raise TemplateInvalid("template must contain at least one YAML document")
    return documents


class _Document:
    """Compiles one document."""

    def __init__(
        self, builder: Builder, template: Template, yaml_document: YamlDocument
    ) -> None:
        self._builder = builder
        self._has_holes = template.interpolate == _CEL
        self._found = yaml_document
        self._path: list[str | int] = []
        self._holes: list[HoleIR] = []

    def compiled(self) -> TemplateDocumentIR:
        """Return the document. Raises: TemplateInvalid."""
        content = self._value(self._found.raw)
        is_whole = any(not hole.path and len(hole.parts) == 1 for hole in self._holes)
        if type(content) is not dict and not is_whole:
            message = "document must be a mapping describing a resource"
            raise TemplateInvalid(f"line {self._found.line}: {message}")
        return TemplateDocumentIR(content, tuple(self._holes))

    def _value(self, value: Json) -> Json:
        """Return the value with null in the places of placeholders."""
        kind = type(value)
        if kind is dict:
            return {self._key(key): self._at(key, item) for key, item in value.items()}
        if kind is list:
            return [self._at(index, item) for index, item in enumerate(value)]
        return self._text(value) if kind is PlacedText else value

    def _at(self, step: str | int, value: Json) -> Json:
        self._path.append(str(step) if type(step) is PlacedText else step)
        compiled = self._value(value)
        self._path.pop()
        return compiled

    def _key(self, key: str) -> str:
        if type(key) is not PlacedText:
            return key
        if self._has_holes and _has_placeholder(key):
            raise TemplateInvalid(f"line {key.line}: {_IN_KEY}")
        return str(key)

    def _text(self, placed: PlacedText) -> Json:
        if not self._has_holes:
            return str(placed)
        spend(len(placed) >> _CHARACTERS_PER_STEP_BITS)
        try:
            scanned = list(_scanned(placed))
        except TemplateInvalid as error:
            raise TemplateInvalid(f"line {placed.line}: {error}") from None
        if all(is_text for _, is_text in scanned):
            return "".join(part for part, _ in scanned)
        parts = tuple(
            part if is_text else self._expression(part, placed.line)
            for part, is_text in scanned
        )
        spend(len(self._path))
        self._holes.append(HoleIR(tuple(self._path), parts))
        return None

    def _expression(self, source: str, line: int) -> Expression:
        """Compile a placeholder. Raises: TemplateInvalid."""
        try:
            expression, _ = compile_expression(source, self._builder.environment)
        except ExpressionInvalid as error:
            reason = f"invalid placeholder expression {quote(source)}: {error.message}"
            raise TemplateInvalid(f"line {line}: {reason}") from None
        assert expression.node is not None
        failure = constant_failure(expression.node)
        if failure:
            reason = f"failed to build placeholder program {quote(source)}: {failure}"
            raise TemplateInvalid(f"line {line}: {reason}")
        return expression


def _has_placeholder(literal: str) -> bool:
    return PLACEHOLDER in literal.replace(_ESCAPED, "")


def _scanned(template: str) -> Iterator[tuple[str, bool]]:
    """Yield the texts between placeholders, and their expressions, with ``is_text``.

    Raises: TemplateInvalid.
    """
    literal, at = "", 0
    while at < len(template):
        position = template.find(PLACEHOLDER, at)
        if position < 0:
            literal += template[at:]
            break
        if position > at and template[position - 1] == "\\":
            literal += template[at : position - 1] + PLACEHOLDER
            at = position + len(PLACEHOLDER)
            continue
        literal += template[at:position]
        if literal:
            yield literal, True
        literal = ""
        expression, at = _placeholder(template, position)
        yield expression, False
    if literal:
        yield literal, True


def _placeholder(template: str, start: int) -> tuple[str, int]:
    """Return the expression of the placeholder at ``start``, and where it ends.

    Parentheses nest, and those within string literals do not count.
    Raises: TemplateInvalid.
    """
    depth, at = 0, start + len(PLACEHOLDER)
    while (match := _STOP.search(template, at)) is not None:
        at, mark = match.end(), match[0]
        if mark in _QUOTE_STOP:
            at = _literal_end(template, at, mark)
            if not at:
                raise _unclosed("unterminated string literal in", template, start)
        elif mark == "(":
            depth += 1
        elif depth:
            depth -= 1
        elif template.startswith(")", at):
            expression = template[start + len(PLACEHOLDER) : at - 1].strip()
            if not expression:
                offset = len(template[:start].encode())
                raise TemplateInvalid(f"empty placeholder at offset {offset}")
            return expression, at + 1
        else:
            raise _unclosed("unbalanced parenthesis in", template, start)
    raise _unclosed("unterminated", template, start, ": missing closing '))'")


def _unclosed(
    problem: str, template: str, start: int, more: str = ""
) -> TemplateInvalid:
    offset = len(template[:start].encode())
    return TemplateInvalid(f"{problem} placeholder starting at offset {offset}{more}")


def _literal_end(template: str, at: int, mark: str) -> int:
    """Return where a string literal ends, 0 if it does not."""
    while (match := _QUOTE_STOP[mark].search(template, at)) is not None:
        if match[0] == mark:
            return match.end()
        at = match.end() + 1
    return 0
