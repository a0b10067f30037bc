"""Compile documents with variables to closures.

Room: expr. Takes: Document. Gives: closures from Scope to Json, called once per use.
Next: conditions, program. The result of a closure may be shared; callers must not
change it.
Source: docs/behaviour/engine 3.1.
"""

from collections.abc import Callable

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.expand import expand, settle, text_of
from kyverno_mp.expr.template.lookup import Ask, key_text, link_variable
from kyverno_mp.expr.template.nodes import (
    Broken,
    Constant,
    Document,
    Entries,
    Items,
    Mixed,
    Rescanned,
    Template,
    Whole,
)
from kyverno_mp.expr.template.scan import OPENING
from kyverno_mp.values.effort import (
    CHARACTERS_PER_STEP,
    TEXT_LIGHT_MAX,
    width_of,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

Resolve = Callable[[Scope], Json]


def link_document(document: Document) -> Resolve:
    """Link a document.

    The closure raises: ExpressionFailed ``failed to resolve <variable> at path <path>:
    ...``, BudgetExceeded.
    """
    if document.is_constant:
        return _link_constant(document.constant)
    assert document.template is not None
    return link_template(document.template)


def link_template(template: Template) -> Resolve:
    """Link one node of a template, with the same errors as ``link_document``."""
    if type(template) is Whole:
        return _link_whole(template)
    if type(template) is Mixed:
        return _link_mixed(template)
    if type(template) is Rescanned:
        return _link_rescanned(template)
    if type(template) is Items:
        return _link_items(template)
    if type(template) is Entries:
        return _link_entries(template)
    if type(template) is Broken:
        return _link_broken(template.message)
    assert type(template) is Constant
    return _link_constant(template.value)


def _link_constant(value: Json) -> Resolve:
    def constant(_scope: Scope) -> Json:
        return value

    return constant


def _link_broken(message: str) -> Resolve:
    def broken(_scope: Scope) -> Json:
        raise ExpressionFailed("template.reference", message)

    return broken


def _link_rescanned(template: Rescanned) -> Resolve:
    source, path = template.source, template.path

    def rescanned(scope: Scope) -> Json:
        return expand(scope, source, path)

    return rescanned


def _link_whole(template: Whole) -> Resolve:
    ask, path = link_variable(template.variable, template.path), template.path

    def whole(scope: Scope) -> Json:
        value = ask(scope)
        if type(value) is str or not value:
            return value
        return settle(scope, value, path)

    return whole


def _link_mixed(template: Mixed) -> Resolve:
    source, path, head = template.source, template.path, template.texts[0]
    pairs: tuple[tuple[Ask, str], ...] = tuple(
        (link_variable(variable, path), literal)
        for variable, literal in zip(
            template.variables, template.texts[1:], strict=True
        )
    )

    def mixed(scope: Scope) -> Json:
        parts = [head]
        for ask, literal in pairs:
            value = ask(scope)
            parts.append(value if type(value) is str else text_of(value, scope.runtime))
            parts.append(literal)
        charge_joining(scope.runtime, parts)
        result = "".join(parts)
        # A value contains braces, which only the general algorithm interprets.
        return expand(scope, source, path) if OPENING in result else result

    return mixed


def charge_joining(spend: Spender, parts: list[str]) -> None:
    """Charge a string before it is joined from its parts."""
    length = sum(map(len, parts))
    if length > TEXT_LIGHT_MAX:
        spend.charge(len(parts) + length // CHARACTERS_PER_STEP)
        length *= max(map(width_of, parts))
    spend.charge_bytes(length)


def _link_items(template: Items) -> Resolve:
    base = [item.value if type(item) is Constant else None for item in template.items]
    dynamic = tuple(
        (i, link_template(item))
        for i, item in enumerate(template.items)
        if type(item) is not Constant
    )

    def items(scope: Scope) -> Json:
        scope.runtime.charge_items(len(base))
        out = base.copy()
        for i, resolve in dynamic:
            out[i] = resolve(scope)
        return out

    return items


def _link_entries(template: Entries) -> Resolve:
    if any(entry.key_template is not None for entry in template.entries):
        return _link_renamed(template)
    base = {
        entry.key: entry.value.value if type(entry.value) is Constant else None
        for entry in template.entries
    }
    dynamic = tuple(
        (entry.key, link_template(entry.value))
        for entry in template.entries
        if type(entry.value) is not Constant
    )

    def entries(scope: Scope) -> Json:
        scope.runtime.charge_entries(len(base))
        out = base.copy()
        for key, resolve in dynamic:
            out[key] = resolve(scope)
        return out

    return entries


def _link_renamed(template: Entries) -> Resolve:
    """Link a map in which a key contains a variable."""
    linked = tuple(
        (
            entry.key,
            None if entry.key_template is None else link_template(entry.key_template),
            link_template(entry.value),
        )
        for entry in template.entries
    )

    def renamed(scope: Scope) -> Json:
        scope.runtime.charge_entries(len(linked))
        out: dict[str, Json] = {}
        for key, rename, resolve in linked:
            name = key if rename is None else key_text(key, rename(scope))
            out[name] = resolve(scope)
        return out

    return renamed
