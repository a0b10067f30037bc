"""Match conditions that all supported API servers accept, and some that not all accept.

Source: apiserver/pkg/cel/environment/base.go, the versions of its libraries.
"""

OLD = (
    "object.metadata.name == 'x'",
    "has(object.spec) && request.operation in ['CREATE', 'UPDATE']",
    "oldObject == null || oldObject.metadata.labels.all(key, key.startsWith('a'))",
    "object.spec.containers.exists_one(c, c.image.matches('^a'))",
    "object.spec.containers.map(c, c.name).join(',').lowerAscii() == 'a,b'",
    "url('https://a').getHost() == 'a' && [1, 2].isSorted() && [1, 2].sum() > 1",
    "duration('1h') > duration('1m') && int('1') == 1 && 'ab'.find('a') == 'a'",
    "!request.userInfo.groups.exists(g, g == 'system:masters')",
)
NEWER = (
    "quantity('1').isGreaterThan(quantity('0'))",
    "object.?metadata.name.orValue('') == 'x'",
    "object.metadata[?'name'].hasValue()",
    "[?object.?x].size() == 0",
    "{?'a': object.?x}.size() == 0",
    "1 < 1.5",
    "sets.contains([1], [1])",
    "ip('10.0.0.1').family() == 4",
    "cidr('10.0.0.0/8').containsIP('10.0.0.1')",
    "!format.named('dns1123Label').hasValue()",
    "'%d'.format([1]) == '1'",
    "[1, 2].all(i, v, v > i)",
    "[1].existsOne(v, v == 1)",
    "[1, 2].transformList(i, v, i + v).size() == 2",
    "cel.bind(x, 1, x == 1)",
    "isSemver('1.0.0')",
    "[1, 2].reverse() == [2, 1]",
    "[2, 1].sort() == [1, 2]",
    "authorizer.group('').resource('pods').check('get').allowed()",
)
