"""Parse documents with variables at compile time.

Room: expr. Takes: JSON of a policy. Gives: Document. Next: expr/template/link.
Source: docs/behaviour/engine 3.1-3.3.
"""

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.nodes import (
    Broken,
    Constant,
    Document,
    Entries,
    Items,
    Lookup,
    Mixed,
    Rescanned,
    Template,
    TemplateEntry,
    Variable,
    Whole,
)
from kyverno_mp.expr.template.references import (
    ReferenceFailed,
    child_path,
    resolve_references,
)
from kyverno_mp.expr.template.scan import (
    ESCAPED,
    OPENING,
    FoundVariable,
    find_variables,
    on_delete,
    query_of,
    unescape,
)
from kyverno_mp.values.jsonvalue import Json


def parse_document(value: Json) -> Document:
    """Resolve the references and parse the variables of a document.

    A query that does not parse, or an unresolvable reference, becomes a node that fails
    at run time with upstream's text.

    Raises: ExpressionInvalid if the document is nested deeper than
    SUBSTITUTION_DEPTH_MAX.
    """
    try:
        resolved = resolve_references(value)
    except ReferenceFailed as failure:
        return Document(value, Broken(str(failure)))
    return _document(value, resolved, "")


def parse_documents(values: list[Json]) -> list[Document]:
    """Parse the items of a list as one document, in which paths start with the index.

    References may point to other items.

    Raises: as ``parse_document``.
    """
    try:
        resolved = resolve_references(values)
    except ReferenceFailed as failure:
        return [Document(value, Broken(str(failure))) for value in values]
    assert type(resolved) is list
    pairs = zip(values, resolved, strict=True)
    return [_document(*pair, f"/{i}") for i, pair in enumerate(pairs)]


def _document(value: Json, resolved: Json, path: str) -> Document:
    template = _parse(resolved, path)
    if template is None and resolved is not value:
        template = Constant(resolved)
    return Document(value, template)


def parse_lookup(query: str) -> Lookup:
    """Parse one query of the JSON context; never raises for bad syntax."""
    expression = query.strip()
    if not expression:
        return Lookup(query, None, "invalid query (nil)")
    try:
        return Lookup(query, parse(expression))
    except ExpressionInvalid as error:
        return Lookup(query, None, f"incorrect query {expression}: {error.message}")


def _parse(value: Json, path: str) -> Template | None:
    """Return the template of a subtree; None if it contains nothing to substitute."""
    if type(value) is str:
        return _parse_text(value, path) if OPENING in value else None
    if type(value) is list:
        return _parse_list(value, path)
    if type(value) is dict:
        return _parse_map(value, path)
    return None


def _parse_list(value: list[Json], path: str) -> Template | None:
    parsed = [_parse(item, f"{path}/{i}") for i, item in enumerate(value)]
    if not any(parsed):
        return None
    items = tuple(
        template or Constant(item) for template, item in zip(parsed, value, strict=True)
    )
    constants = [item.value for item in items if type(item) is Constant]
    return Constant(constants) if len(constants) == len(items) else Items(items)


def _parse_map(value: dict[str, Json], path: str) -> Template | None:
    entries = []
    anything = False
    for key, item in value.items():
        key_template = _parse_text(key, path) if OPENING in key else None
        template = _parse(item, child_path(path, key))
        anything = anything or key_template is not None or template is not None
        entries.append(TemplateEntry(key, template or Constant(item), key_template))
    if not anything:
        return None
    constant: dict[str, Json] = {}
    for entry in entries:
        name = entry.key_template or Constant(entry.key)
        if type(name) is not Constant or type(entry.value) is not Constant:
            return Entries(tuple(entries))
        constant[name.value] = entry.value.value
    return Constant(constant)


def _parse_text(string: str, path: str) -> Template | None:
    """Parse one string that contains ``{{``."""
    occurrences = find_variables(string)
    if not occurrences:
        plain = unescape(string)
        return Constant(plain) if plain != string else None
    queries = [query_of(each.variable) for each in occurrences]
    if any(query == "@" for query, _ in queries):
        return Rescanned(string, path)
    if len(occurrences) == 1 and occurrences[0].variable == string:
        return Whole(_variable(queries[0][0]), path, string)
    if (
        ESCAPED in string
        or string.count(OPENING) != len(occurrences)
        or any(shallow for _, shallow in queries)
    ):
        return Rescanned(string, path)
    variables = tuple(_variable(query) for query, _ in queries)
    return Mixed(_texts_around(string, occurrences), variables, path, string)


def _texts_around(string: str, occurrences: list[FoundVariable]) -> tuple[str, ...]:
    literals = []
    position = 0
    for each in occurrences:
        literals.append(string[position : each.start])
        position = each.end
    literals.append(string[position:])
    return tuple(literals)


def _variable(query: str) -> Variable:
    deleting = on_delete(query)
    return Variable(
        parse_lookup(query), parse_lookup(deleting) if deleting != query else None
    )
