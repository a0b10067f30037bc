"""Test values and errors of expressions against the CEL specification and cel-go."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from tests.unit.expr_cel.evaluate import evaluate

POD = {
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": None},
    "spec": {
        "replicas": 3,
        "share": 0.5,
        "containers": [
            {"name": "a", "image": "r/a:1", "securityContext": {"privileged": False}},
            {"name": "b", "image": "r/b:2"},
        ],
    },
}

TRUE = """
1 + 2 * 3 == 7
-7 / 2 == -3 && -7 % 3 == -1
7u - 2u == 5u
1.5 + 1.5 == 3.0
'a' + 'b' == 'ab' && b'a' + b'b' == b'ab'
[1] + [2] == [1, 2]
0x1F == 31 && -0x1F == -31
1e3 == 1000.0 && .5 == 0.5
"\\u00e9\\x41\\101\\n".size() == 4
r'\\n'.size() == 2 && '''a'b'''.size() == 3
b'\\xff'.size() == 1 && 'é'.size() == 1 && bytes('é').size() == 2
dyn(1) == 1.0 && dyn(1u) == 1 && dyn(1) != '1'
1 < 1.5 && 2u > 1.5 && -1 < 1u
'a' < 'b' && false < true && b'a' < b'b'
!(1 in [2, 3]) && 'a' in {'a': 1}
dyn(1.0) in [1, 2]
true ? true : 1 / 0 == 1
true || 1 / 0 == 1
1 / 0 == 1 || true
!(1 / 0 == 1 && false)
[1, 0].exists(i, 1 / i == 1) && [0, 1].exists(i, 1 / i == 1)
![0, 2].all(i, 1 / i == 1)
[1, 2, 3].all(i, i > 0) && [].all(i, false)
[1, 2, 3].exists_one(i, i == 2)
[1, 2, 3].map(i, i * 2) == [2, 4, 6]
[1, 2, 3].map(i, i > 1, i * 2) == [4, 6]
[1, 2, 3].filter(i, i % 2 == 1) == [1, 3]
{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])
{'a': 1}.map(k, k) == ['a']
[10, 20].all(i, v, v == (i + 1) * 10)
{'a': 1}.exists(k, v, k == 'a' && v == 1)
{'a': 1, 'b': 1}.existsOne(k, v, k == 'a')
[1, 2].transformList(i, v, i + v) == [1, 3]
{'a': 1}.transformList(k, v, v > 5, v) == []
{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v * 10) == {'b': 20}
{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}
cel.bind(a, 'x', a + a) == 'xx'
[[1, 2], [3]].map(l, l.map(i, i + 1)) == [[2, 3], [4]]
type(1) == int && type(1u) == uint && type('') == string && type(null) == null_type
type([]) == list && type({}) == map && type(type(1)) == type && type(1.0) == double
type(timestamp('2025-01-02T15:30:00Z')) == google.protobuf.Timestamp
int('5') == 5 && int(5.9) == 5 && int(5u) == 5 && int(timestamp(5)) == 5
uint('5') == 5u && double('1.5') == 1.5 && bool('true') && !bool('0')
string(1) == '1' && string(1.0) == '1' && string(true) == 'true' && string(1u) == '1'
string(1000000.0) == '1e+06' && string(0.5) == '0.5' && string(b'a') == 'a'
string(duration('90s')) == '90s'
string(timestamp('2025-01-02T15:30:00Z')) == '2025-01-02T15:30:00Z'
size('abc') == 3 && [1].size() == 1 && size({'a': 1}) == 1
'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')
'abc'.matches('^a.c$') && matches('xabcx', 'abc') && !'abc'.matches('^b')
timestamp('2025-01-02T15:30:00Z').getHours() == 15
timestamp('2025-01-02T15:30:00Z').getHours('+02:00') == 17
timestamp('2025-07-02T15:30:00Z').getHours('Europe/Berlin') == 17
timestamp('2025-01-02T15:30:00.5Z').getMilliseconds() == 500
timestamp('2025-03-01T00:00:00Z').getDayOfYear() == 59
timestamp('2025-03-01T00:00:00Z').getMonth() == 2
timestamp('2025-03-01T00:00:00Z').getDayOfWeek() == 6
timestamp('2025-03-01T00:00:00Z').getDate() == 1
timestamp('2025-01-02T00:00:00Z') - timestamp('2025-01-01T00:00:00Z') == duration('24h')
timestamp('2025-01-01T00:00:00Z') + duration('1h') > timestamp('2025-01-01T00:00:00Z')
duration('1h') + duration('30m') == duration('90m') && duration('1h').getMinutes() == 60
'tacocat'.charAt(3) == 'o' && 'a'.charAt(1) == ''
'hello mellow'.indexOf('ello', 2) == 7 && 'hello mellow'.lastIndexOf('ello') == 7
'hello mellow'.lastIndexOf('ello', 6) == 1 && 'a'.indexOf('') == 0
'TacoCÆt'.lowerAscii() == 'tacocÆt' && 'tacocat'.upperAscii() == 'TACOCAT'
'hello hello'.replace('he', 'we', 1) == 'wello hello'
'aa'.replace('', '-') == '-a-a-'
'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']
'abc'.split('') == ['a', 'b', 'c'] && 'a'.split(',', 0) == []
'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'
'  \\t a '.trim() == 'a'
['a', 'b'].join('-') == 'a-b'
strings.quote('a"') == '"a\\\\""'
'%s %d %.2f %x'.format(['a', 3, 1.0, 255]) == 'a 3 1.00 ff'
'%b %e'.format([5, 1000.0]) == '101 1.000000\\u00d710\\u2070\\u00b3'
'%s'.format([[1, 'a', null]]) == '[1, "a", null]'
'%s'.format([{'b': 1, 'a': 2}]) == '{"a":2, "b":1}'
!has(object.metadata.annotations.x) && !has(object.metadata.name.x)
object.metadata.name.?x.?y.orValue('z') == 'z'
object.spec.replicas[?0].orValue(1) == 1
'%.2f'.format([1234567.891]) == '1,234,567.89' && '%f'.format(['-Infinity']) == '-∞'
'%s'.format([1000000.0]) == '1e+06'
'%s'.format([[1e7, b'x']]) == '[10000000.000000, b"x"]'
!(object in {'a': 1})
[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]
[1, 2, 1].distinct() == [1, 2]
[1, 2].reverse() == [2, 1]
lists.range(3) == [0, 1, 2]
[3, 1, 2].sort() == [1, 2, 3] && ['bb', 'a'].sortBy(e, e.size()) == ['a', 'bb']
[1, 2].isSorted() && [1, 2].sum() == 3 && [1, 2].max() == 2 && ['b', 'a'].min() == 'a'
[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2
sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])
math.greatest(1, 2.5) == 2.5 && math.least([3, 1]) == 1 && math.abs(-1) == 1
math.ceil(1.2) == 2.0
math.round(2.5) == 3.0
math.trunc(-1.9) == -1.0
math.sign(-3) == -1
math.bitAnd(6, 3) == 2
math.bitShiftLeft(1, 4) == 16
math.bitShiftRight(-1, 63) == 1
math.sqrt(4) == 2.0 && math.isNaN(0.0 / 0.0) && math.isInf(1.0 / 0.0)
'abc 123'.find('[0-9]+') == '123'
'a1b2'.findAll('[0-9]') == ['1', '2']
'a1b2'.findAll('[0-9]', 1) == ['1']
base64.encode(b'hello') == 'aGVsbG8=' && base64.decode('aGVsbG8') == b'hello'
url('https://h:80/p%20q?a=1&a=2').getHostname() == 'h'
url('https://h:80/').getPort() == '80'
url('https://[::1]:80/').getHost() == '[::1]:80'
url('https://h/p?a=1&a=2').getQuery() == {'a': ['1', '2']}
isURL('/path') && !isURL('../x') && !isURL('http:// x') && isURL('https://h/p')
ip('10.0.0.1').family() == 4 && isIP('::1') && !isIP('::ffff:1.2.3.4') && !isIP('1.2.3')
ip('127.0.0.1').isLoopback()
ip('2001:db8::1').isGlobalUnicast()
ip.isCanonical('::1')
cidr('10.0.0.0/8').containsIP('10.1.1.1')
cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')
string(cidr('10.1.2.3/8').masked()) == '10.0.0.0/8' && cidr('::/0').prefixLength() == 0
quantity('1.5Gi').isGreaterThan(quantity('1G'))
quantity('50k').add(20).asInteger() == 50020
quantity('100m').compareTo(quantity('0.1')) == 0
sign(quantity('-1')) == -1
!isQuantity('1x')
semver('1.2.3').isLessThan(semver('1.10.0'))
isSemver('v1.0', true)
!isSemver('v1.0')
semver('v01.2', true).compareTo(semver('1.2.0')) == 0
!format.dns1123Label().validate('web').hasValue()
format.dns1123Label().validate('Web').hasValue()
format.named('uuid').value().validate('x').value() == ['does not match the UUID format']
!format.named('nope').hasValue() && !format.qualifiedName().validate('a.b/c').hasValue()
optional.of(1).value() == 1 && optional.none().orValue(2) == 2
optional.none().or(optional.of(1)).value() == 1
!optional.ofNonZeroValue('').hasValue()
optional.of(1).optMap(v, v + 1).value() == 2 && !optional.none().optMap(v, v).hasValue()
optional.of({'a': 1}).optFlatMap(m, m[?'a']).value() == 1
[?optional.none(), ?optional.of(1)] == [1] && {?'a': optional.none()} == {}
[1, 2].first().value() == 1 && [1, 2].last() == optional.of(2)
!dyn([]).first().hasValue() && !dyn([]).last().hasValue()
optional.unwrap([optional.of(1), optional.none(), optional.of(3)]) == [1, 3]
[optional.of('a'), optional.none()].unwrapOpt() == ['a']
[1][?5].orValue(7) == 7 && {'a': 1}[?'a'].value() == 1
has(object.metadata.labels) && !has(object.metadata.nope)
object.?spec.?nope.?deeper.orValue('d') == 'd' && object.?spec.replicas.value() == 3
object.spec.containers.all(c, c.?securityContext.?privileged.orValue(false) == false)
object.metadata.annotations == null && object.metadata.labels != null
object.metadata.labels['app'] == 'web' && object.spec.containers[1].name == 'b'
object.spec.containers[dyn(1.0)].name == 'b'
object.spec.replicas > 2 && object.spec.replicas == 3.0 && object.spec.share < 1
object.spec.containers.map(c, c.name).join(',') == 'a,b'
x == null
"""


@pytest.mark.parametrize("text", TRUE.strip().splitlines())
def test_true(text: str) -> None:
    assert evaluate(text, POD) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / int(x)", "no such overload: int(null_type)"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 * -1", "integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("object.spec.nope", "no such key: nope"),
        ("object.metadata.annotations.x", "no such key: x"),
        ("object.spec.containers[2]", "index out of bounds: 2"),
        ("object.spec.containers['a']", "unsupported index type 'string' in list"),
        ("dyn('a') < 1", "no such overload"),
        ("dyn(1) + 1.0", "no such overload"),
        ("true && dyn('a')", "no such overload"),
        ("object.spec.containers.all(c, c.nope)", "no such key: nope"),
        ("string(object)", "no such overload: string(map)"),
        ("x.startsWith('a')", "no such overload"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("optional.none().value()", "optional.none() dereference"),
        ("dyn([]).min()", "min called on empty list"),
        ("'abc'.substring(5)", "index out of range: 5"),
        ("'%d'.format([dyn('a')])", ("error during formatting: decimal clause can only"
         " be used on integers, was given string")),
        ("object.metadata.name.matches(object.metadata.name + '(')",
         "error parsing regexp: missing closing ): `web(`"),
        ("{'a': 1}.transformMapEntry(k, v, {'z': v}).z + x", "no such overload"),
    ],
)  # fmt: skip
def test_error(text: str, message: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        evaluate(text, POD)
    assert message == caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x.map(i, i + 1)", [2, 3]),
        ("x + [3]", [1, 2, 3]),
        ("{'n': x.size()}", {"n": 2}),
        ("x.exists(i, x.exists(j, i + j == 4))", True),
        ("x.map(i, x.map(j, i * j))", [[1, 2], [2, 4]]),
    ],
)
def test_value(text: str, value: Any) -> None:
    assert value == evaluate(text, None, [1, 2])


def test_name_bound_in_a_loop_shadows_the_variable() -> None:
    assert evaluate("[5].map(x, x) == [5] && x == 1", None, 1) is True


def test_true_is_not_a_key_of_an_int_map() -> None:
    assert evaluate("!(dyn(true) in {1: 'a'}) && dyn(1.0) in {1: 'a'}") is True
