"""Parse CEL text to nodes, including macros.

Room: expr. Takes: expression text. Gives: Node. Next: expr/cel/check.py, then
expr/cel/linking/expressions.py. The parser
uses four Python frames per bracket level, and none for chains of operators.
Source: the CEL language definition, grammar; docs/behaviour/cel 11 (macros).

Over 400 lines: one grammar, with one method per rule; all methods share one list of
tokens.
"""

import math
from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Ident,
    ListLit,
    MapLit,
    Node,
    Select,
    StructLit,
)
from kyverno_mp.expr.cel.syntax.lex import Token, syntax_error, together, tokenize
from kyverno_mp.expr.cel.syntax.macros import expand_call
from kyverno_mp.expr.cel.syntax.names import qualified_name
from kyverno_mp.expr.cel.values import INT_MIN
from kyverno_mp.limits import (
    CEL_NESTING_MAX,
    EXPRESSION_DEPTH_MAX,
    EXPRESSION_TEXT_BYTES_MAX,
)

_LEVELS: Final = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "in": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
RESERVED_WORDS: Final = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    }
)
_NO_NAMES: Final = frozenset({"in", "true", "false", "null"})
"""Words that are operators or literals of the grammar, and so cannot be field names;
the other reserved words can follow a dot."""
_CONSTANTS: Final = {"true": True, "false": False}
_LITERALS: Final = frozenset({"int", "uint", "double", "string", "bytes"})
_TERMINALS: Final = (
    *("'['", "']'", "'{'", "'}'", "'('", "')'", "'.'", "','", "'-'", "'!'", "'?'"),
    *("'true'", "'false'", "'null'", "NUM_FLOAT", "NUM_INT", "NUM_UINT", "STRING"),
    *("BYTES", "IDENTIFIER"),
)
"""Tokens in ANTLR's wording and order."""
_OPERAND: Final = frozenset(_TERMINALS) - {"']'", "'}'", "')'", "','", "'?'"}
"""Tokens at the start of an expression."""
_OPENING: Final = frozenset(
    {"[", "[?", "{", "(", ".", "-", "!", "ident", "int_min", *_LITERALS}
)
_AFTER_OPERAND: Final = frozenset({".", ".?", "[", "[?", "?", *_LEVELS})
_IN_STRUCT: Final = "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}"


def parse(source: str, *, has_math: bool = True) -> Node:
    """Parse ``source``. Raises: ExpressionInvalid with an error in cel-go's format.

    ``has_math``: whether the environment has the macros of the math extension.
    """
    if len(source) > EXPRESSION_TEXT_BYTES_MAX:
        raise ExpressionInvalid("cel.size", "expression code point size exceeds limit")
    tokens, problems = tokenize(source)
    try:
        node = _Parser(source, tokens, has_math=has_math).parse()
    except ExpressionInvalid as error:
        if not problems:
            raise
        raise together([*problems, error]) from error
    except RecursionError:
        # Operators of increasing precedence need more frames per level than brackets
        # do.
        raise ExpressionInvalid(
            "cel.depth", "expression recursion limit exceeded"
        ) from None
    if problems:
        raise together(problems)
    if _too_deep(node):
        raise ExpressionInvalid(
            "cel.depth", f"expression recursion limit exceeded: {EXPRESSION_DEPTH_MAX}"
        )
    return node


class _Parser:
    def __init__(self, source: str, tokens: list[Token], *, has_math: bool) -> None:
        self._has_math = has_math
        self._text = source
        self._tokens = tokens
        self._position = 0
        self._nesting = 0
        self._enclosing: list[frozenset[str]] = [frozenset({"end"})]
        """The tokens that may follow an expression, for each open bracket."""

    def parse(self) -> Node:
        node = self._expression()
        if self._kind() != "end":
            raise self._unexpected("<EOF>")
        return node

    def _kind(self) -> str:
        return self._tokens[self._position].kind

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _take(self, sign: str) -> bool:
        if self._tokens[self._position].kind == sign:
            self._position += 1
            return True
        return False

    def _expect(self, sign: str) -> Token:
        token = self._tokens[self._position]
        if token.kind != sign:
            following = self._tokens[min(self._position + 1, len(self._tokens) - 1)]
            fits = following.kind == sign and token.kind != "end"
            after = _OPENING if sign == ":" else _AFTER_OPERAND | self._enclosing[-1]
            if fits or token.kind not in after:
                raise self._unexpected(sign)
            printed = "<EOF>" if token.kind == "end" else self._source(self._position)
            message = f"Syntax error: missing '{sign}' at '{printed}'"
            raise syntax_error(message, self._text, token.at)
        return self._next()

    def _opens(self) -> bool:
        """Return whether the next token starts an expression."""
        token = self._tokens[self._position]
        return token.kind in _OPENING and not (
            token.kind == "ident" and token.value == "in"
        )

    def _close(self, sign: str) -> None:
        """Consume the sign that ends a list; a comma is also expected here."""
        if not self._take(sign):
            raise self._unexpected(sign, ",")

    def _unexpected(
        self, *expected: str, operand: bool = False, word: str = ""
    ) -> ExpressionInvalid:
        """Return ANTLR's error, which depends on whether a token is extra or missing.

        ``operand``: the start of an expression is also expected. ``word``: the error's
        first word, if not chosen by the tokens.
        """
        token = self._tokens[self._position]
        following = self._tokens[min(self._position + 1, len(self._tokens) - 1)]
        printed = "<EOF>" if token.kind == "end" else self._source(self._position)
        signs = [f"'{sign}'" if sign != "<EOF>" else sign for sign in expected]
        if operand:
            fits = token.kind != "end" and (
                following.kind in _OPENING or following.kind in expected
            )
            signs = [
                terminal
                for terminal in _TERMINALS
                if terminal in _OPERAND or terminal in signs
            ]
        else:
            fits = token.kind != "end" and following.kind in {
                "end" if sign == "<EOF>" else sign for sign in expected
            }
        expectation = signs[0] if len(signs) == 1 else f"{{{', '.join(signs)}}}"
        word = word or ("extraneous" if fits else "mismatched")
        message = f"Syntax error: {word} input '{printed}' expecting {expectation}"
        return syntax_error(message, self._text, token.at)

    def _source(self, position: int) -> str:
        """Return the source text of a token."""
        token = self._tokens[position]
        if token.kind in ("ident", "escaped"):
            return str(token.value)
        if token.kind not in _LITERALS and token.kind != "int_min":
            return token.kind
        start = token.at
        rest = self._text[start : self._tokens[position + 1].at]
        return rest.split("//")[0].rstrip() if rest[:1] not in "'\"" else rest.rstrip()

    def _expression(self) -> Node:
        self._nesting += 1
        if self._nesting > CEL_NESTING_MAX:
            raise syntax_error(
                "expression recursion limit exceeded",
                self._text,
                self._tokens[self._position].at,
            )
        node = self._binary(1)
        at = self._tokens[self._position].at
        if self._take("?"):
            self._enclosing.append(frozenset({":"}))
            chosen = self._binary(1)
            self._enclosing.pop()
            self._expect(":")
            node = Call("?:", None, (node, chosen, self._expression()), at)
        self._nesting -= 1
        return node

    def _binary(self, level: int) -> Node:
        """Parse operators that bind at least as tightly as ``level``.

        ``||`` and ``&&`` collect all their terms in one node.
        """
        left = self._unary()
        while True:
            token = self._tokens[self._position]
            name = "in" if token.value == "in" else token.kind
            operator_level = _LEVELS.get(name, 0)
            if operator_level < level or (name == "in" and token.kind != "ident"):
                return left
            self._position += 1
            if name in ("||", "&&"):
                terms, places = [left, self._binary(operator_level + 1)], [token.at]
                while self._kind() == name:
                    places.append(self._next().at)
                    terms.append(self._binary(operator_level + 1))
                # cel-go builds a balanced tree, whose root is the operator in the
                # middle.
                left = Call(name, None, tuple(terms), places[len(places) // 2])
            else:
                left = Call(
                    name, None, (left, self._binary(operator_level + 1)), token.at
                )

    def _unary(self) -> Node:
        sign = self._kind()
        if sign not in ("!", "-"):
            return self._member(self._primary())
        at = self._tokens[self._position].at
        count = 0
        while self._take(sign):
            count += 1
        if sign == "!" and self._kind() == "end":
            raise self._unexpected(operand=True, word="extraneous")
        if sign == "-" and (not self._opens() or self._kind() == "!"):
            raise self._no_negative()
        if sign == "-" and count == 1:
            literal = self._negative_literal(at)
            if literal is not None:
                return self._member(literal)
        literal = None
        if sign == "!" and self._kind() == "-":
            self._position += 1
            literal = self._negative_literal(at)
            if literal is None:
                raise self._no_viable("-")
        node = self._member(self._primary() if literal is None else literal)
        return node if count % 2 == 0 else Call(f"{sign}_", None, (node,), at)

    def _no_viable(self, before: str) -> ExpressionInvalid:
        """Return ANTLR's error for a token that cannot follow ``before``."""
        is_end = self._kind() == "end"
        printed = "" if is_end else self._source(self._position)
        message = f"Syntax error: no viable alternative at input '{before}{printed}'"
        return syntax_error(message, self._text, self._tokens[self._position].at)

    def _no_negative(self) -> ExpressionInvalid:
        """Return the errors for a minus without an operand."""
        error = self._no_viable("-")
        if self._kind() == "!":
            return error
        return together([error, self._unexpected(operand=True)])

    def _negative_literal(self, at: int) -> Node | None:
        token = self._tokens[self._position]
        if token.kind == "int_min" and -token.value < INT_MIN:
            raise syntax_error("invalid int literal", self._text, at)
        if token.kind in ("int", "int_min"):
            self._position += 1
            return Const("int", -token.value, at)
        if token.kind == "double":
            self._position += 1
            return self._double(token, at, negative=True)
        return None

    def _double(self, token: Token, at: int, *, negative: bool = False) -> Const:
        if math.isinf(token.value):
            raise syntax_error("invalid double literal", self._text, at)
        return Const("double", -token.value if negative else token.value, at)

    def _member(self, node: Node) -> Node:
        while True:
            token = self._tokens[self._position]
            if token.kind == ".":
                self._position += 1
                node = self._select_or_call(node, token.at)
            elif token.kind == ".?":
                self._position += 1
                name = self._field_name()
                node = Select(node, name, optional=True, at=token.at)
            elif token.kind in ("[", "[?"):
                self._position += 1
                if token.kind == "[" and not self._opens():
                    raise self._unexpected("?", operand=True)
                index = self._inside("]")
                self._expect("]")
                name = "_[_]" if token.kind == "[" else "_[?_]"
                node = Call(name, None, (node, index), token.at)
            elif token.kind == "{":
                name = qualified_name(node)
                if not name:
                    return node
                self._position += 1
                node = self._struct(name, token.at)
            else:
                return node

    def _field_name(self) -> str:
        token = self._tokens[self._position]
        if token.kind == "escaped":
            raise syntax_error("unsupported syntax: '`'", self._text, token.at)
        if token.kind == "ident" and token.value in _CONSTANTS:
            raise self._no_name(token)
        if token.kind != "ident" or token.value in _NO_NAMES:
            raise self._no_viable(".")
        self._position += 1
        return str(token.value)

    def _no_name(self, token: Token) -> ExpressionInvalid:
        message = f"Syntax error: mismatched input '{token.value}' expecting IDENTIFIER"
        return syntax_error(message, self._text, token.at)

    def _inside(self, *after: str) -> Node:
        """Parse an expression in brackets; ``after``: the tokens that may follow it."""
        self._enclosing.append(frozenset(after))
        node = self._expression()
        self._enclosing.pop()
        return node

    def _select_or_call(self, node: Node, at: int) -> Node:
        name = self._field_name()
        if self._kind() != "(":
            return Select(node, name, at=at)
        call_at = self._next().at
        call = Call(name, node, self._arguments(")"), call_at)
        return expand_call(call, self._text, has_math=self._has_math)

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        args: list[Node] = []
        if not self._opens() and self._kind() != closing:
            raise self._unexpected(closing, operand=True)
        while not self._take(closing):
            args.append(self._inside(closing, ","))
            if not self._take(","):
                self._expect(closing)
                break
            if closing == ")" and self._kind() == ")":
                raise self._unexpected(operand=True)
        return tuple(args)

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "double":
            return self._double(token, token.at)
        if token.kind in _LITERALS:
            return Const(token.kind, token.value, token.at)  # type: ignore[arg-type] # the set above holds const kinds only
        if token.kind == "(":
            node = self._inside(")")
            self._expect(")")
            return node
        if token.kind in ("[", "[?"):
            return self._list(token.at, marked=token.kind == "[?")
        if token.kind == "{":
            return self._map(token.at)
        if token.kind == ".":
            return self._name(self._root_name())
        if token.kind == "ident" and token.value != "in":
            return self._name(token)
        self._position -= 1
        if token.kind == "int_min":
            raise syntax_error("invalid int literal", self._text, token.at)
        raise self._unexpected(operand=True)

    def _root_name(self) -> Token:
        """Return the name after a leading dot, which is no literal."""
        token = self._tokens[self._position]
        if token.kind != "ident" or token.value == "in":
            raise self._no_viable(".")
        if token.value in _NO_NAMES:
            raise self._no_name(token)
        return self._next()

    def _name(self, token: Token) -> Node:
        word = str(token.value)
        if word in _CONSTANTS:
            return Const("bool", _CONSTANTS[word], token.at)
        if word == "null":
            return Const("null", None, token.at)
        if word in RESERVED_WORDS:
            raise syntax_error(f"reserved identifier: {word}", self._text, token.at)
        if self._kind() != "(":
            return Ident(word, token.at)
        at = self._next().at
        call = Call(word, None, self._arguments(")"), at)
        return expand_call(call, self._text, has_math=self._has_math)

    def _list(self, at: int, *, marked: bool) -> Node:
        items: list[Node] = []
        optional: list[int] = []
        if not marked and not self._starts("]"):
            self._expect("]")
            return ListLit((), (), at)
        while (marked and not items) or not self._take("]"):
            if marked and not items:
                if self._kind() == "?":
                    raise self._unexpected(operand=True)
                optional.append(0)
            elif self._take("?"):
                optional.append(len(items))
            elif items and not self._opens():
                self._expect("]")
            items.append(self._inside("]", ","))
            if not self._take(","):
                self._close("]")
                break
        return ListLit(tuple(items), tuple(optional), at)

    def _map(self, at: int) -> Node:
        entries: list[tuple[Node, Node, bool]] = []
        if not self._starts("}"):
            self._expect("}")
            return MapLit((), at)
        while not self._take("}"):
            optional = self._take("?")
            if entries and not optional and not self._opens():
                self._expect("}")
            key = self._inside(":")
            self._expect(":")
            entries.append((key, self._inside("}", ","), optional))
            if not self._take(","):
                self._close("}")
                break
        return MapLit(tuple(entries), at)

    def _starts(self, closing: str) -> bool:
        """Return whether a literal has an entry or ends; False after a lone comma."""
        if self._opens() or self._kind() in ("?", closing):
            return True
        if not self._take(","):
            raise self._unexpected(closing, ",", "?", operand=True)
        return False

    def _struct(self, name: str, at: int) -> Node:
        fields: list[tuple[str, Node, bool]] = []
        if self._take(","):
            self._expect("}")
            return StructLit(name, (), at)
        while not self._take("}"):
            optional = self._take("?")
            if not optional and self._kind() not in ("ident", "escaped"):
                if fields:
                    self._expect("}")
                raise self._no_field()
            field = self._field_name()
            self._expect(":")
            fields.append((field, self._inside("}", ","), optional))
            if not self._take(","):
                self._close("}")
                break
        return StructLit(name, tuple(fields), at)

    def _no_field(self) -> ExpressionInvalid:
        token = self._tokens[self._position]
        printed = "<EOF>" if token.kind == "end" else self._source(self._position)
        message = f"Syntax error: mismatched input '{printed}' expecting {_IN_STRUCT}"
        return syntax_error(message, self._text, token.at)


def children(node: Node) -> tuple[Node, ...]:
    """Return the children of a node, in source order."""
    if type(node) is Select:
        return (node.operand,)
    if type(node) is Call:
        return node.args if node.target is None else (node.target, *node.args)
    if type(node) is ListLit:
        return node.items
    if type(node) is MapLit:
        return tuple(part for key, value, _ in node.entries for part in (key, value))
    if type(node) is StructLit:
        return tuple(value for _, value, _ in node.fields)
    if type(node) in (Const, Ident):
        return ()
    return (node.range, *node.body)  # type: ignore[union-attr] # only Macro is left


def _too_deep(node: Node) -> bool:
    """Return whether a chain (``a + b + ...``, ``a.b.c...``) is nested too deeply."""
    level: list[Node] = [node]
    depth = 0
    while level:
        depth += 1
        if depth > EXPRESSION_DEPTH_MAX:
            return True
        level = [below for above in level for below in children(above)]
    return False
