"""Test that the YAML of denial messages equals that of gopkg.in/yaml.v2 v2.4.0.

That library wrote ``goyaml_cases.json`` (``yaml.Marshal`` of a
``map[string]interface{}`` of ``map[string]string``); our emitter did not.
"""

import json
from pathlib import Path

import pytest

from kyverno_mp.values.go.goyaml import block_text, resolves, sorted_keys

CASES = json.loads((Path(__file__).parent / "goyaml_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_equals_yaml_v2(case: dict[str, object]) -> None:
    """Users' chainsaw tests compare denial messages, with line folds and quotes."""
    texts = case["texts"]
    assert isinstance(texts, dict)
    assert case["yaml"] == block_text(texts)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["rule10", "rule9", "rule1"], ["rule1", "rule9", "rule10"]),
        (["b", "a", "B"], ["B", "a", "b"]),
        (["a1", "aa", "a-"], ["a-", "a1", "aa"]),
        (["ab", "a"], ["a", "ab"]),
    ],
)
def test_keys_are_sorted_by_digits_and_letters(
    keys: list[str], expected: list[str]
) -> None:
    assert expected == sorted_keys(keys)


@pytest.mark.parametrize("text", ["0x" + "f" * 5000, "9" * 5000, "1e" + "9" * 5000])
def test_long_numbers_do_not_crash(text: str) -> None:
    """A message is user text and must not hit Python's limit for integer strings."""
    assert resolves(text) in {True, False}
