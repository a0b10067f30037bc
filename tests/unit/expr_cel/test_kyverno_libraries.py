"""The functions of policies.kyverno.io.

Expected: docs/behaviour/cel 12, and Go's own behaviour.
"""

import base64
import gzip
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    ExpressionFailed,
    ExpressionInvalid,
)
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.functions.kyverno import identities
from kyverno_mp.expr.cel.functions.kyverno.documents import JSON, YAML
from kyverno_mp.expr.cel.linking.program import compile_expression, link_expression
from kyverno_mp.expr.cel.outside import (
    FORBIDDEN,
    GlobalContext,
    HttpContext,
    HttpRequest,
    ImageContext,
    ResourceContext,
)
from kyverno_mp.expr.cel.types import opaque_type
from kyverno_mp.expr.cel.values import Duration, Meter, Timestamp
from kyverno_mp.expr.scope import Runtime

NAMES = {
    "object": types.DYN,
    "resource": opaque_type("resource.Context"),
    "globalContext": opaque_type("globalcontext.Context"),
    "image": opaque_type("imagedata.Context"),
    "http": opaque_type("http.Context"),
    "json": opaque_type("json.Json"),
    "yaml": opaque_type("yaml.Yaml"),
}
NOW = datetime(2025, 1, 2, 15, 30, 45, tzinfo=UTC)
PEM = "-----BEGIN CERTIFICATE-----"
DIGEST = "sha256:" + "ab" * 32


class Ports:
    """Ports that return their arguments; "gone" has no object, "locked" is denied."""

    def get(
        self, api: str, plural: str, place: tuple[str, str], deadline_ns: int
    ) -> Any:
        self._fail(place[1])
        if place[1] == "gone":
            return None
        return {"asked": [api, plural, *place, str(deadline_ns)]}

    def list(
        self,
        api: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Any:
        self._fail(namespace)
        return {"items": [api, plural, namespace, labels, deadline_ns]}

    def post(
        self, api: str, plural: str, namespace: str, body: Any, deadline_ns: int
    ) -> Any:
        self._fail(namespace)
        return {"made": [api, plural, namespace, body, deadline_ns]}

    def plural(self, api: str, kind: str) -> str:
        self._fail(kind)
        assert api
        return f"{kind.lower()}s"

    def reference(self, name: str, projection: str) -> Any:
        self._fail(name)
        return {"data": [name, projection]}

    def metadata(self, image: str, deadline_ns: int) -> Any:
        self._fail(image)
        return {"image": image, "until": deadline_ns}

    def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
        self._fail(request.url)
        assert deadline_ns == 7
        if request.url == "text":
            return 404, b"no JSON"
        if request.url == "list":
            return 200, b"[1]"
        if request.method == "POST":
            assert request.body is not None
            return 201, b'{"statusCode": 5, "got": %s}' % request.body
        shown = [request.headers, request.ca_bundle]
        return 200, str(shown).replace("'", '"').join(['{"sent": ', "}"]).encode()

    @staticmethod
    def _fail(name: str) -> None:
        if name == "locked":
            raise ExpressionFailed(FORBIDDEN, "no")
        if name == "broken":
            raise ExpressionFailed("x.y", "broken")
        if name == "late":
            raise DeadlinePassed("x.late", "late")


PORTS = Ports()


def evaluate(
    text: str, *, namespace: str = "", ports: Any = PORTS, obj: Any = None
) -> Any:
    library = kyverno_library(namespaced=bool(namespace))
    environment = Environment(NAMES, identities.RECORDS, library=library)
    expression, _ = compile_expression(text, environment)
    program = link_expression(expression, tuple(NAMES), library=library)
    runtime = Runtime(
        now=lambda: NOW, monotonic_ns=lambda: 0, random_bytes=lambda n: b"\1" * n
    )
    values = (
        obj,
        ResourceContext(ports, namespace, 7),
        GlobalContext(ports),
        ImageContext(ports, 7),
        HttpContext(ports, bool(namespace), "", 7),
        JSON,
        YAML,
    )
    return program.evaluate(values, Meter(budget=runtime))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "sha256('a')",
            "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        ),
        ("hash.sha1('a')", "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        ("md5('a') == hash.md5('a')", True),
        ("hash.md5('é')", "66ddcd97cfdeabb2f6fb8a999b4bc76f"),
        ("parseServiceAccount('system:serviceaccount:n:s:t').Name", "s:t"),
        ("user.parseServiceAccount('system:serviceaccount:n:s').Namespace", "n"),
        ("parseServiceAccount('alice').Name + '|'", "|"),
        ("json.unmarshal('{\"a\": [1]}').a[0]", 1.0),
        (
            "json.marshal({'b': dyn('<'), 'a': dyn([dyn(1), dyn(1.5)])})",
            '{"a":[1,1.5],"b":"\\u003c"}',
        ),
        ("json.marshal('x')", '"x"'),
        ("json.marshal(null)", "0"),
        ("json.marshal(duration('1h'))", "3600000000000"),
        (
            "json.marshal(timestamp('2020-01-01T00:00:00Z'))",
            '"2020-01-01T00:00:00Z"',
        ),
        ("json.marshal(b'ab')", '"YWI="'),
        ("json.marshal(optional.of(1))", "1"),
        ("json.marshal(type(1))", '"int"'),
        ("json.marshal(quantity('1Gi'))", '"1Gi"'),
        ("type(quantity('1')) == type(quantity('2'))", True),
        ("yaml.parse('a: {b: [1, x]}').a.b[1]", "x"),
        ("yaml.parse('a: 1\\n---\\na: 2').a", 1.0),
        ("yaml.parse('a: !!binary aGVsbG8=').a", "hello"),
        ("yaml.parse('a: !!binary \"aGVsbG8=\"').a", "hello"),
        ("yaml.parse('a: !!binary Lm5hbg==').a", ".nan"),
        ("math.round(1.2345, 2)", 1.23),
        ("math.round(-2.5, 0)", -3.0),
        ("math.round(1234.0, -2)", 1200.0),
        ("time.toCron(timestamp('2025-01-02T15:30:00Z'))", "30 15 2 1 4"),
        ("time.toCron(timestamp('2025-01-05T00:00:00Z'))", "0 0 5 1 0"),
        ("string(time.now())", "2025-01-02T15:30:45Z"),
        ("string(time.truncate(time.now(), duration('1h')))", "2025-01-02T15:00:00Z"),
        ("string(time.truncate(time.now(), duration('24h')))", "2025-01-02T00:00:00Z"),
        ("time.truncate(time.now(), duration('0s')) == time.now()", True),
        ("size(random())", 8),
        ("random('[a-c]{3}').matches('^[a-c]{3}$')", True),
        ("random.random('x')", "x"),
        (
            "listObjToMap([{'n': 'a'}], [{'v': 'x'}], 'n', 'v').a",
            "x",
        ),
        ("transform.listObjToMap([{'n': 'a'}], [{'w': 1}], 'n', 'v').a == null", True),
        ("gzip.decompress(gzip.compress('häh'))", "häh"),
        ("parseImageReference('nginx').registry()", "index.docker.io"),
        ("image('nginx').repository()", "library/nginx"),
        ("image('nginx').tag()", "latest"),
        ("image('docker.io/a/b:1').registry()", "index.docker.io"),
        ("image('ghcr.io/a/b:1').identifier()", "1"),
        ("image('localhost:5000/ab').repository()", "ab"),
        ("image('a/b').repository()", "a/b"),
        (f"image('ghcr.io/a/b:1@{DIGEST}').tag()", ""),
        (f"image('ghcr.io/a/b:1@{DIGEST}').identifier()", DIGEST),
        (f"image('ghcr.io/a/b@{DIGEST}').containsDigest()", True),
        ("image('nginx').containsDigest() || image('nginx').digest() != ''", False),
        ("isImage('nginx:1') && !isImage('NGINX') && !isImage('a@sha256:1')", True),
        # As in the real program: the texts are compared, too.
        ("image('nginx') == image('docker.io/library/nginx:latest')", False),
        ("image('nginx') == image('nginx:latest')", False),
        ("image('nginx') != parseImageReference('nginx')", False),
        ("image('nginx') in [image('nginx:latest')]", False),
        ("type(image('a/b')) == type(image('c/d'))", True),
    ],
)  # fmt: skip
def test_functions(text: str, wanted: Any) -> None:
    found = evaluate(text)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("image('UPPER').tag()", "could not parse reference: UPPER"),
        (
            "listObjToMap([{'n': 'a'}], [], 'n', 'v')",
            "listObjToMap must take lists of equal length. list1: 1, list2: 0",
        ),
        (
            "listObjToMap([{'n': 1}], [{'v': 1}], 'n', 'v')",
            "the passed key name cannot be handled as a string in the key object list",
        ),
        ("json.unmarshal('{')", "unexpected end of JSON input"),
        ("gzip.decompress(b'x')", "unexpected EOF"),
        ("gzip.decompress(b'0123456789ab')", "gzip: invalid header"),
        ("gzip.decompress(b'')", "EOF"),
        ("x509.decode('x')", "failed to decode PEM block"),
        (
            "resource.get('v1', 'pods', 'n', 'locked')",
            "failed to get resource: permission denied: no",
        ),
        ("resource.list('v1', 'pods', 'broken')", "failed to list resource: broken"),
        (
            "resource.post('v1', 'pods', 'broken', {'a': dyn(1)})",
            "failed to create resource: broken",
        ),
        ("resource.toGVR('v1', 'broken')", "failed to map kind to resource: broken"),
        ("globalContext.get('broken')", "failed to get global reference: broken"),
        ("image.getMetadata('broken')", "failed to get image data: broken"),
        ("http.get('broken')", "request failed: broken"),
        (
            "http.client('x').get('u')",
            "request failed: failed to parse PEM CA bundle for APICall",
        ),
    ],
)  # fmt: skip
def test_errors(text: str, error: str) -> None:
    with pytest.raises(ExpressionFailed) as failed:
        evaluate(text)
    assert failed.value.message == error


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("resource.get('v1', 'pods', 'n', 'p').asked", ["v1", "pods", "n", "p", "7"]),
        ("resource.Get('v1', 'pods', 'n', 'p').asked[2]", "n"),
        ("dyn(resource.get('v1', 'pods', 'n', 'gone')) == null", True),
        ("resource.get(resource.toGVR('a/v1', 'Pod'), 'n', 'p').asked[1]", "pods"),
        ("resource.list('v1', 'pods', '').items[2]", ""),
        ("resource.List('v1', 'pods', 'n', {'a': 'b'}).items[3].a", "b"),
        ("resource.list(resource.toGVR('a/v1', 'Pod'), 'n').items[0]", "a/v1"),
        ("resource.list(resource.toGVR('v1', 'P'), 'n', {'a': 'b'}).items[3].a", "b"),
        ("resource.post('v1', 'pods', {'a': dyn(1)}).made[2]", ""),
        ("resource.post('v1', 'pods', 'n', {'a': dyn([1])}).made[3].a[0]", 1),
        ("globalContext.get('e').data", ["e", ""]),
        ("globalContext.Get('e', 'p').data[1]", "p"),
        ("image.getMetadata('nginx').until", 7),
        ("http.get('u').sent", [{}, ""]),
        ("http.Get('u', {'A': 'b'}).sent[0].A", "b"),
        ("http.get('u').statusCode", 200),
        ("http.get('text')", {"body": None, "statusCode": 404}),
        ("http.get('list')", {"body": [1.0], "statusCode": 200}),
        ("http.post('u', {'a': 1}).got.a", 1.0),
        ("http.post('u', [1], {'A': 'b'}).statusCode", 201),
        (f"http.client('{PEM}').get('u').sent[1]", PEM),
    ],
)  # fmt: skip
def test_ports(text: str, wanted: Any) -> None:
    assert evaluate(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("resource.get('v1', 'pods', 'p').asked[2]", "team"),
        ("resource.get(resource.toGVR('v1', 'Pod'), 'p').asked[2]", "team"),
        ("resource.list('v1', 'pods').items[2]", "team"),
        ("resource.list('v1', 'pods', {'a': 'b'}).items[2]", "team"),
        ("resource.list(resource.toGVR('v1', 'Pod')).items[2]", "team"),
        ("resource.post('v1', 'pods', {'a': dyn(1)}).made[2]", "team"),
    ],
)
def test_a_namespaced_policy_stays_in_its_namespace(text: str, wanted: str) -> None:
    assert evaluate(text, namespace="team") == wanted


@pytest.mark.parametrize(
    "text",
    [
        "resource.get('v1', 'pods', 'other', 'p')",
        "resource.list('v1', 'pods', 'other', {'a': 'b'})",
        "resource.post('v1', 'pods', 'other', {'a': dyn(1)})",
    ],
)
def test_a_namespaced_policy_cannot_name_another(text: str) -> None:
    with pytest.raises(ExpressionInvalid, match="found no matching overload"):
        evaluate(text, namespace="team")


def test_namespaced_policy_cannot_call_services() -> None:
    with pytest.raises(ExpressionFailed) as failed:
        evaluate("http.get('u')", namespace="team")
    assert failed.value.message == (
        "request failed: http calls are not allowed in namespaced policies: set"
        " --allowHTTPInNamespacedPolicies to enable"
    )


def test_a_result_of_get_is_not_compared_with_null() -> None:
    """The map type of the result is not nullable (docs/behaviour/cel 12)."""
    with pytest.raises(ExpressionInvalid, match="found no matching overload"):
        evaluate("resource.get('v1', 'pods', 'n', 'p') == null")


def test_an_absent_port_is_an_error() -> None:
    for text in (
        "resource.get('v1', 'p', 'n', 'p')",
        "globalContext.get('e')",
        "image.getMetadata('i')",
        "http.get('u')",
    ):
        with pytest.raises(ExpressionFailed):
            evaluate(text, ports=None)


def test_deadline_is_never_absorbed() -> None:
    with pytest.raises(DeadlinePassed):
        evaluate("resource.get('v1', 'pods', 'n', 'late') == {} || true")


def test_calls_have_a_cost() -> None:
    """A call waits for I/O, so one expression may make only 200 calls."""
    many = list(range(250))
    text = f"{many}.map(i, resource.list('v1', 'pods', '')).size()"
    with pytest.raises(BudgetExceeded, match="actual cost limit exceeded"):
        evaluate(text)
    assert evaluate(text.replace(str(many), str(many[:150]))) == 150


def test_time_and_randomness_are_not_constant_folded() -> None:
    """A constant expression is evaluated once; these expressions are not constant."""
    library = kyverno_library()
    environment = Environment(NAMES, library=library)
    expression, _ = compile_expression("random('a')", environment)
    program = link_expression(expression, tuple(NAMES), library=library)
    with pytest.raises(ExpressionFailed, match="neither the time nor random"):
        program.evaluate((None,) * len(NAMES), Meter())


def _certificate(serial: int) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    begins = datetime(2025, 1, 1, tzinfo=UTC)
    built = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=serial,
        not_valid_before=begins,
        not_valid_after=begins.replace(year=2026),
    ).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()


def test_certificates() -> None:
    pem = _certificate(serial=(1 << 64) + 5).replace("\n", "\\n")
    found = evaluate(f"x509.decode('{pem}')")
    assert set(found) >= {"PublicKey", "Issuer", "NotAfter", "DNSNames", "IsCA"}
    assert not set(found) & {"Subject", "SignatureAlgorithm", "Version"}
    assert (found["SerialNumber"], found["NotBefore"]) == (5.0, "2025-01-01T00:00:00Z")
    assert found["Issuer"]["CommonName"] == "ca"
    assert found["PublicKeyAlgorithm"] == 1.0


def test_compressed_bytes_are_deterministic() -> None:
    assert evaluate("gzip.compress('a') == gzip.compress('a')") is True
    assert gzip.decompress(evaluate("gzip.compress('a')")) == b"a"
    text = base64.b64encode(gzip.compress(b"abc", mtime=1)).decode()
    assert evaluate(f"gzip.decompress(base64.decode('{text}'))") == "abc"


def test_decompression_bomb_is_stopped() -> None:
    bomb = base64.b64encode(gzip.compress(b"\0" * 500_000_000)).decode()
    with pytest.raises(BudgetExceeded):
        evaluate("gzip.decompress(base64.decode(object)).size()", obj=bomb)


def test_types_of_values() -> None:
    assert type(evaluate("time.now()")) is Timestamp
    assert type(evaluate("time.now() - time.now()")) is Duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # cel-go's own examples (ext/regex.go).
        ("regex.replace('hello world hello', 'hello', 'hi')", "hi world hi"),
        ("regex.replace('banana', 'a', 'x', 0)", "banana"),
        ("regex.replace('banana', '(', 'x', 0)", "banana"),
        ("regex.replace('banana', 'a', 'x', 1)", "bxnana"),
        ("regex.replace('banana', 'a', 'x', 2)", "bxnxna"),
        ("regex.replace('banana', 'a', 'x', -12)", "bxnxnx"),
        (r"regex.replace('foo bar', '(fo)o (ba)r', r'\2 \1')", "ba fo"),
        ("regex.extract('hello world', 'hello(.*)').value()", " world"),
        (r"regex.extract('item-A, item-B', r'item-(\w+)').value()", "A"),
        ("regex.extract('HELLO', 'hello').hasValue()", False),
        (r"regex.extractAll('id:123, id:456', r'id:\d+')", ["id:123", "id:456"]),
        ("regex.extractAll('id:123, id:456', 'assa')", []),
        # Its source: groups, empty matches, backslashes.
        (r"regex.replace('abc', '', r'-')", "-a-b-c-"),
        (r"regex.replace('baac', 'a*', 'x')", "xbxcx"),
        (r"regex.replace('a', 'a', r'\\\0')", r"\a"),
        (r"regex.replace('ab', '(a)|(b)', r'[\1]')", "[a][]"),
        (r"regex.replace('n\u00e4\u00e4', '\u00e4', '$1')", "n$1$1"),
        (r"regex.replace('b', 'a', r'\9')", "b"),
        ("regex.extract('ab', 'a(x?)b').hasValue()", False),
        ("regex.extract('ab', 'x?').value()", ""),
        ("regex.extractAll('a1b', '[a-z]([0-9]?)')", ["1"]),
        ("regex.extractAll('ab', 'x?')", ["", "", ""]),
    ],
)
def test_regex_with_groups(text: str, expected: object) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            r"regex.replace('test', '(.)', r'\2')",
            "replacement string references group 2 but regex has only 1 group(s)",
        ),
        (
            r"regex.replace('id=1', r'id=(?P<value>\d+)', r'value: \values')",
            (
                "invalid replacement string: 'value: \\values' \\ must be followed by a"
                " digit or \\"
            ),
        ),
        (
            "regex.replace('a', 'a', 'b\\\\')",
            "invalid replacement string: 'b\\' \\ not allowed at end",
        ),
        (
            "regex.replace('a', '(', 'b')",
            "error parsing regexp: missing closing ): `(`",
        ),
        (
            "regex.extract('a@b', '(.*)@([^.]*)')",
            'regular expression has more than one capturing group: "(.*)@([^.]*)"',
        ),
        (
            "regex.extractAll('a@b', '(.*)@([^.]*)')",
            'regular expression has more than one capturing group: "(.*)@([^.]*)"',
        ),
    ],
)
def test_errors_of_regex_with_groups(text: str, error: str) -> None:
    with pytest.raises(ExpressionFailed) as raised:
        evaluate(text)
    assert raised.value.message == error
