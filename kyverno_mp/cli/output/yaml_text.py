"""Write YAML like Go's library: same quoting, line ends and order of keys.

Room: cli. Takes: plain data. Gives: text. Next: cli/apply/mutated, cli/apply/report,
cli/apply/generated_exceptions.
Source: docs/behaviour/cli 11; go-yaml v2,
which shares its emitter with libyaml.
"""

import re
from functools import cmp_to_key
from typing import Any, Final

import yaml

from kyverno_mp.cli.output.screen import printable
from kyverno_mp.values.go.gotext import float_g
from kyverno_mp.values.jsonvalue import Json

_STR: Final = "tag:yaml.org,2002:str"
_WORDS: Final = frozenset(
    spelling
    for word in ("y", "yes", "true", "on", "n", "no", "false", "off", "null", "~", "")
    for spelling in (word, word.capitalize(), word.upper())
)
"""Plain scalars that YAML 1.1 does not read as strings."""
_NUMBER: Final = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+"
    r"|[0-9]+(?::[0-5]?[0-9])++(?:\.[0-9]*)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_CHUNK: Final = 18
"""Digits that are parsed at once, because int() has a limit."""
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"(?:[Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]+)?"
    r"(?:Z|[-+][0-9]{2}:[0-9]{2})?)?"
)


_WIDTH_MAX: Final = 1 << 30
"""Of quoted texts, which would otherwise continue on lines of their own."""


class _Dumper(yaml.CSafeDumper):
    """Dumper without implicit types, so that this module decides about quotes."""

    yaml_implicit_resolvers: dict[str, list[object]] = {}  # noqa: RUF012 - as the base has it

    def ignore_aliases(self, data: object) -> bool:
        """Return True, because Go's library does not write anchors."""
        del data
        return True


class _QuotingDumper(_Dumper):
    """Dumper that quotes each string with an unsafe part, also one with many lines."""


class _PlainQuotingDumper(yaml.SafeDumper):
    """The same with PyYAML's own style."""


class _BlockDumper(yaml.SafeDumper):
    """PyYAML's own style, with blocks for texts of several lines."""


def dump(value: Json) -> str:
    """Return the text of one document with sorted keys, safe to print."""
    document: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True)
    if printable(document) == document:
        return document
    return printable(
        yaml.dump(value, Dumper=_QuotingDumper, allow_unicode=True, width=_WIDTH_MAX)
    )


def dump_plain(*documents: Json, **options: Any) -> str:
    """Return documents in PyYAML's style, safe to print; ``options``: of its dump."""
    output: str = yaml.safe_dump_all(documents, allow_unicode=True, **options)
    if printable(output) == output:
        return output
    output = yaml.dump_all(
        documents,
        Dumper=_PlainQuotingDumper,
        allow_unicode=True,
        width=_WIDTH_MAX,
        **options,
    )
    return printable(output)


def dump_in_blocks(*documents: Json) -> str:
    """Return documents as ``dump_plain``, texts of several lines as blocks."""
    output: str = yaml.dump_all(
        documents,
        Dumper=_BlockDumper,
        allow_unicode=True,
        sort_keys=False,
        explicit_start=True,
    )
    if printable(output) == output:
        return output
    return dump_plain(*documents, sort_keys=False, explicit_start=True)


def _map(dumper: _Dumper, value: dict[str, Json]) -> yaml.Node:
    pairs = [(key, value[key]) for key in sorted(value, key=cmp_to_key(_order))]
    return dumper.represent_mapping("tag:yaml.org,2002:map", pairs)


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = None
    if "\n" in value:
        style = "|"
    elif _is_read_as_another_type(value):
        style = '"'
    return dumper.represent_scalar(_STR, value, style)


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar(_STR, value, "|" if "\n" in value else None)


def _quoted_if_unsafe(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Quote a string if a line of it could be unsafe; an escape keeps its value."""
    style = None if printable(value) == value else '"'
    return dumper.represent_scalar(_STR, value, style)


def _text_quoted_if_unsafe(dumper: _Dumper, value: str) -> yaml.Node:
    if printable(value) == value:
        return _text(dumper, value)
    return dumper.represent_scalar(_STR, value, '"')


def _plain(dumper: _Dumper, value: Json) -> yaml.Node:
    if value is None:
        scalar = "null"
    elif isinstance(value, bool):
        scalar = "true" if value else "false"
    elif isinstance(value, float):
        scalar = float_g(value)
    else:
        scalar = str(value)
    return dumper.represent_scalar(_STR, scalar)


def _is_read_as_another_type(scalar: str) -> bool:
    if scalar in _WORDS:
        return True
    return bool(_NUMBER.fullmatch(scalar.replace("_", "")) or _TIME.fullmatch(scalar))


def _order(first: str, second: str) -> int:
    """Compare keys: numbers by value, letters after other characters.

    KYVERNO: ``a2`` sorts before ``a10``.
    """
    for at, (left, right) in enumerate(zip(first, second, strict=False)):
        if left == right:
            continue
        is_letter, is_other = left.isalpha(), right.isalpha()
        if is_letter and is_other:
            return -1 if left < right else 1
        if is_letter or is_other:
            return -1 if is_other else 1
        return _compare_numbers(first, second, at)
    return len(first) - len(second)


def _compare_numbers(first: str, second: str, at: int) -> int:
    """Compare the remainders of two keys after their common prefix."""
    # A zero is significant only after a nonzero digit.
    head = ""
    if "0" in (first[at], second[at]):
        before = re.search(r"[0-9]*$", first[:at])
        head = "1" if before is not None and before[0].strip("0") else ""
    left, right = _digits(first, at), _digits(second, at)
    values = _int64(head + left), _int64(head + right)
    if values[0] != values[1]:
        return -1 if values[0] < values[1] else 1
    if len(left) != len(right):
        return len(left) - len(right)
    return -1 if first[at] < second[at] else 1


def _int64(digits: str) -> int:
    """Return the number truncated to 64 bits, like Go's int64."""
    value = 0
    for at in range(0, len(digits), _CHUNK):
        chunk = digits[at : at + _CHUNK]
        value = (value * 10 ** len(chunk) + int(chunk)) % (1 << 64)
    return value - (1 << 64) if value >= 1 << 63 else value


def _digits(key: str, at: int) -> str:
    digits = re.compile(r"[0-9]*").match(key, at)
    return digits[0] if digits is not None else ""


_Dumper.add_representer(dict, _map)
_Dumper.add_representer(str, _text)
_QuotingDumper.add_representer(str, _text_quoted_if_unsafe)
_PlainQuotingDumper.add_representer(str, _quoted_if_unsafe)
_BlockDumper.add_representer(str, _block)
for _kind in (int, float, bool, type(None)):
    _Dumper.add_representer(_kind, _plain)
    _QuotingDumper.add_representer(_kind, _plain)
