"""Expressions and objects made to be expensive end within limits, with an answer.

Each attack runs in a separate process under a memory limit, because it may kill the
worker. No result may be an internal error, and if the budget runs out, failurePolicy
Fail denies the request.
"""

import json
import multiprocessing
import os
import resource
from collections.abc import Callable
from typing import Any

import pytest

from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.http_errors import HttpError
from tests.fuzz.bench import Bench, pod, review
from tests.yardstick import cpu_s

pytestmark = pytest.mark.slow

NOTE = "request.object.metadata.annotations.a"
XS = "request.object.spec.xs"
LIST = "request.object.spec.containers"
CPU_S_MAX = 60.0
"""On a machine of any speed, only a cost that grows with a power reaches it."""
MEMORY_BYTES = 1500 << 20


def policy(validate: dict[str, Any], context: list[str] = []) -> str:  # noqa: B006 - never changed
    entries = [
        {"name": f"v{number}", "variable": {"jmesPath": text}}
        for number, text in enumerate(context)
    ]
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "context": entries,
        "validate": {"message": "m", **validate},
    }
    metadata = {
        "name": "p",
        "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
    }
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": metadata,
            "spec": {
                "validationFailureAction": "Enforce",
                "background": False,
                "rules": [rule],
            },
        }
    )


def deny_if(key: str, value: str = "ok", operator: str = "Equals") -> dict[str, Any]:
    condition = {"key": key, "operator": operator, "value": value}
    return {"deny": {"conditions": {"all": [condition]}}}


def asks(expression: str, *context: str) -> str:
    return policy(deny_if("{{ " + expression + " }}"), list(context))


def noted(text: str) -> dict[str, Any]:
    made = pod()
    made["metadata"]["annotations"] = {"a": text}
    return made


def crowd(count: int) -> dict[str, Any]:
    return pod(
        containers=[
            {"name": f"c{number}", "image": f"r.io/a{number}:1"}
            for number in range(count)
        ]
    )


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


DOUBLINGS = [f"join('',[v{n},v{n}])" for n in range(24)]

BOUNDED: dict[str, tuple[str, Callable[[], Any]]] = {
    "texts that double": (asks("v24", "'aaaaaaaaaaaaaaaa'", *DOUBLINGS), pod),
    "lists that double": (asks("to_string(" + "|".join(["[@,@]"] * 28) + ")"), pod),
    "maps that double": (asks("to_string(" + "|".join(["{a:@,b:@}"] * 28) + ")"), pod),
    "replacements that grow": (
        asks(f"replace_all({NOTE},'A','{'B' * 1000}')"),
        lambda: noted("A" * 1_000_000),
    ),
    "as many regexes as elements": (
        asks(f"{XS}[?regex_match(@,'aaa')]"),
        lambda: pod(xs=[f"(a{n})*" for n in range(200_000)]),
    ),
    "YAML deeper than the stack": (
        asks(f"parse_yaml({NOTE})"),
        lambda: noted("[" * 100_000),
    ),
    "YAML blocks deeper than the stack": (
        asks(f"parse_yaml({NOTE})"),
        lambda: noted("- " * 100_000 + "a"),
    ),
    "YAML that contains itself": (
        asks(f"to_string(parse_yaml({NOTE}))"),
        lambda: noted("&a [*a]"),
    ),
    "YAML aliases that multiply": (
        asks(f"parse_yaml({NOTE})"),
        lambda: noted(
            "a0: &a0 [x,x]\n"
            + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 8}]\n" for n in range(1, 14))
        ),
    ),
    "JSON deeper than the stack": (
        asks(f"parse_json({NOTE})"),
        lambda: noted("[" * 100_000),
    ),
    "numbers beyond all bounds": (
        asks(f"add({NOTE},'1Gi')"),
        lambda: noted("9" * 100_000),
    ),
    "exponents beyond all bounds": (
        asks(f"add({NOTE},'1')"),
        lambda: noted("1e999999999"),
    ),
    "lists compared by wildcards": (
        policy(deny_if("{{ " + XS + " }}", "{{ request.object.spec.ys }}", "AllNotIn")),
        lambda: pod(
            xs=[f"a{n}*" for n in range(20_000)], ys=[f"b{n}*" for n in range(20_000)]
        ),
    ),
    "foreach of foreach": (
        policy(
            {
                "foreach": [
                    {
                        "list": XS,
                        "foreach": [{"list": XS, **deny_if("b", "{{ element }}")}],
                    }
                ]
            }
        ),
        lambda: pod(xs=list(range(100_000))),
    ),
    "images of a crowd": (
        asks("images.containers.*.registry"),
        lambda: crowd(100_000),
    ),
    "pod security of a crowd": (
        policy({"podSecurity": {"level": "restricted", "version": "latest"}}),
        lambda: crowd(100_000),
    ),
}
HARMLESS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a regex that no table holds": (
        asks(f"regex_match('(a|b)*a(a|b){{900}}c',{NOTE})"),
        lambda: noted("ab" * 100_000),
    ),
    "a regex that backtracks": (
        asks(f"regex_match('^(A+)+$',{NOTE})"),
        lambda: noted("A" * 1_000_000 + "b"),
    ),
    "a regex of the object's": (
        asks(f"regex_match({NOTE},'{'a' * 2000}')"),
        lambda: noted("(a|b)*" * 20_000 + "c"),
    ),
    "a pattern of stars": (
        asks(f"pattern_match({NOTE},'{'a' * 5000}')"),
        lambda: noted("*a" * 100_000 + "b"),
    ),
    "values are no templates": (
        asks(NOTE),
        lambda: noted("{{ request.object.metadata.annotations.a }}" * 1000),
    ),
    "a Pod as deep as reviews may be": (
        policy({"pattern": {"spec": {"x": "y"}}}),
        lambda: pod(x=nested(400)),
    ),
    "a crowd under a pattern": (
        policy({"pattern": {"spec": {"containers": [{"image": "*:1"}]}}}),
        lambda: crowd(50_000),
    ),
}


def _evaluate(text: str, make: Callable[[], Any], out: Any) -> None:
    limit = (MEMORY_BYTES, MEMORY_BYTES)
    bench = Bench(text, cluster_data=ClusterData(random_bytes=os.urandom))
    body = json.dumps(review(make())).encode()
    resource.setrlimit(resource.RLIMIT_AS, limit)
    responses: list[Any] = []
    taken = cpu_s(lambda: responses.append(bench.post(body)))
    out.send((responses[0]["allowed"], bench.records.errors, taken))


def evaluate(text: str, make: Callable[[], Any]) -> tuple[bool, list[str], float]:
    """Evaluate in a separate process; a process that dies fails the test."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_evaluate, args=(text, make, theirs)
    )
    process.start()
    theirs.close()
    try:
        # No limit but that of the test: this waits for seconds of computing.
        found: tuple[bool, list[str], float] = ours.recv()
    except EOFError:
        process.join()
        pytest.fail(f"the process died: {process.exitcode}")
    finally:
        process.kill()
        process.join()
    return found


@pytest.mark.parametrize("name", BOUNDED)
def test_costly_input_is_rejected(name: str) -> None:
    allowed, errors, taken = evaluate(*BOUNDED[name])
    assert not allowed
    assert "webhook.defect" not in errors
    assert taken < CPU_S_MAX


@pytest.mark.parametrize("name", HARMLESS)
def test_input_that_only_looks_costly_is_evaluated(name: str) -> None:
    _, errors, taken = evaluate(*HARMLESS[name])
    assert errors == []
    assert taken < CPU_S_MAX


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[" * 10_000 + b"]" * 10_000, 417),
        (b'{"request":{"uid":["u"],"operation":"CREATE"}}', 417),
        (b'{"request":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 417),
        (b'{"request":null}', 400),
        (b"{}", 400),
        (b"null", 417),
        (b"\x00", 417),
        (b"\xef\xbb\xbf{}", 417),
    ],
)
def test_body_that_is_no_review_gets_an_http_status(body: bytes, status: int) -> None:
    """A body that cannot be read is never allowed."""
    with pytest.raises(HttpError) as caught:
        Bench(HARMLESS["a crowd under a pattern"][0]).post(body)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"request":{"uid":"u","operation":"CREATE","object":{"a":NaN}}}',
        b'{"request":{"uid":"u","operation":"CREATE","object":{"a":1e400}}}',
        b'{"request":{"uid":"u","operation":"CREATE","object":{"a":"\xff"}}}',
        b'{"request":{"uid":"u","operation":"CREATE","object":{"a":"\\ud800"}}}',
        b'{"request":{"uid":"u","operation":"PATCH"}}',
        b'{"request":{"uid":"u","object":' + b'{"a":' * 5000 + b"1" + b"}" * 5002,
    ],
)
@pytest.mark.parametrize("path", [b"/validate/fail", b"/validate/ignore"])
def test_unreadable_review_is_denied(body: bytes, path: bytes) -> None:
    """The API server would ignore an HTTP error if failures are ignored."""
    response = Bench(HARMLESS["a crowd under a pattern"][0]).post(body, path)
    assert (response["uid"], response["allowed"]) == ("u", False)


def test_duplicate_keys_have_one_interpretation() -> None:
    """If a key occurs twice, matching and evaluation must use the same value."""
    bench = Bench(policy({"pattern": {"metadata": {"labels": {"a": "good"}}}}))
    body = json.dumps(review(pod())).replace(
        '"metadata"', '"metadata":{"labels":{"a":"good"}},"metadata"'
    )
    assert bench.post(body.encode())["allowed"] is False


def test_huge_integers_are_numbers() -> None:
    """Digits beyond 64 bits neither crash nor change the value."""
    bench = Bench(policy({"pattern": {"spec": {"x": "<5"}}}))
    made = pod(x="HERE")
    body = json.dumps(review(made)).replace('"HERE"', "9" * 300)
    assert bench.post(body.encode())["allowed"] is False
