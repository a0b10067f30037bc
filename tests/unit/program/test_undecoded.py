"""A stored policy that cannot be decoded is an error of this policy only.

A failure means: one record that is damaged, or that this version cannot read, takes all
other policies out of force, or is itself no longer enforced.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.index import EncodedPolicy, count_of, pack_parts, part_of
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from tests.fuzz.bench import Bench, pod
from tests.unit.program.test_unlinked import (
    DENIES,
    GOOD,
    KINDS,
    CelServer,
    Time,
    Triggers,
    generating,
    in_cel,
    path_of,
)
from tests.unit.webhook.attach.test_garbage import cluster_policy

Damage = Callable[[bytes], bytes]


@contextmanager
def damaged(damage: Damage, *, policy: str = "p") -> Iterator[None]:
    """Store the content of a policy's record damaged."""
    encode = PoliciesWriter.encode

    def stored(one: EncodedPolicy) -> EncodedPolicy:
        if one.key.rpartition("/")[2] != policy:
            return one
        return msgspec.structs.replace(one, content=damage(one.content))

    def damaging(self: Any, policies: Any, **named: Any) -> bytearray:
        return encode(self, [stored(one) for one in policies], **named)

    with patch.object(PoliciesWriter, "encode", damaging):
        yield


def field(part: int, at: int) -> Damage:
    """Return a damage that stores a value of another type in a field.

    ``part``: 0 for the policy, 1 for its first rule; ``at``: the field's position.
    """

    def damage(content: bytes) -> bytes:
        view = memoryview(content)
        parts = [bytes(part_of(view, n)) for n in range(count_of(view))]
        fields = msgspec.msgpack.decode(parts[part])
        fields[at] = {"damaged": [1.5]}
        parts[part] = msgspec.msgpack.encode(fields)
        return pack_parts(parts)

    return damage


def unreadable(at: int, length: int = 4) -> Damage:
    """Return a damage that stores bytes that are no msgpack."""
    return lambda content: (
        content[:at] + b"\xc1" * len(content[at : at + length]) + content[at + length :]
    )


RULE_FIELDS = range(RuleIR.__struct_fields__.index("unsupported") + 1)
POLICY_FIELDS = range(len(PolicyIR.__struct_fields__))
RECORDS = {
    "vpol": ValidatingPolicyIR,
    "mpol": MutatingPolicyIR,
    "ivpol": ImageValidatingPolicyIR,
}
RULES = ("validate", "mutate", "images")
DAMAGES = [
    *((kind, 1, at) for kind in RULES for at in RULE_FIELDS),
    *((kind, 0, at) for kind in RULES for at in POLICY_FIELDS),
    *(
        (kind, 0, at)
        for kind, record in RECORDS.items()
        for at in range(len(record.__struct_fields__))
    ),
]
FAILURE_POLICY = PolicyIR.__struct_fields__.index("failure_policy")
MATCHING = [RuleIR.__struct_fields__.index(one) for one in ("match", "exclude")]


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
@pytest.mark.parametrize(("kind", "part", "at"), DAMAGES)
def test_failure_policy_decides_about_a_record_that_cannot_be_decoded(
    kind: str, part: int, at: int, failure_policy: str
) -> None:
    make, _, _, path = KINDS[kind]
    with damaged(field(part, at)):
        server = make(failure_policy, Time())
    # In a record of a kind in CEL, the failurePolicy is in the first field.
    is_unknown = kind in RECORDS and at == 0
    for _ in range(2):
        answer = server.ask(GOOD, path_of(path, failure_policy))
        assert answer["allowed"] is (failure_policy == "Ignore" and not is_unknown)


@pytest.mark.parametrize("kind", ["validate", "mutate", "images"])
def test_unknown_failure_policy_is_fail(kind: str) -> None:
    make, _, _, path = KINDS[kind]
    with damaged(field(0, FAILURE_POLICY)):
        server = make("Ignore", Time())
    assert not server.ask(GOOD, path_of(path, "Fail"))["allowed"]


@pytest.mark.parametrize("kind", [*RULES, *RECORDS])
def test_record_without_a_readable_byte_denies(kind: str) -> None:
    make, _, _, path = KINDS[kind]
    with damaged(lambda content: b"\xc1" * len(content)):
        server = make("Fail", Time())
    assert not server.ask(GOOD, path_of(path, "Fail"))["allowed"]


def test_rule_is_an_error_only_where_it_matches() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    for at in set(RULE_FIELDS) - set(MATCHING):
        with damaged(field(1, at)):
            server = Bench(cluster_policy(DENIES))
        assert not server.ask(pod())["allowed"]
        assert server.ask(service)["allowed"]


@pytest.mark.parametrize(
    ("part", "at"),
    [*((1, at) for at in RULE_FIELDS), *((0, at) for at in POLICY_FIELDS)],
)
def test_record_that_cannot_be_decoded_lifts_no_other_denial(
    part: int, at: int
) -> None:
    good = cluster_policy(DENIES, failure_policy="Ignore")
    other = cluster_policy(DENIES, failure_policy="Ignore", name="other")
    with damaged(field(part, at)):
        server = Bench(f"{good}\n---\n{other}")
    path = b"/validate/ignore"
    assert not server.ask(pod(hostNetwork=True), path)["allowed"]
    assert server.ask(pod(), path)["allowed"]


def _policies(failure_policy: str) -> str:
    """Return policies before and after the one named ``p``."""
    return "\n---\n".join(
        cluster_policy(DENIES, failure_policy=failure_policy, name=name)
        for name in ("a", "p", "z")
    )


def _size_of(kind: str) -> int:
    sizes = []

    def measured(content: bytes) -> bytes:
        sizes.append(len(content))
        return content

    with damaged(measured):
        KINDS[kind][0]("Ignore", Time())
    return sizes[0]


def _of(answer: dict[str, Any], policy: str) -> list[str]:
    """Return the lines of a denial about one policy, and the line after its name."""
    lines = answer.get("status", {}).get("message", "").splitlines()
    return [
        text
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        for text in (line, after)
        if line.startswith(f"{policy}:")
    ]


def test_others_answer_the_same_whatever_is_damaged() -> None:
    """Of three ClusterPolicies, the one in the middle is damaged at each byte."""
    bad = pod(hostNetwork=True)
    for failure_policy in ("Fail", "Ignore"):
        path = f"/validate/{failure_policy.lower()}".encode()
        whole = Bench(_policies(failure_policy)).ask(bad, path)
        assert all(_of(whole, name) for name in ("a", "p", "z"))
        for at in range(0, _size_of("validate"), 7):
            with damaged(unreadable(at)):
                server = Bench(_policies(failure_policy))
            answer = server.ask(bad, path)
            assert not answer["allowed"]
            for name in ("a", "z"):
                assert _of(answer, name) == _of(whole, name), at
            assert not server.records.errors


def test_others_in_cel_answer_the_same_whatever_is_damaged() -> None:
    def server() -> CelServer:
        documents = [
            in_cel(
                "ValidatingPolicy",
                name,
                "Ignore",
                validations=[
                    {
                        "expression": "!has(object.spec.hostNetwork)",
                        "message": f"denied by {name}",
                    }
                ],
            )
            for name in ("a", "p", "z")
        ]
        return CelServer(documents, VALIDATING_POLICY, Time())

    bad = GOOD | {"spec": {**GOOD["spec"], "hostNetwork": True}}
    for at in range(0, _size_of("vpol"), 7):
        with damaged(unreadable(at)):
            found = server().ask(bad, b"/vpol/a/p/z")
        assert not found["allowed"]
        message = json.dumps(found["status"])
        # If its failurePolicy is unknown, its error denies instead of the others.
        is_fail = "program.unlinked" in message
        assert is_fail or all(f"denied by {name}" in message for name in ("a", "z")), at


@pytest.mark.parametrize("at", RULE_FIELDS)
def test_generate_rule_that_cannot_be_decoded_still_triggers(at: int) -> None:
    triggers = Triggers()
    text = cluster_policy(
        "generate: {apiVersion: v1, kind: ConfigMap, name: c, namespace: default,"
        " data: {data: {k: v}}}"
    )
    with damaged(field(1, at)):
        server = Bench(text, triggers=triggers, background_user="system:background")
    assert server.ask(GOOD, b"/validate/fail")["allowed"]
    assert triggers.keys == ["p"]


@pytest.mark.parametrize("at", range(len(GeneratingPolicyIR.__struct_fields__)))
def test_trigger_whose_record_cannot_be_decoded_loses_nothing(at: int) -> None:
    with damaged(field(0, at)):
        server = generating(Time())
    assert server.ask(GOOD, b"/gpol/p")["allowed"]
    assert server.triggers.keys == ["p"]
