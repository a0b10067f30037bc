"""Stand for a record of which not everything can be decoded, with what can be.

Room: snapshot. Takes: the bytes of a record, the key of its policy. Gives: records that
match at least what the stored ones match, and are errors. Next: policies.py,
cel_segments.py.

SAFETY: if a reader failed instead, one record would take all other policies out of
force. What cannot be decoded is assumed to deny: failurePolicy Fail, action Enforce,
and a match of everything under the keys of the index.
"""

import contextlib
from typing import Any, Final, Generic, TypeVar

import msgspec

from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.index import ANY_MATCH
from kyverno_mp.ir.rules import ActionIR, PolicyIR, RuleIR, UndecodedPolicyIR
from kyverno_mp.values.kubernetes.policy_kinds import PolicyKind
from kyverno_mp.values.records import UNDECODABLE, FieldDecoders, field_decoders

RecordT = TypeVar("RecordT", bound=msgspec.Struct)
StructT = TypeVar("StructT", bound=msgspec.Struct)
CODE: Final = "snapshot.record"
_DENIES: Final = ActionIR("Enforce")
_ARRAY: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_GENERATE: Final = "generate"


_POLICY: Final = field_decoders(PolicyIR)
_RULE: Final = field_decoders(RuleIR)


class UndecodedRecords(Generic[RecordT]):
    """Stand for the records of one kind in CEL."""

    def __init__(
        self,
        record: type[RecordT],
        fields: FieldDecoders,
        body: type[msgspec.Struct] | None,
        body_fields: FieldDecoders,
    ) -> None:
        """``body``: the type of its bodies; None: it has the fields of a body."""
        self._record, self._fields = record, fields
        self._body, self._body_fields = body, body_fields

    def of(self, value: bytes | memoryview, key: str, kind: PolicyKind) -> RecordT:
        """Return what stands for a policy; it keeps known constraints."""
        parts = _parts_of(value)
        fields = _fields_of(self._fields, value)
        fields["policy"] = undecoded_policy(parts[0] if parts else b"", key, kind)
        if self._body is None:
            fields.setdefault("constraints", ConstraintsIR())
        elif "bodies" not in fields:
            stored = _parts_of(parts[1]) if len(parts) > 1 else []
            fields["bodies"] = tuple(
                self._body_of(self._body, stored_body)
                for stored_body in stored or (b"",)
            )
        return _filled(self._record, fields)

    def _body_of(
        self, body: type[msgspec.Struct], value: bytes | memoryview
    ) -> msgspec.Struct:
        fields = _fields_of(self._body_fields, value)
        constraints = fields.get("constraints", ConstraintsIR())
        return _filled(body, {"copy": "", "constraints": constraints})


def undecoded_problem(count: int) -> tuple[str, ...]:
    """Return the problem that so many policies are, () if there are none."""
    if not count:
        return ()
    problem = (
        "stored policies cannot be decoded, so they are errors; the log names them"
    )
    return (f"{count} {problem}",)


def undecoded_policy(value: bytes | memoryview, key: str, kind: PolicyKind) -> PolicyIR:
    """Return what stands for a policy; ``key``: as in PolicyIR.key."""
    namespace, _, name = key.rpartition("/")
    fields = {
        "kind": kind.names[bool(namespace)],
        "action": _DENIES,
        **_fields_of(_POLICY, value),
        "name": name,
        "namespace": namespace,
    }
    if "rule_actions" not in fields:
        # An action that is unknown may be that of any rule.
        fields["action"] = _DENIES
    return UndecodedPolicyIR(**fields)


def undecoded_rule(value: bytes | memoryview, policy: PolicyIR, number: int) -> RuleIR:
    """Return what stands for a rule. Its type is "" if it is unknown.

    A generate rule still triggers: the background pool needs its name only.
    """
    fields: dict[str, Any] = {"name": "", "rule_type": "", "action": _DENIES}
    if number < len(policy.rule_actions):
        action = policy.rule_actions[number]
        fields = dict(zip(fields, action, strict=True))
    fields |= _fields_of(_RULE, value)
    rule_type = fields["rule_type"]
    is_trigger = rule_type == _GENERATE
    return RuleIR(
        fields["name"],
        rule_type,
        fields.get("match", ANY_MATCH),
        fields.get("exclude"),
        action=fields["action"],
        unsupported="" if is_trigger else f"a rule that cannot be decoded ({CODE})",
    )


def _filled(record: type[StructT], fields: dict[str, Any]) -> StructT:
    """Return a record whose other fields are empty lists or their defaults."""
    empty = {
        field.name: () for field in msgspec.structs.fields(record) if field.required
    }
    return record(**{**empty, **fields})


def _fields_of(decoders: FieldDecoders, value: bytes | memoryview) -> dict[str, Any]:
    """Return the fields of a record that can be decoded."""
    fields = {}
    for (name, decoder), part in zip(decoders.items(), _parts_of(value), strict=False):
        with contextlib.suppress(*UNDECODABLE):
            fields[name] = decoder.decode(part)
    return fields


def _parts_of(value: bytes | memoryview | msgspec.Raw) -> list[msgspec.Raw]:
    """Return the encoded fields of a record, none if even they cannot be told apart."""
    try:
        return _ARRAY.decode(value)
    except UNDECODABLE:
        return []
