"""Split CEL text into tokens.

Room: expr. Takes: expression text. Gives: tuples (kind, value, offset). Next: parse.py.
May touch: nothing outside its arguments. Source: the CEL language definition, lexis.
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


def syntax_error(message: str, text: str, at: int) -> ExpressionInvalid:
    """Return the error of a string that does not parse, in cel-go's format."""
    return ExpressionInvalid("cel.syntax", located(message, text, at), Where())


def located(message: str, text: str, at: int) -> str:
    """Add the location to a message: line, column, and the source line with a caret."""
    start = text.rfind("\n", 0, at) + 1
    line, column = text.count("\n", 0, at) + 1, at - start
    end = text.find("\n", at)
    snippet = text[start : end if end >= 0 else len(text)].replace("\t", " ")
    if len(snippet.encode()) > CEL_SNIPPET_BYTES_MAX:
        return f"ERROR: <input>:{line}:{column + 1}: {message}"
    marks = "".join("." if ord(c) < 128 else "\uff0e" for c in snippet[:column])  # noqa: PLR2004 - one byte in UTF-8
    return f"ERROR: <input>:{line}:{column + 1}: {message}\n | {snippet}\n | {marks}^"


def together(errors: list[ExpressionInvalid]) -> ExpressionInvalid:
    """Combine several errors, in the order of their places in the text."""
    shown = sorted((error.message for error in errors), key=_place_of)
    return ExpressionInvalid("cel.syntax", "\n".join(shown), Where())


def _place_of(message: str) -> tuple[int, int]:
    found = _PLACE.match(message)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def tokenize(text: str) -> tuple[list[Token], list[ExpressionInvalid]]:
    """Split ``text``; the last token is ``end``. Invalid characters are reported.

    Raises: ExpressionInvalid.
    """
    tokens: list[Token] = []
    problems: list[ExpressionInvalid] = []
    at, size = 0, len(text)
    while at < size:
        found = _TOKEN.match(text, at)
        if found is None:
            # Whether a character (=, &, |) is an operator depends on the next
            # character.
            end = at + (2 if text[at] in "=&|" else 1)
            if text[at] == "`":
                end = _end_of(_ESCAPED_PART, text, at) + 1
            _note(problems, text, at, end)
            at = end
            continue
        kind = found.lastgroup
        if kind == "space":
            at = found.end()
            continue
        if found["quote"]:
            end, is_whole = _string_end(text, found)
            if is_whole:
                tokens.append(_string(text, found, end))
                at = end
            elif len(found["quote"]) > 1:
                # The longest match: an empty string, then another quote.
                empty: Value = b"" if "b" in (found["prefix"] or "").lower() else ""
                kind = "string" if empty == "" else "bytes"
                tokens.append(Token(kind, empty, at))
                at = found.end() - 1
            elif found["prefix"]:
                tokens.append(Token("ident", found["prefix"], at))
                at = found.start("quote")
            else:
                _note(problems, text, at, end + 1)
                at = end + 1
            continue
        tokens.append(_plain(text, at, found))
        at = found.end()
    tokens.append(Token("end", "", size))
    # Charged before parsing and checking, which are nearly all of the work.
    spend(_TOKEN_STEPS * len(tokens))
    return tokens, problems


def _note(problems: list[ExpressionInvalid], text: str, at: int, end: int) -> None:
    """Add the error of a text that is no token. Raises: ExpressionInvalid, if many."""
    message = f"Syntax error: token recognition error at: '{text[at:end]}'"
    problems.append(syntax_error(message, text, at))
    if len(problems) == CEL_ERRORS_MAX:
        raise together(problems)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _plain(text: str, at: int, found: re.Match[str]) -> Token:
    word = found.group()
    if found["ident"]:
        return Token("ident", word, at)
    if found["escaped"]:
        return Token("escaped", word, at)
    if found["float"]:
        return Token("double", float(word), at)
    if found["int"]:
        return _integer(text, at, found)
    if found["optional"]:
        # The grammar has two tokens here, so there can be space between them.
        return Token(word[0] + word[-1], word, at)
    return Token(word, word, at)


def _integer(text: str, at: int, found: re.Match[str]) -> Token:
    digits = found["int"]
    if len(digits) > 24:  # noqa: PLR2004 - longer than any 64 bit number
        raise syntax_error("invalid int literal", text, at)
    number = int(digits, 16 if digits.startswith("0x") else 10)
    if found["u"]:
        if number > UINT_MAX:
            raise syntax_error("invalid uint literal", text, at)
        return Token("uint", number, at)
    if number > -INT_MIN:
        raise syntax_error("invalid int literal", text, at)
    # 9223372036854775808 is legal only after a minus, which the parser checks.
    return Token("int" if number <= INT_MAX else "int_min", number, at)


def _string_end(text: str, found: re.Match[str]) -> tuple[int, bool]:
    """Return the end of a string, and True; or the place of its error, and False."""
    quote, raw = found["quote"], "r" in (found["prefix"] or "").lower()
    end = found.end()
    while end < len(text) and not (len(quote) == 1 and text[end] in "\r\n"):
        if text.startswith(quote, end):
            return end + len(quote), True
        if text[end] == "\\" and not raw:
            escape = _ESCAPE.match(text, end)
            if escape is None or escape.lastindex is None:
                return _end_of(_PARTIAL_ESCAPE, text, end), False
            end = escape.end()
        else:
            end += 1
    return end, False


def _string(text: str, found: re.Match[str], end: int) -> Token:
    at, prefix = found.start(), (found["prefix"] or "").lower()
    raw = "r" in prefix
    body = text[found.end() : end - len(found["quote"])]
    if "b" in prefix:
        data = body.encode() if raw else _unescape_bytes(body, text, at)
        return Token("bytes", data, at)
    return Token("string", body if raw else _unescape(body, text, at), at)


def _unescape(body: str, text: str, at: int) -> str:
    if "\\" not in body:
        return body

    def replace(found: re.Match[str]) -> str:
        code = _code(found)
        if code is None:
            letter = found[6]
            if not letter:
                raise syntax_error("unable to unescape string", text, at)
            return _SIMPLE.get(letter, letter)
        if code > _UNICODE_MAX or code in _SURROGATES:
            raise syntax_error("invalid unicode code point", text, at)
        return chr(code)

    return _ESCAPE.sub(replace, body)


def _unescape_bytes(body: str, text: str, at: int) -> bytes:
    out, last = [], 0
    for found in _ESCAPE.finditer(body):
        out.append(body[last : found.start()].encode())
        last = found.end()
        code = _code(found)
        if found[3] or found[4] or (code is None and not found[6]):
            raise syntax_error("unable to unescape bytes", text, at)
        out.append(
            bytes([code])
            if code is not None
            else _SIMPLE.get(found[6], found[6]).encode()
        )
    out.append(body[last:].encode())
    return b"".join(out)


def _code(found: re.Match[str]) -> int | None:
    for group in (1, 2, 3, 4):
        if found[group]:
            return int(found[group], 16)
    return int(found[5], 8) if found[5] else None
