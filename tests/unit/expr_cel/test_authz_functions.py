"""Every function of the modes HTTP and Envoy refuses values of other types.

A value can have any type at run time (dyn). An error of another kind than an
expression's would end the evaluation of all policies.
"""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.cel.authz import envoy, http, mcp, tokens
from kyverno_mp.expr.cel.authz.library import mode_of
from kyverno_mp.expr.cel.authz.message_json import MessageInvalid, from_go, from_proto
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.cel.linking.dispatch import link_dispatch
from kyverno_mp.expr.cel.values import CelFailed, Meter, Timestamp, Uint
from kyverno_mp.expr.jose import symmetric
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import EXPRESSION_BYTES_MAX
from tests.unit.program.authorizing import NOW
from tests.waiting import still_ns

MODES: Final = tuple(map(mode_of, ("HTTP", "Envoy")))
MESSAGES: Final = tuple(
    Message(kind, {}) for mode in MODES for kind in mode.schema.values()
)
OTHERS: Final[tuple[Any, ...]] = (
    *(None, True, 1, -1, 2**62, Uint(1), 1.5, "", "x", b"x", Timestamp(0)),
    *([], ["x"], [1], [None], {}, {"x": 1}, {1: 2}, {"x": {}}),
    *(mcp.MCP, symmetric(b"x"), tokens.KeySets(None)),
)
DECLARED: Final = tuple(
    (mode, declared)
    for mode, modules in zip(
        MODES, ((http, tokens, mcp), (envoy, tokens, mcp)), strict=True
    )
    for module in modules
    for declared in module.OVERLOADS
)
_VALUES: Final = st.sampled_from((*OTHERS, *MESSAGES))


@given(st.sampled_from(DECLARED), st.lists(_VALUES, min_size=4, max_size=4))
def test_any_values(case: Any, values: list[Any]) -> None:
    mode, declared = case
    library = mode.library()
    table = library.members if declared.is_member else library.functions
    overloads = table[declared.name]
    count = declared.signature.partition("->")[0].count(",") + 1
    runs = tuple((lambda _s, value=value: value) for value in values[:count])
    meter = Meter(budget=Runtime(now=lambda: NOW, monotonic_ns=still_ns))
    try:
        link_dispatch(declared.name, overloads, runs)([meter])
    except (CelFailed, BudgetExceeded):
        return


def test_every_call_pays() -> None:
    """Otherwise an expression could repeat it without an end."""
    for _, declared in DECLARED:
        assert declared.cost >= 50, declared.signature


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_unset_fields_have_the_type_that_the_checker_promises(mode: Any) -> None:
    classes = {
        "string": str,
        "bytes": bytes,
        "bool": bool,
        "int": int,
        "uint": Uint,
        "double": float,
        "timestamp": Timestamp,
        "list": list,
        "map": dict,
    }
    for name, fields in mode.records({}).items():
        kind = mode.schema.get(name)
        for field, declared in fields.items() if kind is not None else ():
            value = Message(kind, {}).field(field)
            if declared.name in classes:
                assert type(value) is classes[declared.name], (name, field)
            elif declared.kind == "object":
                assert value.type_name == declared.name, (name, field)
            with pytest.raises(CelFailed, match="no such field"):
                Message(kind, {}).field("none")
            with pytest.raises(CelFailed, match="no such field"):
                Message(kind, {}).has("none")


_JSON = st.recursive(
    st.sampled_from((None, True, 0, -1, 2**70, 1.5, "", "x", "MTI=", "TCP")),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(("a", "key", "value")), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_any_json_is_a_message_or_is_refused(message: Message, data: Any) -> None:
    names = st.sampled_from((*message.kind.fields, "other"))
    drawn = data.draw(st.dictionaries(names, _JSON, max_size=3))
    for read in (from_proto, from_go):
        try:
            found = read(message.kind, drawn)
        except MessageInvalid:
            continue
        for name, field in message.kind.fields.items():
            value = found.field(name)
            if field.container == "list":
                assert type(value) is list
            elif field.container == "map":
                assert type(value) is dict
            elif field.item == "string":
                assert type(value) is str


def test_messages_are_charged_when_they_are_compared() -> None:
    data = {"attributes": {"request": {"http": {"headers": {"k": "v" * 1000}}}}}
    kind = envoy.SCHEMA[envoy.REQUEST]
    first, second = (from_proto(kind, data) for _ in range(2))
    meter = Meter(EXPRESSION_BYTES_MAX)
    before = meter.left
    assert first.equals(meter, second, 0)
    assert before - meter.left > 100
