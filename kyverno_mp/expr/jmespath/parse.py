"""Parse JMESPath text to nodes, in the dialects of Kyverno and kyverno-json.

Room: expr. Takes: expression text. Gives: nodes.Node. Next: link.py, compiler.
Source: docs/behaviour/engine 9.1; a Pratt parser with the binding powers, the
look-aheads and the error messages of the Go parsers, because users' policies may depend
on their quirks.

Over 400 lines: one grammar, with one method per rule; all methods share one list of
tokens.
"""

from functools import partial
from typing import Final

from kyverno_mp.errors import ExpressionInvalid, Where
from kyverno_mp.expr.compile_budget import once
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.lex import Token, syntax_error, tokenize
from kyverno_mp.expr.jmespath.nodes import Node, children_of
from kyverno_mp.limits import (
    EXPRESSION_DEPTH_MAX,
    EXPRESSION_NODES_MAX,
    EXPRESSION_TEXT_BYTES_MAX,
)
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json

_POWERS: Final = {
    "tAssign": 1,
    "tPipe": 1,
    "tOr": 2,
    "tAnd": 3,
    "tEQ": 5,
    "tLT": 5,
    "tLTE": 5,
    "tGT": 5,
    "tGTE": 5,
    "tNE": 5,
    "tMinus": 6,
    "tPlus": 6,
    "tDiv": 7,
    "tDivide": 7,
    "tModulo": 7,
    "tMultiply": 7,
    "tFlatten": 9,
    "tStar": 20,
    "tFilter": 21,
    "tDot": 40,
    "tNot": 45,
    "tLbrace": 50,
    "tLbracket": 55,
    "tLparen": 60,
}
_COMPARATORS: Final = frozenset({"tEQ", "tNE", "tLT", "tLTE", "tGT", "tGTE"})
_ARITHMETIC: Final = {
    "tPlus": "+",
    "tMinus": "-",
    "tStar": "*",
    "tMultiply": "*",
    "tDivide": "/",
    "tDiv": "//",
    "tModulo": "%",
}
_PROJECTION_END: Final = 10
_NODES_A_TOKEN: Final = 4
"""More than a token can stand for: ``[*]`` is a projection of an identity."""
_INT64_DIGITS: Final = 19
_IDENTITY: Final = nodes.Identity()


def parse(source: str, *, community: bool = False) -> Node:
    """Parse one expression; ``community`` selects the dialect of kyverno-json.

    Raises: ExpressionInvalid (expr.syntax, expr.too_long, expr.too_deep); syntax errors
    carry the Go program's text and the column in ``where``.
    """
    if len(source) > EXPRESSION_TEXT_BYTES_MAX:
        raise ExpressionInvalid("expr.too_long", "expression is too long")
    return once((source, community), partial(_parsed, source, community=community))


def _parsed(source: str, *, community: bool) -> Node:
    tokens = tokenize(source, community=community)
    node = _Parser(source, tokens, community=community).parse_all()
    if _NODES_A_TOKEN * len(tokens) > EXPRESSION_DEPTH_MAX:
        _check_depth(node)
    return node


def _check_depth(node: Node) -> None:
    """Reject trees, including left chains, that would exhaust the linker's stack."""
    level: list[Node] = [node]
    count = 1
    for _ in range(EXPRESSION_DEPTH_MAX):
        level = [child for parent in level for child in children_of(parent)]
        count += len(level)
        if count > EXPRESSION_NODES_MAX:
            raise ExpressionInvalid("expr.too_large", "expression has too many parts")
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ExpressionInvalid:
    return ExpressionInvalid("expr.too_deep", "expression is nested too deeply")


class _Parser:
    """The tokens of one text, and the current position."""

    def __init__(self, source: str, tokens: list[Token], *, community: bool) -> None:
        self.text = source
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.community = community

    def parse_all(self) -> Node:
        node = self.expression(0)
        if self.kind() != "tEOF":
            raise self.error(
                f"Unexpected token at the end of the expression: {self.word()}"
            )
        return node

    def kind(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index].kind if index < len(self.tokens) else "tEOF"

    def error(self, message: str) -> ExpressionInvalid:
        index = min(self.at, len(self.tokens) - 1)
        return syntax_error(message, self.text, self.tokens[index].position)

    def expect(self, kind: str) -> None:
        if self.kind() != kind:
            raise self.error(f"Expected {self.word(kind)}, received: {self.word()}")
        self.at += 1

    def word(self, kind: str = "") -> str:
        """Return the name of a token in messages; "": the token at the position."""
        kind = kind or self.kind()
        return f"TOK{kind[1:]}" if self.community else kind

    def expression(self, power: int) -> Node:
        self.depth += 1
        if self.depth > EXPRESSION_DEPTH_MAX:
            raise _too_deep()
        token = self.tokens[min(self.at, len(self.tokens) - 1)]
        self.at += 1
        node = self.first(token)
        kind = self.kind()
        while power < self.power(kind):
            self.at += 1
            node = self.after(kind, node)
            kind = self.kind()
        self.depth -= 1
        return node

    def power(self, kind: str) -> int:
        return _POWERS.get(kind, 0)

    def first(self, token: Token) -> Node:
        """Parse the start of an expression; ``token`` is already consumed."""
        kind = token.kind
        match kind:
            case "tUnquotedIdentifier":
                if self.community and token.value == "let" and self.kind() == "tVarref":
                    return self.let()
                return nodes.Field(token.value)
            case "tStringLiteral":
                return nodes.Literal(token.value)
            case "tJSONLiteral":
                return self.json_literal(token)
            case "tCurrent":
                return nodes.Current()
            case "tLparen":
                node = self.expression(0)
                self.expect("tRparen")
                return node
            case "tLbracket":
                return self.first_bracket()
            case "tLbrace":
                return self.hash_body()
        return self.first_rare(token)

    def first_rare(self, token: Token) -> Node:
        match token.kind:
            case "tQuotedIdentifier":
                if self.kind() == "tLparen":
                    raise self.quoted_function(token)
                return nodes.Field(token.value)
            case "tStar":
                if self.kind() == "tRbracket":
                    return nodes.ValueProjection(_IDENTITY, _IDENTITY)
                return nodes.ValueProjection(_IDENTITY, self.projected("tStar"))
            case "tFilter":
                return self.filter_body(_IDENTITY)
            case "tFlatten":
                right = self.projected("tFlatten")
                return nodes.Projection(nodes.Flatten(_IDENTITY), right)
            case "tExpref":
                return nodes.ExpressionReference(self.expression(0))
            case "tNot":
                return nodes.Not(self.expression(_POWERS["tNot"]))
            case "tEOF":
                raise syntax_error("Incomplete expression", self.text, token.position)
        return self.first_community(token)

    def first_community(self, token: Token) -> Node:
        match token.kind:
            case "tVarref":
                return nodes.Variable(token.value)
            case "tRoot":
                return nodes.Root()
            case "tPlus" | "tMinus":
                child = self.expression(_POWERS[token.kind])
                return nodes.Unary(_ARITHMETIC[token.kind], child)
        message = f"Invalid token: {self.word(token.kind)}"
        raise syntax_error(message, self.text, token.position)

    def quoted_function(self, token: Token) -> ExpressionInvalid:
        word = "name" if self.community else "Name"
        message = f"Can't have quoted identifier as function {word}."
        return syntax_error(message, self.text, token.position)

    def json_literal(self, token: Token) -> Node:
        try:
            return nodes.Literal(decode_json(token.value))
        except JsonInvalid as error:
            location = Where(column=token.position + 1)
            raise ExpressionInvalid("expr.syntax", str(error), location) from error

    def first_bracket(self) -> Node:
        kind = self.kind()
        if kind in ("tNumber", "tColon"):
            try:
                right = self.index_body()
            except _NotANumber as error:
                if self.community:
                    raise ExpressionInvalid("expr.syntax", str(error)) from error
                # KYVERNO: 9.1 - the Go parser drops this error and returns no node.
                return nodes.Empty()
            return self.project_if_slice(_IDENTITY, right)
        if kind == "tStar" and self.kind(1) == "tRbracket":
            self.at += 2
            return nodes.Projection(_IDENTITY, self.projected("tStar"))
        return self.list_body()

    def after(self, kind: str, node: Node) -> Node:
        """Parse the continuation of ``node``; the token of ``kind`` is consumed."""
        match kind:
            case "tDot":
                if self.kind() == "tStar":
                    self.at += 1
                    return nodes.ValueProjection(node, self.projected("tDot"))
                return nodes.Subexpression(node, self.dot_body(_POWERS["tDot"]))
            case "tPipe":
                return nodes.Pipe(node, self.expression(_POWERS[kind]))
            case "tOr":
                return nodes.Or(node, self.expression(_POWERS[kind]))
            case "tAnd":
                return nodes.And(node, self.expression(_POWERS[kind]))
            case "tLparen":
                return self.call(node)
            case "tFilter":
                return self.filter_body(node)
            case "tFlatten":
                right = self.projected("tFlatten")
                return nodes.Projection(nodes.Flatten(node), right)
            case "tLbracket":
                return self.after_bracket(node)
        if kind in _COMPARATORS:
            operator = self.tokens[self.at - 1].value
            return nodes.Comparator(operator, node, self.expression(_POWERS[kind]))
        if self.community and kind in _ARITHMETIC:
            right = self.expression(_POWERS[kind])
            return nodes.Arithmetic(_ARITHMETIC[kind], node, right)
        raise self.error(f"Unexpected token: {self.word(kind)}")

    def after_bracket(self, node: Node) -> Node:
        if self.kind() in ("tNumber", "tColon"):
            try:
                right = self.index_body()
            except _NotANumber as error:
                raise ExpressionInvalid("expr.syntax", str(error)) from error
            return self.project_if_slice(node, right)
        self.expect("tStar")
        self.expect("tRbracket")
        return nodes.Projection(node, self.projected("tStar"))

    def call(self, node: Node) -> Node:
        match node:
            case nodes.Field(name):
                called: str | None = name
            # KYVERNO: 9.1 - the Go parser uses any text in the node before "(" as the
            # name: 'length'(a) and length(a)(b) are calls of length.
            case nodes.Literal(str() as name) | nodes.Function(name):
                called = name
            case _:
                called = None
        if self.community and type(node) is not nodes.Field:
            at = max(self.at - 2, 0)
            message = "Invalid node as function name."
            raise syntax_error(message, self.text, self.tokens[at].position)
        arguments: list[Node] = []
        while self.kind() != "tRparen":
            arguments.append(self.expression(0))
            # KYVERNO: 9.1 - commas between arguments are optional, and a trailing one
            # is allowed.
            if self.kind() == "tComma":
                self.at += 1
        self.at += 1
        return nodes.Function(called, tuple(arguments))

    def index_body(self) -> Node:
        if self.kind() == "tColon" or self.kind(1) == "tColon":
            return self.slice_body()
        position = _read_int(self.tokens[self.at].value)
        self.at += 1
        self.expect("tRbracket")
        return nodes.Index(position)

    def slice_body(self) -> Node:
        parts: list[int | None] = [None, None, None]
        index = 0
        while self.kind() != "tRbracket" and index < len(parts):
            kind = self.kind()
            if kind == "tColon":
                index += 1
                if index == len(parts) and self.community:
                    raise self.error("Too many colons in slice expression")
            elif kind == "tNumber":
                parts[index] = _read_int(self.tokens[self.at].value)
            else:
                raise self.error(
                    f"Expected tColon or tNumber, received: {self.word(kind)}"
                )
            self.at += 1
        self.expect("tRbracket")
        return nodes.Slice(*parts)

    def project_if_slice(self, node: Node, right: Node) -> Node:
        indexed = nodes.IndexExpression(node, right)
        if type(right) is nodes.Slice:
            return nodes.Projection(indexed, self.projected("tStar"))
        return indexed

    def filter_body(self, node: Node) -> Node:
        condition = self.expression(0)
        self.expect("tRbracket")
        right: Node = _IDENTITY
        if self.kind() != "tFlatten":
            right = self.projected("tFilter")
        return nodes.FilterProjection(node, right, condition)

    def projected(self, kind: str) -> Node:
        """Parse the right side of a projection that starts with ``kind``."""
        ahead = self.kind()
        if self.power(ahead) < _PROJECTION_END:
            return _IDENTITY
        if ahead in ("tLbracket", "tFilter"):
            return self.expression(_POWERS[kind])
        if ahead == "tDot":
            self.at += 1
            return self.dot_body(_POWERS[kind])
        raise self.error("Error")

    def dot_body(self, power: int) -> Node:
        ahead = self.kind()
        if ahead in ("tQuotedIdentifier", "tUnquotedIdentifier", "tStar"):
            return self.expression(power)
        if ahead == "tLbracket":
            self.at += 1
            return self.list_body()
        if ahead == "tLbrace":
            self.at += 1
            return self.hash_body()
        raise self.error("Expected identifier, lbracket, or lbrace")

    def list_body(self) -> Node:
        children = [self.expression(0)]
        while self.kind() != "tRbracket":
            self.expect("tComma")
            children.append(self.expression(0))
        self.at += 1
        return nodes.MultiSelectList(tuple(children))

    def hash_body(self) -> Node:
        pairs: list[tuple[str, Node]] = []
        while True:
            if self.kind() not in ("tUnquotedIdentifier", "tQuotedIdentifier"):
                raise self.error("Expected tQuotedIdentifier or tUnquotedIdentifier")
            name = self.tokens[self.at].value
            self.at += 1
            self.expect("tColon")
            pairs.append((name, self.expression(0)))
            if self.kind() == "tRbrace":
                self.at += 1
                return nodes.MultiSelectHash(tuple(pairs))
            # KYVERNO: 9.1 - commas between pairs are optional.
            if self.kind() == "tComma":
                self.at += 1

    def let(self) -> Node:
        pairs: list[tuple[str, Node]] = []
        while not (
            self.kind() == "tUnquotedIdentifier" and self.tokens[self.at].value == "in"
        ):
            name = self.tokens[self.at].value
            if self.kind() != "tVarref":
                raise self.error(f"Expected tVarref, received: {self.kind()}")
            self.at += 1
            self.expect("tAssign")
            pairs.append((name, self.expression(0)))
            if self.kind() == "tComma":
                self.at += 1
        self.at += 1
        return nodes.Let(tuple(pairs), self.expression(0))


class _NotANumber(Exception):
    """An index is not an int64; the text is Go's."""


def _read_int(number: str) -> int:
    digits = number.lstrip("-")
    if not digits:
        raise _NotANumber(f'strconv.Atoi: parsing "{number}": invalid syntax')
    value = int(number) if len(digits) <= 2 * _INT64_DIGITS else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise _NotANumber(f'strconv.Atoi: parsing "{number}": value out of range')
    return value
