"""Searches of records: what the declared types lead to, and nothing else."""

from typing import Any

import msgspec

from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.ir.cel_policies import (
    DeletingPolicyIR,
    GeneratingPolicyIR,
    MutatingPolicyIR,
)
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import RuleIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.values.records import RecordSearch


class Wanted(msgspec.Struct, frozen=True):
    name: str = ""


class Other(msgspec.Struct, frozen=True):
    name: str = ""
    more: "tuple[Other, ...]" = ()


class Branch(msgspec.Struct, frozen=True):
    by_name: dict[str, "Wanted | Other"] = {}
    pairs: tuple[tuple[str, Wanted | None], ...] = ()
    others: tuple[Other, ...] = ()
    content: Any = None


class Root(msgspec.Struct, frozen=True):
    branch: Branch | None = None
    name: str = ""


SEARCH = RecordSearch(Wanted)


def all_below(value: object) -> list[Any]:
    waiting, seen = [value], []
    while waiting:
        value = waiting.pop()
        seen.append(value)
        waiting += SEARCH.parts(value)
    return seen


def test_finds_what_is_in_containers_of_fields() -> None:
    branch = Branch({"a": Wanted("1"), "b": Other("2")}, (("x", Wanted("3")),))
    found = [one for one in all_below((Root(branch),)) if type(one) is Wanted]
    assert sorted(one.name for one in found) == ["1", "3"]


def test_visits_nothing_that_leads_to_none() -> None:
    branch = Branch(others=(Other("1", (Other("2"),)),), content={"a": [1, "b"]})
    assert all_below(Root(branch)) == [Root(branch), branch]


def test_a_record_of_a_policy_has_the_fields_of_its_declared_type() -> None:
    """Otherwise a search would not reach what a subclass adds."""
    waiting: list[type[msgspec.Struct]] = [
        RuleIR,
        ValidatingPolicyIR,
        MutatingPolicyIR,
        ImageValidatingPolicyIR,
        GeneratingPolicyIR,
        DeletingPolicyIR,
        AuthorizationPolicyIR,
    ]
    seen = set(waiting)
    while waiting:
        record = waiting.pop()
        for below in record.__subclasses__():
            assert below.__struct_fields__ == record.__struct_fields__, below
        info = msgspec.inspect.type_info(record)
        new = structs_in(info) - seen
        seen |= new
        waiting += new
    assert len(seen) > 100


def structs_in(info: Any) -> set[type[msgspec.Struct]]:
    found = set()
    waiting, visited = [info], set()
    while waiting:
        one = waiting.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, msgspec.inspect.StructType):
            found.add(one.cls)
            waiting += [field.type for field in one.fields]
        for name in ("item_type", "key_type", "value_type"):
            waiting += [part] if (part := getattr(one, name, None)) else []
        waiting += [*getattr(one, "types", ()), *getattr(one, "item_types", ())]
    return found
