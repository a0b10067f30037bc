"""Decode a YAML text like sigs.k8s.io/yaml, which converts it to JSON.

Room: expr. Takes: text from a query. Gives: Json with floats for all numbers.
Next: expr/jmespath/functions/encoding.py (parse_yaml).
Source: docs/behaviour/engine 9.2 (parse_yaml); scalars are resolved as in Go's yaml.v2.
"""

import base64
import math
import re
from collections.abc import Callable
from typing import Any, Final

import yaml
from yaml.cyaml import CParser  # type: ignore[attr-defined]  # stubs lag behind

from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.values.go.gofloat import without_underscores
from kyverno_mp.values.go.gotext import float_g, replaced_bytes
from kyverno_mp.values.go.yaml_int import yaml_int
from kyverno_mp.values.jsonvalue import Json

_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMBER_START: Final = frozenset("+-.0123456789")
_YAML_TAG: Final = "tag:yaml.org,2002:"
_BINARY_TAG: Final = "tag:yaml.org,2002:binary"
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_PLAIN: Final = (True, False)
_IMPLICIT: Final[Any] = yaml.resolver.Resolver()
YAML_NODE_BYTES: Final = 400
"""The memory of a node of libyaml's composer, with its marks."""
_WORDS: Final[dict[str, Json]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    **dict.fromkeys(
        "y Y yes Yes YES true True TRUE on On ON".split(),  # noqa: SIM905 - a table
        True,
    ),
    **dict.fromkeys(
        "n N no No NO false False FALSE off Off OFF".split(),  # noqa: SIM905 - a table
        False,
    ),
}


def yaml_nodes(document: str) -> int:
    """Return the maximum number of nodes: each node needs one of these characters."""
    return 2 + 2 * sum(map(document.count, "[{-:?,\n"))


_NO_JSON: Final = {
    **dict.fromkeys((".nan", ".NaN", ".NAN"), "NaN"),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), "+Inf"),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), "-Inf"),
}


def decode_yaml(document: str, charge: Callable[[int], None]) -> Json:
    """Decode the first document.

    ``charge`` is called with the size of each container, which limits the growth by
    aliases.
    Raises: ExpressionFailed, with Go's text where libyaml's text is equal.
    """
    try:
        if sum(map(document.count, "[{-:?")) > JSON_DEPTH_MAX:
            _check_depth(document, charge)
        # GO: everything after the first document is ignored.
        loader = yaml.CSafeLoader(document)
        root = loader.get_node() if loader.check_node() else None
    except yaml.MarkedYAMLError as error:
        raise fail(f"yaml: {_line(error)}{error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise fail("yaml: control characters are not allowed") from error
    return None if root is None else _convert(root, charge, 0)


def _check_depth(document: str, charge: Callable[[int], None]) -> None:
    """Reject a string that is nested too deeply.

    SAFETY: libyaml's composer recurses on the C stack, and an overflow kills the
    process; its event parser does not recurse.
    """
    next_event: Callable[[], object] = CParser(document).get_event
    depth = 0
    while (event := next_event()) is not None:
        kind = type(event)
        if kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise fail("yaml: exceeded max depth")
        elif kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
            depth -= 1
            charge(1)
        elif kind is yaml.DocumentEndEvent or kind is yaml.StreamEndEvent:
            return


def _line(error: yaml.MarkedYAMLError) -> str:
    """Return the line in yaml.v2's format, which counts from 0 and omits line 0."""
    mark, context = error.problem_mark, error.context_mark
    line = 0
    if mark is not None and mark.line:
        line = mark.line + (1 if isinstance(error, yaml.scanner.ScannerError) else 0)
    elif context is not None:
        line = context.line
    return f"line {line}: " if line else ""


def _convert(node: yaml.Node, charge: Callable[[int], None], depth: int) -> Json:
    if depth > JSON_DEPTH_MAX:
        raise fail("yaml: exceeded max depth")
    if isinstance(node, yaml.SequenceNode):
        charge(len(node.value))
        return [_convert(item, charge, depth + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        charge(len(node.value))
        return _mapping(node, charge, depth)
    charge(1)
    assert isinstance(node, yaml.ScalarNode)
    value = _scalar(node)
    is_text = (node.tag or "").endswith((":str", ":binary"))
    if value in _NO_JSON and not node.style and not is_text:
        raise fail(f"json: unsupported value: {_NO_JSON[value]}")
    return value


def _mapping(
    node: yaml.MappingNode, charge: Callable[[int], None], depth: int
) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    entries: dict[str, Json] = {}
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge" or (
            key_node.value == "<<" and not key_node.style
        ):
            sources = (
                value_node.value
                if isinstance(value_node, yaml.SequenceNode)
                else [value_node]
            )
            for source in sources:
                content = _convert(source, charge, depth + 1)
                if type(content) is not dict:
                    raise fail(
                        "yaml: map merge requires map or sequence of maps as the value"
                    )
                merged = content | merged
            continue
        entries[_key(key_node)] = _convert(value_node, charge, depth + 1)
    return merged | entries


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise fail("yaml: invalid map key")
    value = _scalar(node)
    if type(value) is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    return float_g(value) if type(value) is float else str(value)


def _scalar(node: yaml.ScalarNode) -> Json:
    scalar = str(node.value)
    tag = node.tag or ""
    if tag == _BINARY_TAG:
        return _decoded(scalar)
    if node.style or tag == "!" or not tag.startswith(_YAML_TAG):
        return scalar
    if tag == _TEXT_TAG and _IMPLICIT.resolve(yaml.ScalarNode, scalar, _PLAIN) != tag:
        # The scalar has the explicit tag !!str.
        return scalar
    if scalar in _WORDS:
        return _WORDS[scalar]
    return _number(scalar)


def _decoded(encoded: str) -> str:
    """Decode Base64; replace bytes that are not UTF-8 like Go's JSON encoder."""
    try:
        decoded = base64.b64decode(encoded.replace("\n", ""), validate=True)
    except ValueError:
        raise fail("yaml: !!binary value contains invalid base64 data") from None
    return replaced_bytes(decoded.decode(errors="surrogateescape"))


def _number(scalar: str) -> Json:
    """Return a plain scalar as a number, if it is one (goyaml.v2 resolve.go)."""
    if scalar[:1] not in _NUMBER_START:
        return scalar
    if scalar[:1] == ".":
        plain = without_underscores(scalar)
    else:
        value = yaml_int(scalar)
        if value is not None:
            return float(value)
        plain = scalar.replace("_", "")
    if plain is not None and _FLOAT.fullmatch(plain):
        number = float(plain)
        return scalar if math.isinf(number) else number
    return scalar
