"""A constant whose conversion fails makes the program invalid, as in cel-go.

Every expected text and value was recorded from the real program 1.18.2.
"""

from typing import Any

import pytest

from kyverno_mp.compiler.rules.cel import cel_environment, compile_text
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.linking.program import link_expression
from kyverno_mp.expr.cel.values import Meter

DOUBLE = "type conversion error from 'string' to 'double'"
OF_INT = "type conversion error from 'int' to 'google.protobuf.Duration'"
REGEX = "error parsing regexp: missing closing ]: `[`"
BYTE_ESCAPE = r"error parsing regexp: invalid escape sequence: `\C`"
INT = "type conversion error from 'string' to 'int'"
ENVIRONMENT = cel_environment({}, params=False, authorizer=False)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("int('a') == 1", INT),
        ("object.metadata.name == 'p' || int('a') == 1", INT),
        ("object.metadata.name == 'p' ? true : int('a') == 1", INT),
        ("[1].all(x, x == 1 || int('a') == 1)", INT),
        ("int(dyn('a')) == 1 || true", INT),
        ("string(int('x')) == 'a' || true", INT),
        ("{'a': int('a')}.a == 1 || true", INT),
        ("type(int('a')) == int || true", INT),
        ("uint(-1) == uint(1)", "unsigned integer overflow"),
        ("int(1e30) == 1", "integer overflow"),
        ("true || bool('x')", "type conversion error from 'string' to 'bool'"),
        ("double('1e400') > 1.0", "type conversion error from 'string' to 'double'"),
        ("true || duration(int('1')) == duration('1s')", OF_INT),
        ("true || duration(dyn(1)) == duration('1s')", OF_INT),
        ("true || int(dyn([1])) == 1", "no such overload: int(list)"),
        (
            "true || timestamp(dyn(['a'])) == timestamp(1)",
            "no such overload: timestamp(list)",
        ),
        ("true || int(dyn([object])) == 1", ""),
        ("true || 'a'.matches(string('['))", REGEX),
        ("true || matches('a', dyn('['))", REGEX),
        ("true || object.metadata.name.find('[') == ''", REGEX),
        ("true || 'a'.findAll(string('[')) == []", REGEX),
        ("true || 'a'.matches(string('\\\\C'))", BYTE_ESCAPE),
        ("'a'.matches(string('\\\\Q\\\\C\\\\E'))", ""),
        ("true || 'a'.matches(object.metadata.name + '[')", ""),
        ("double('1_0') == 10.0 && double('0x1.8p1') == 3.0", ""),
        ("true || double('1__0') == 1.0", DOUBLE),
        ("true || double('0x10') == 1.0", DOUBLE),
        ("int('12') == 12", ""),
        ("int(-1.5) == -1", ""),
        ("int('a' + 'b') == 1 || true", ""),
        ("1/0 == 1", ""),
        ("[1, 2][5] == 1", ""),
    ],
)
def test_inconvertible_constant(text: str, failure: str) -> None:
    """Otherwise, a rule would pass objects that Kyverno always denies."""
    found, _ = compile_text(text, ENVIRONMENT, types.BOOL)
    wanted = f"program instantiation failed: {failure}" if failure else ""
    assert found.error == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("duration(1) == duration('1s')", "invalid duration argument"),
        ("true || duration(-1) == duration('1s')", "invalid duration argument"),
        (
            "true || timestamp(253402300800) > timestamp(0)",
            "invalid timestamp argument",
        ),
        ("timestamp(253402300799) > timestamp(0)", ""),
    ],
)
def test_number_constant_that_is_no_time(text: str, message: str) -> None:
    found, _ = compile_text(text, ENVIRONMENT, types.BOOL)
    assert message in found.error
    assert bool(found.error) is bool(message)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("9007199254740993 > 9007199254740992.0", False),
        ("9007199254740993u > 9007199254740992.0", False),
        ("9007199254740992.0 <= 9007199254740993u", True),
        ("dyn(9007199254740993) == 9007199254740992.0", True),
        ("9007199254740993 in dyn([9007199254740992.0])", True),
        ("dyn(9223372036854775807) == 9223372036854775808.0", True),
        ("dyn(9223372036854775807) < 9223372036854775808.0", False),
        ("dyn(-9223372036854775808) > -1e300", True),
        ("{'a': 9007199254740993} == dyn({'a': 9007199254740992.0})", True),
    ],
)
def test_whole_numbers_and_doubles_compare_as_doubles(text: str, wanted: Any) -> None:
    found, _ = compile_text(text, ENVIRONMENT, types.BOOL)
    assert found.error == ""
    assert link_expression(found, ()).evaluate((), Meter()) is wanted
