"""Records of documents with variables, split at compile time.

Room: expr. Takes: written by template/document.py. Gives: Document, embedded in the IR
and read by template/link.py. No behaviour beside ``is_constant`` and ``constant``.
Source: spec/engine.md 3.1.
"""

import msgspec

from kyverno_mp.expr.jmespath.nodes import Node
from kyverno_mp.values.jsonvalue import Json


class Lookup(msgspec.Struct, frozen=True, array_like=True):
    """One JMESPath query against the JSON context.

    ``node`` is None when ``text`` does not parse; ``error`` then says why.
    """

    text: str
    node: Node | None = None
    error: str = ""


class Variable(msgspec.Struct, frozen=True, array_like=True):
    """One ``{{ }}``: its query, and its query on DELETE if that differs."""

    lookup: Lookup
    on_delete: Lookup | None = None


class Constant(msgspec.Struct, frozen=True, array_like=True, tag="constant"):
    """A value, or a whole subtree, without variables."""

    value: Json


class Whole(msgspec.Struct, frozen=True, array_like=True, tag="whole"):
    """A string that is exactly one variable: keeps the type of the result."""

    variable: Variable
    path: str
    source: str


class Mixed(msgspec.Struct, frozen=True, array_like=True, tag="mixed"):
    """Text around variables: ``texts[0] variables[0] texts[1] ... texts[n]``."""

    texts: tuple[str, ...]
    variables: tuple[Variable, ...]
    path: str
    source: str


class Rescanned(msgspec.Struct, frozen=True, array_like=True, tag="rescanned"):
    """A string that only the general algorithm understands.

    Nested or adjacent variables, ``{{-``, ``@``, escapes beside variables.
    """

    source: str
    path: str


class Items(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    """A list of which at least one item has variables."""

    items: tuple["Template", ...]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One map entry; ``key_template`` is None when the key has no variables."""

    key: str
    value: "Template"
    key_template: "Template | None" = None


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="entries"):
    """A map of which at least one key or value has variables."""

    entries: tuple[Entry, ...]


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """A document with a ``$( )`` that cannot be resolved: fails when it is used."""

    message: str


Template = Constant | Whole | Mixed | Rescanned | Items | Entries | Broken


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A JSON document with ``$( )`` resolved and ``{{ }}`` split.

    ``source`` is the document as written; ``template`` is None when it holds nothing to
    substitute, so that constants are stored once.
    """

    source: Json
    template: Template | None = None

    @property
    def is_constant(self) -> bool:
        """Tell whether the document is the same for every request."""
        return self.template is None or type(self.template) is Constant

    @property
    def constant(self) -> Json:
        """Return the value of a constant document, escapes already removed."""
        template = self.template
        if template is None:
            return self.source
        assert type(template) is Constant
        return template.value
