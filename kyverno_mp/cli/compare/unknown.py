"""Find the policies whose result depends on a user or labels that nobody has told.

Room: cli. Takes: the policies of a side. Gives: Readers. Next: sides.
Source: docs/preview.md (not decidable).

A policy that reads them and may match an object is not decidable; an absent value could
turn a denial into a pass.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from kyverno_mp.cli.replay.cel import CelPolicies
from kyverno_mp.cli.replay.policies import Served
from kyverno_mp.cli.sources.plurals import resource_of
from kyverno_mp.errors import ExpressionInvalid, RequestInvalid
from kyverno_mp.expr.jmespath import nodes
from kyverno_mp.expr.jmespath.nodes import Node, children_of
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.nodes import Constant, Document, Lookup, Rescanned
from kyverno_mp.ir.match import FilterIR
from kyverno_mp.ir.rules import CompiledPolicy, RuleIR
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.list_source import ListSource
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.reads import (
    expressions_of,
    reads_namespace,
)
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

_NAMESPACE: Final = "namespaceObject"
_USER_IN_QUERY: Final = re.compile(
    r"\brequest\b(?!\s*\.\s*"
    r'"?(?:object|oldObject|operation|namespace|name|kind|resource|subResource)\b)'
    r"|(?<![.\w])serviceAccountName"
)
"""The account, a part of the request that says who sends it, or all of the request."""
_QUERIES: Final = frozenset({"list_query", "jmes_path"})
"""Fields of a rule that hold a query without braces."""
_USER_IN_CEL: Final = re.compile(r"userInfo|authorizer")
_ALL_IN_TEXT: Final = re.compile(r"(?:^|[{(,|&=\s])[@*](?!\w)")
_ALL: Final = (nodes.Identity, nodes.Current, nodes.Root)
AnyCelPolicy = Any
"""The IR of a policy in CEL: of every kind that reviews evaluate or trigger."""
AnyPolicy = CompiledPolicy | AnyCelPolicy


def reads_user(policy: AnyPolicy) -> bool:
    """Return whether the result may depend on who sends the request."""
    if isinstance(policy, CompiledPolicy):
        return any(
            any(each.subjects or each.roles or each.cluster_roles for each in filters)
            or any(map(_may_read_user, _queries(rule)))
            or any(_USER_IN_CEL.search(each.text) for each in expressions_of(rule))
            for rule in policy.rules
            for filters in [list(_filters(rule))]
        )
    return any(_USER_IN_CEL.search(each.text) for each in expressions_of(policy))


def _queries(rule: RuleIR) -> Iterator[str]:
    """Yield the texts of all queries, and each text that its values may extend."""
    waiting: list[tuple[Any, bool]] = [(rule, False)]
    while waiting:
        node, is_query = waiting.pop()
        match node:
            case str():
                if is_query:
                    yield node
            case Lookup():
                yield node.text
            case Constant():
                waiting.append((node.value, is_query))
            case Rescanned():
                yield node.source
            case Document(template=None):
                waiting.append((node.source, is_query))
            case Document():
                waiting.append((node.template, is_query))
            case tuple():
                waiting += [(each, is_query) for each in node]
            case Struct():
                waiting += [
                    (getattr(node, name), name in _QUERIES)
                    for name in node.__struct_fields__
                ]


def _may_read_user(query: str) -> bool:
    """Return whether a query names a part of the user, or reads the whole context."""
    if _USER_IN_QUERY.search(query):
        return True
    try:
        return _reads_all(parse(query))
    except ExpressionInvalid:
        # It is a text with queries in braces, or one that values complete.
        return _ALL_IN_TEXT.search(query) is not None


def _reads_all(node: Node) -> bool:
    """Return whether a query may read all of its input, as ``to_string(@)`` does."""
    match node:
        case nodes.Identity() | nodes.Current() | nodes.Root():
            return True
        case (
            nodes.Subexpression(left, right)
            | nodes.IndexExpression(left, right)
            | nodes.Pipe(left, right)
        ):
            return _reads_all(right if isinstance(left, _ALL) else left)
        case nodes.Projection() | nodes.FilterProjection() | nodes.ValueProjection():
            return _reads_all(node.left)  # the rest reads its elements
        case nodes.ExpressionReference():
            return False
    return any(map(_reads_all, children_of(node)))


def reads_labels(policy: AnyPolicy) -> bool:
    """Return whether the result may depend on the labels of the namespace."""
    if isinstance(policy, CompiledPolicy):
        return any(
            any(each.namespace_selector is not None for each in _filters(rule))
            or any(each.selector is not None for each in rule.action.overrides)
            for rule in policy.rules
        )
    if hasattr(policy, "bodies"):
        return reads_namespace(policy)
    return any(each.namespace_selector for each in _constraints(policy)) or any(
        _NAMESPACE in each.text for each in expressions_of(policy)
    )


def _filters(rule: RuleIR) -> Iterator[FilterIR]:
    """Yield the filters of match and exclude, and those of the rule's exceptions."""
    blocks = [rule.match, rule.exclude, *(each.match for each in rule.exceptions)]
    for block in blocks:
        if block is not None:
            yield from block.filters


class Readers:
    """The policies of a side that read something, and the others."""

    def __init__(self, served: Served, reads: Callable[[AnyPolicy], bool]) -> None:
        cel = served.cel
        self.others = Served(
            [policy for policy in served.policies if not reads(policy)],
            CelPolicies(
                [policy for policy in cel.validating if not reads(policy)],
                [policy for policy in cel.mutating if not reads(policy)],
                [policy for policy in cel.generating if not reads(policy)],
            ),
        )
        self._readers = MayMatch(
            [policy for policy in served.policies if reads(policy)],
            [policy for policy in (*cel.all, *cel.generating) if reads(policy)],
        )

    def of(self, request: Request) -> tuple[set[str], bool]:
        """Return the readers that may match an object, and whether one changes it."""
        return self._readers.of(request)


class MayMatch:
    """Policies that are not evaluated, by what they may match."""

    def __init__(
        self, rules: Sequence[CompiledPolicy], cel: Sequence[AnyCelPolicy]
    ) -> None:
        self._rules = ListSource(rules, lambda _policy, rule: rule.rule_type)
        self._cel = cel

    def of(self, request: Request) -> tuple[set[str], bool]:
        """Return the policies that may match, and whether one changes the object."""
        keys: set[str] = set()
        changes = False
        for candidate in self._rules.candidates(request):
            keys.add(candidate.policy.key)
            changes |= any(
                ref.linked in ("mutate", "verifyImages") for ref in candidate.rules
            )
        for policy in self._cel:
            if any(_may_match(each, request) for each in _constraints(policy)):
                keys.add(policy.policy.key)
                changes |= _changes(policy)
        return keys, changes


def _changes(policy: AnyCelPolicy) -> bool:
    pins = getattr(policy, "pins", False)
    return pins or rule_type_of(policy.policy.kind) == "mutate"


def unnamed(served: Served, request: Request) -> set[str]:
    """Return the policies in CEL that may match a kind without a known resource name.

    They match resource names, so with a guessed one a policy could seem not to match.
    """
    keys = set()
    for policy in (*served.cel.all, *served.cel.generating, *served.image_policies):
        try:
            resource_of(request, {}, _constraints(policy))
        except RequestInvalid:
            keys.add(policy.policy.key)
    return keys


def _constraints(policy: AnyCelPolicy) -> Sequence[Any]:
    """Return those of a policy and its autogen copies; None matches everything."""
    bodies = getattr(policy, "bodies", None)
    if bodies is not None:
        return [body.constraints for body in bodies]
    # Of the other kinds, a policy without constraints matches nothing.
    return () if policy.constraints is None else (policy.constraints,)


def _may_match(constraints: Any, request: Request) -> bool:
    """Return whether the constraints without their selectors match."""
    if constraints is None:
        return True
    return matches(
        structs.replace(constraints, namespace_selector=None, object_selector=None),
        request,
    )
