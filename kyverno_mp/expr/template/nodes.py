"""Define the records of documents with variables.

Room: expr. Takes: written by expr/template/document.py. Gives: Document, embedded in
the IR and read by expr/template/link.py. No behaviour except ``is_constant`` and
``constant``.
Source: docs/behaviour/engine 3.1.
"""

import msgspec

from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.values.jsonvalue import Json


class Lookup(msgspec.Struct, frozen=True, array_like=True):
    """One JMESPath query on the JSON context.

    If ``text`` does not parse, ``node`` is None and ``error`` is the reason.
    """

    text: str
    node: Node | None = None
    error: str = ""


class Variable(msgspec.Struct, frozen=True, array_like=True):
    """One ``{{ }}``: its query, and the query for DELETE if it differs."""

    lookup: Lookup
    on_delete: Lookup | None = None


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant"):
    """A value, or a whole subtree, without variables."""

    value: Json


class Whole(msgspec.Struct, frozen=True, array_like=True, tag="whole"):
    """A string that consists of one variable and keeps the type of its result."""

    variable: Variable
    path: str
    source: str


class Mixed(msgspec.Struct, frozen=True, array_like=True, tag="mixed"):
    """Text with variables: ``texts[0] variables[0] texts[1] ... texts[n]``."""

    texts: tuple[str, ...]
    variables: tuple[Variable, ...]
    path: str
    source: str


class Rescanned(msgspec.Struct, frozen=True, array_like=True, tag="rescanned"):
    """A string that requires the general algorithm.

    It has nested or adjacent variables, ``{{-``, ``@``, or escapes next to variables.
    """

    source: str
    path: str


class Items(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    """A list in which at least one item has variables."""

    items: tuple["Template", ...]


class TemplateEntry(msgspec.Struct, frozen=True, array_like=True):
    """One map entry; ``key_template`` is None if the key has no variables."""

    key: str
    value: "Template"
    key_template: "Template | None" = None


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="entries"):
    """A map in which at least one key or value has variables."""

    entries: tuple[TemplateEntry, ...]


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """A document with an unresolvable ``$( )``, which fails when it is used."""

    message: str


Template = Constant | Whole | Mixed | Rescanned | Items | Entries | Broken


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A JSON document with resolved ``$( )`` and parsed ``{{ }}``.

    ``source`` is the original document; ``template`` is None if there is nothing to
    substitute, so constants are stored only once.
    """

    source: Json
    template: Template | None = None

    @property
    def is_constant(self) -> bool:
        """Return whether the document is the same for every request."""
        return self.template is None or type(self.template) is Constant

    @property
    def constant(self) -> Json:
        """Return the value of a constant document, with escapes removed."""
        template = self.template
        if template is None:
            return self.source
        assert type(template) is Constant
        return template.value
