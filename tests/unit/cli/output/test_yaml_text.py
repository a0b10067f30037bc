"""YAML is written as Go's library writes it, and can be read back unchanged."""

import pytest
import yaml

from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

# The expected strings are the real program's output for each text.
WRITTEN = {
    "": '""',
    "1": '"1"',
    "true": '"true"',
    "yes": '"yes"',
    "On": '"On"',
    "y": '"y"',
    "null": '"null"',
    "~": '"~"',
    "1e3": '"1e3"',
    "0x1f": '"0x1f"',
    "0x": "0x",
    "0b11": '"0b11"',
    "0o7": '"0o7"',
    "1_000": '"1_000"',
    "1:30": '"1:30"',
    ".5": '".5"',
    "1.": '"1."',
    "-.inf": '"-.inf"',
    ".NaN": '".NaN"',
    "2020-01-01": '"2020-01-01"',
    "e3": "e3",
    "1e": "1e",
    "a'b": "a'b",
    "'a'": "'''a'''",
    "a: b": "'a: b'",
    "- a": "'- a'",
    " a": "' a'",
    "*": "'*'",
    "x, y": "x, y",
    "a\tb": '"a\\tb"',
    "a\nb": "|-\n  a\n  b",
    "a\nb\n": "|\n  a\n  b",
    "a \nb": '"a \\nb"',
    "\na": "|2-\n\n  a",
}


@pytest.mark.parametrize(("text", "written"), WRITTEN.items())
def test_strings(text: str, written: str) -> None:
    assert dump({"k": text}) == f"k: {written}\n"
    assert load(dump({"k": text}))[0].raw == {"k": text}


def test_other_values() -> None:
    value: Json = {"a": [1, -2.5, 1e-7, True, None, {}, []], "true": [[1], [{"b": 2}]]}
    assert dump(value) == (
        "a:\n- 1\n- -2.5\n- 1e-07\n- true\n- null\n- {}\n- []\n"
        '"true":\n- - 1\n- - b: 2\n'
    )
    assert yaml.safe_load(dump({"a": value, "b": value})) is not None
    assert "&" not in dump({"a": value, "b": value})


def test_keys_are_naturally_sorted() -> None:
    keys = [
        "-",
        ".",
        "1",
        "9x",
        "10x",
        "A",
        "a",
        "a-1",
        "a.b",
        "a_1",
        "a0",
        "a00",
        "a1",
        "a1-",
        "a1.",
        "a01",
        "a2",
        "a10",
        "a1b",
        "a1c",
    ]
    keys += [
        "a010",
        "ab",
        "b1a2",
        "b1a10",
        "v1",
        "v10",
        "v1alpha",
        "v2",
        "x5",
        "x05",
        "x100",
        "x101",
    ]
    text = dump(dict.fromkeys(reversed(keys), 0))
    assert [line.split(":")[0].strip("\"'") for line in text.splitlines()] == keys


def test_long_numeric_keys_are_compared_as_int64() -> None:
    """Go truncates the number to 64 bits; ours must also accept 4,300 digits."""
    nines, eights = "9" * 5_000, "8" * 5_001
    assert set(yaml.safe_load(dump({nines: "a", eights: "b"}))) == {nines, eights}
    assert list(yaml.safe_load(dump({"a2": 1, "a18446744073709551617": 2}))) == [
        "a18446744073709551617",
        "a2",
    ]
