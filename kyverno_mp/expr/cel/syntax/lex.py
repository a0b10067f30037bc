"""Split CEL text into tokens.

Room: expr. Takes: expression text. Gives: tuples (kind, value, offset). Next: parse.py.
Source: the CEL language definition, lexis.
"""

import re
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionInvalid, Where
from kyverno_mp.expr.cel.values import INT_MAX, INT_MIN, UINT_MAX, Value
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import CEL_ERRORS_MAX, CEL_SNIPPET_BYTES_MAX


class Token(NamedTuple):
    """``kind``: ident, const kinds of nodes.Const, ``end``, or the sign itself."""

    kind: str
    value: Value
    at: int


# PERF: these patterns are fixed and linear, so the standard engine is safe; unlike RE2,
# it needs no encoding of the text.
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<float>(?:[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+
        |\.[0-9]+(?:[eE][+-]?[0-9]+)?))
    |(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<u>[uU])?
    |(?P<prefix>[bB][rR]|[rR]|[bB])?(?P<quote>\"\"\"|'''|"|')
    |(?P<escaped>`[A-Za-z0-9_.\-/\ ]+`)
    |(?P<ident>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<optional>[\[.](?:[ \t\r\n\f]|//[^\n]*)*+\?)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[<>!?:,.\[\]{}()+\-*/%])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
    r"|([0-3][0-7]{2})|([abfnrtv\\?\"'`]))|\\",
    re.DOTALL,
)
_ESCAPED_PART: Final = re.compile("`[A-Za-z0-9_.\\-/ ]*")
_PARTIAL_ESCAPE: Final = re.compile(
    r"\\(?:[xX][0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-3][0-7]?)?"
)
_PLACE: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): ")
_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_UNICODE_MAX: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


_TOKEN_STEPS: Final = 5
"""The steps for parsing, checking and encoding one token."""


def syntax_error(message: str, source: str, at: int) -> ExpressionInvalid:
    """Return the error of a string that does not parse, in cel-go's format."""
    return ExpressionInvalid("cel.syntax", located(message, source, at), Where())


def located(message: str, source: str, at: int) -> str:
    """Add the location to a message: line, column, and the source line with a caret."""
    start = source.rfind("\n", 0, at) + 1
    line, column = source.count("\n", 0, at) + 1, at - start
    end = source.find("\n", at)
    snippet = source[start : end if end >= 0 else len(source)].replace("\t", " ")
    if len(snippet.encode()) > CEL_SNIPPET_BYTES_MAX:
        return f"ERROR: <input>:{line}:{column + 1}: {message}"
    marks = "".join("." if ord(c) < 128 else "\uff0e" for c in snippet[:column])  # noqa: PLR2004 - one byte in UTF-8
    return f"ERROR: <input>:{line}:{column + 1}: {message}\n | {snippet}\n | {marks}^"


def together(errors: list[ExpressionInvalid]) -> ExpressionInvalid:
    """Combine several errors, in the order of their places in the text."""
    messages = sorted((error.message for error in errors), key=_place_of)
    return ExpressionInvalid("cel.syntax", "\n".join(messages), Where())


def _place_of(message: str) -> tuple[int, int]:
    match = _PLACE.match(message)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def tokenize(source: str) -> tuple[list[Token], list[ExpressionInvalid]]:
    """Split ``source``; the last token is ``end``. Invalid characters are reported.

    Raises: ExpressionInvalid.
    """
    tokens: list[Token] = []
    problems: list[ExpressionInvalid] = []
    at, size = 0, len(source)
    while at < size:
        match = _TOKEN.match(source, at)
        if match is None:
            # Whether a character (=, &, |) is an operator depends on the next
            # character.
            end = at + (2 if source[at] in "=&|" else 1)
            if source[at] == "`":
                end = _end_of(_ESCAPED_PART, source, at) + 1
            _note(problems, source, at, end)
            at = end
            continue
        kind = match.lastgroup
        if kind == "space":
            at = match.end()
            continue
        if match["quote"]:
            end, is_whole = _string_end(source, match)
            if is_whole:
                tokens.append(_string(source, match, end))
                at = end
            elif len(match["quote"]) > 1:
                # The longest match: an empty string, then another quote.
                empty: Value = b"" if "b" in (match["prefix"] or "").lower() else ""
                kind = "string" if empty == "" else "bytes"
                tokens.append(Token(kind, empty, at))
                at = match.end() - 1
            elif match["prefix"]:
                tokens.append(Token("ident", match["prefix"], at))
                at = match.start("quote")
            else:
                _note(problems, source, at, end + 1)
                at = end + 1
            continue
        tokens.append(_plain(source, at, match))
        at = match.end()
    tokens.append(Token("end", "", size))
    # Charged before parsing and checking, which are nearly all of the work.
    spend(_TOKEN_STEPS * len(tokens))
    return tokens, problems


def _note(problems: list[ExpressionInvalid], source: str, at: int, end: int) -> None:
    """Add the error of a text that is no token. Raises: ExpressionInvalid, if many."""
    message = f"Syntax error: token recognition error at: '{source[at:end]}'"
    problems.append(syntax_error(message, source, at))
    if len(problems) == CEL_ERRORS_MAX:
        raise together(problems)


def _end_of(pattern: re.Pattern[str], source: str, at: int) -> int:
    match = pattern.match(source, at)
    return match.end() if match else at


def _plain(source: str, at: int, match: re.Match[str]) -> Token:
    word = match.group()
    if match["ident"]:
        return Token("ident", word, at)
    if match["escaped"]:
        return Token("escaped", word, at)
    if match["float"]:
        return Token("double", float(word), at)
    if match["int"]:
        return _integer(source, at, match)
    if match["optional"]:
        # The grammar has two tokens here, so there can be space between them.
        return Token(word[0] + word[-1], word, at)
    return Token(word, word, at)


def _integer(source: str, at: int, match: re.Match[str]) -> Token:
    digits = match["int"]
    if len(digits) > 24:  # noqa: PLR2004 - longer than any 64 bit number
        raise syntax_error("invalid int literal", source, at)
    number = int(digits, 16 if digits.startswith("0x") else 10)
    if match["u"]:
        if number > UINT_MAX:
            raise syntax_error("invalid uint literal", source, at)
        return Token("uint", number, at)
    if number > -INT_MIN:
        raise syntax_error("invalid int literal", source, at)
    # 9223372036854775808 is legal only after a minus, which the parser checks.
    return Token("int" if number <= INT_MAX else "int_min", number, at)


def _string_end(source: str, match: re.Match[str]) -> tuple[int, bool]:
    """Return the end of a string, and True; or the place of its error, and False."""
    quote, raw = match["quote"], "r" in (match["prefix"] or "").lower()
    end = match.end()
    while end < len(source) and not (len(quote) == 1 and source[end] in "\r\n"):
        if source.startswith(quote, end):
            return end + len(quote), True
        if source[end] == "\\" and not raw:
            escape = _ESCAPE.match(source, end)
            if escape is None or escape.lastindex is None:
                return _end_of(_PARTIAL_ESCAPE, source, end), False
            end = escape.end()
        else:
            end += 1
    return end, False


def _string(source: str, match: re.Match[str], end: int) -> Token:
    at, prefix = match.start(), (match["prefix"] or "").lower()
    raw = "r" in prefix
    body = source[match.end() : end - len(match["quote"])]
    if "b" in prefix:
        data = body.encode() if raw else _unescape_bytes(body, source, at)
        return Token("bytes", data, at)
    return Token("string", body if raw else _unescape(body, source, at), at)


def _unescape(body: str, source: str, at: int) -> str:
    if "\\" not in body:
        return body

    def replace(match: re.Match[str]) -> str:
        code = _code(match)
        if code is None:
            letter = match[6]
            if not letter:
                raise syntax_error("unable to unescape string", source, at)
            return _SIMPLE.get(letter, letter)
        if code > _UNICODE_MAX or code in _SURROGATES:
            raise syntax_error("invalid unicode code point", source, at)
        return chr(code)

    return _ESCAPE.sub(replace, body)


def _unescape_bytes(body: str, source: str, at: int) -> bytes:
    out, last = [], 0
    for match in _ESCAPE.finditer(body):
        out.append(body[last : match.start()].encode())
        last = match.end()
        code = _code(match)
        if match[3] or match[4] or (code is None and not match[6]):
            raise syntax_error("unable to unescape bytes", source, at)
        out.append(
            bytes([code])
            if code is not None
            else _SIMPLE.get(match[6], match[6]).encode()
        )
    out.append(body[last:].encode())
    return b"".join(out)


def _code(match: re.Match[str]) -> int | None:
    for group in (1, 2, 3, 4):
        if match[group]:
            return int(match[group], 16)
    return int(match[5], 8) if match[5] else None
