"""Test the errors of expressions for unsupported values.

Kyverno 1.18.2 printed the expected messages for these expressions and an object with
fields of these types. A failure means: messages of users' policies change.
"""

import pytest

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.cel.linking.program import compile_expression
from tests.unit.expr_cel.evaluate import BASE, evaluate

OBJECT = {
    "s": "abc",
    "d": 2.5,
    "b": True,
    "l": ["a", "b"],
    "m": {"k": "v"},
}

BARE = "no such overload"
REFUSED = {
    "(object.b + object.s) == 1": f"{BARE}: _+_",
    "(object.m + object.m) == 1": f"{BARE}: _+_",
    "(object.l + object.s) == 1": BARE,
    "(object.s - object.s) == 1": BARE,
    "(object.l - object.d) == 1": f"{BARE}: _-_",
    "(object.d % object.d) == 1.0": f"{BARE}: _%_",
    "(-object.l) == 1": f"{BARE}: -_",
    "object.l < object.l": f"{BARE}: _<_",
    "object.m >= object.s": f"{BARE}: _>=_",
    "object.s < object.d": BARE,
    "object.s in object.d": BARE,
    "object.b.contains('b')": BARE,
    "'abc'.contains(object.l)": BARE,
    "object.d.startsWith('a')": BARE,
    "object.m.matches('^a')": BARE,
    "object.l.find('b') == 'b'": BARE,
    "object.s.all(x, x == 'a')": "got 'types.String', expected iterable type",
    "object.d.map(x, x).size() == 1": "got 'types.Double', expected iterable type",
    "object.b.all(k, v, k == v)": ("unsupported comprehension range type: types.Bool"),
    "sets.contains(object.s, ['a'])": f"{BARE}: sets.contains(string, list)",
    "object.m.flatten().size() == 1": f"{BARE}: map(dyn, dyn).flatten()",
    "object.d.sort().size() == 2": f"{BARE}: sort",
    "object.l.sum() == 3": f"{BARE}: sum(list)",
    "object.s.optMap(x, x).hasValue()": f"{BARE}: hasValue(string)",
    "object.l[1.5] == 'b'": "unsupported index value 1.5 in list",
}


@pytest.mark.parametrize("text", REFUSED)
def test_error_text(text: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        evaluate(text, OBJECT)
    assert REFUSED[text] == caught.value.message


ILL_FORMED = {
    "'%d'.format([1.0])": (
        "1:14: error during formatting: decimal clause can only be used on integers,"
        " was given double"
    ),
    "'%s'.format([optional.of(1)])": (
        "1:25: error during formatting: string clause can only be used on strings,"
        " bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps,"
        " was given optional_type"
    ),
    "'%z'.format(['8'])": (
        '1:12: could not parse formatting clause: unrecognized formatting clause "z"'
    ),
    "'%.5'.format(['8'])": (
        "1:13: could not parse formatting clause: error while parsing precision:"
        " could not find end of precision specifier"
    ),
    "'%'.format([])": "1:11: unexpected end of string",
    "'%s %s'.format(['8'])": "1:15: index 1 out of range",
    "'%s'.format(['8', '9'])": (
        "1:12: too many arguments supplied to string.format (expected 1, got 2)"
    ),
    "math.abs(object) == 3": "1:9: undeclared reference to 'abs' (in container '')",
    "base64.encode(object) == ''": (
        "1:14: undeclared reference to 'encode' (in container '')"
    ),
}
"""Text -> the error of the API server's environment when it compiles the text."""


@pytest.mark.parametrize("text", ILL_FORMED)
def test_expressions_that_do_not_compile(text: str) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        compile_expression(text, BASE)
    assert f"ERROR: <input>:{ILL_FORMED[text]}\n" in caught.value.message
