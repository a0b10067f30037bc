"""Split JMESPath text into tokens, with the Go lexer's names and error messages.

Room: expr. Takes: expression text. Gives: tuples (kind, value, position).
Next: parse.py.
Source: docs/behaviour/engine 9.1, 6.7 (community dialect).
"""

import re
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionInvalid, Where
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json


class Token(NamedTuple):
    """One token; ``position`` counts characters from the start of the text."""

    kind: str
    value: str
    position: int


_BASIC: Final = {
    ".": "tDot",
    "*": "tStar",
    ",": "tComma",
    ":": "tColon",
    "{": "tLbrace",
    "}": "tRbrace",
    "]": "tRbracket",
    "(": "tLparen",
    ")": "tRparen",
    "@": "tCurrent",
    "[?": "tFilter",
    "[]": "tFlatten",
    "[": "tLbracket",
    "||": "tOr",
    "|": "tPipe",
    "<=": "tLTE",
    "<": "tLT",
    ">=": "tGTE",
    ">": "tGT",
    "!=": "tNE",
    "!": "tNot",
    "==": "tEQ",
    "=": "tUnknown",
    "&&": "tAnd",
    "&": "tExpref",
}
_COMMUNITY: Final = _BASIC | {
    "=": "tAssign",
    "+": "tPlus",
    "%": "tModulo",
    "-": "tMinus",
    "\u2212": "tMinus",
    "\u00d7": "tMultiply",
    "\u00f7": "tDivide",
    "//": "tDiv",
    "/": "tDivide",
    "$": "tRoot",
}
# PERF: these patterns are fixed and linear, so the standard engine is safe; RE2 would
# encode the whole string again for every token.
_SPACE: Final = re.compile("[ \t\n\r]*")
_WORD: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile("-?[0-9]*")
_VARIABLE: Final = re.compile(r"\$[A-Za-z0-9_]*")
_RAW: Final = re.compile(r"'((?:\\'|[^'])*+)'", re.DOTALL)
_COMMUNITY_RAW: Final = re.compile(r"'((?:\\['\\]|[^'])*+)'", re.DOTALL)
_COMMUNITY_ESCAPE: Final = re.compile(r"\\(['\\])")
_LITERAL: Final = re.compile(r"`((?:\\.|[^`\\])*+)`", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:\\.|[^"\\])*+)"', re.DOTALL)


_TOKEN_STEPS: Final = 3
"""The steps for parsing one token, in all passes over a policy together."""


def syntax_error(message: str, source: str, position: int) -> ExpressionInvalid:
    """Return the error of the Go parser; ``column`` counts from 1."""
    del source
    return ExpressionInvalid(
        "expr.syntax", "SyntaxError: " + message, Where(column=position + 1)
    )


def tokenize(source: str, *, community: bool = False) -> list[Token]:
    """Split ``source``; the last token is always ``tEOF``.

    Raises: ExpressionInvalid (expr.syntax).
    """
    basic = _COMMUNITY if community else _BASIC
    tokens: list[Token] = []
    position = 0
    skip = _SPACE.match
    while True:
        blank = skip(source, position)
        position = blank.end() if blank else position
        if position >= len(source):
            tokens.append(Token("tEOF", "", len(source)))
            spend(_TOKEN_STEPS * len(tokens))
            return tokens
        token, position = _next_token(source, position, basic, community=community)
        tokens.append(token)


def _next_token(
    source: str, position: int, basic: dict[str, str], *, community: bool
) -> tuple[Token, int]:
    char = source[position]
    word = _WORD.match(source, position)
    if word:
        return Token("tUnquotedIdentifier", word.group(), position), word.end()
    if "0" <= char <= "9" or (
        char == "-"
        and (not community or "0" <= source[position + 1 : position + 2] <= "9")
    ):
        number = _NUMBER.match(source, position)
        assert number is not None
        return Token("tNumber", number.group(), position), number.end()
    if char in "\"'`":
        if char == "'" and community:
            return _community_raw(source, position)
        return _quoted_token(source, position, char)
    if char == "$" and community:
        name = _VARIABLE.match(source, position)
        assert name is not None
        kind = "tVarref" if len(name.group()) > 1 else "tRoot"
        return Token(kind, name.group(), position), name.end()
    two = source[position : position + 2]
    if two in basic:
        return Token(basic[two], two, position), position + 2
    if char in basic:
        return Token(basic[char], char, position), position + 1
    raise syntax_error(f"Unknown char: {_quote_rune(char)}", source, position)


def _quoted_token(source: str, position: int, quote: str) -> tuple[Token, int]:
    pattern = {"'": _RAW, "`": _LITERAL, '"': _QUOTED}[quote]
    match = pattern.match(source, position)
    if match is None:
        raise syntax_error(f"Unclosed delimiter: {quote}", source, len(source))
    body = match.group(1)
    if quote == "'":
        return Token(
            "tStringLiteral", body.replace("\\'", "'"), position + 1
        ), match.end()
    if quote == "`":
        return Token(
            "tJSONLiteral", body.replace("\\`", "`"), position + 1
        ), match.end()
    try:
        name = decode_json(f'"{body}"')
    except JsonInvalid as error:
        raise ExpressionInvalid(
            "expr.syntax", str(error), Where(column=position + 1)
        ) from error
    return Token("tQuotedIdentifier", name, position), match.end()


def _community_raw(source: str, position: int) -> tuple[Token, int]:
    """Read a raw string, in which a backslash also escapes itself."""
    match = _COMMUNITY_RAW.match(source, position)
    if match is None:
        raise syntax_error("Unclosed delimiter: '", source, len(source))
    value = _COMMUNITY_ESCAPE.sub(r"\1", match.group(1))
    return Token("tStringLiteral", value, position + 1), match.end()


def _quote_rune(char: str) -> str:
    """Quote like strconv.QuoteRuneToASCII."""
    code = ord(char)
    if char == "'" or char == "\\":  # noqa: PLR1714 - two separate escapes
        return f"'\\{char}'"
    short = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v"}
    if code in short:
        return f"'{short[code]}'"
    if code < 0x20 or code == 0x7F:  # noqa: PLR2004 - control characters
        return f"'\\x{code:02x}'"
    if code < 0x80:  # noqa: PLR2004 - ASCII
        return f"'{char}'"
    return f"'\\u{code:04x}'" if code <= 0xFFFF else f"'\\U{code:08x}'"  # noqa: PLR2004 - one \u
