"""Compare strategic merges of ill-typed objects with those of the real program.

A failure means: null, a scalar or a map where a list belongs, or a list of mixed
elements, is merged, rejected or reported in another way than upstream does. The answers
in ``ill_typed.json`` are those of Kyverno 1.18.2's own merge, except for what it does
to lists that the patch does not name, which stay here, and to empty maps of the patch,
which it drops: these answers are those of the merge that Kyverno calls (kustomize's
merge2 0.21.1, given the same patch), so an empty map for a text is its error.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import InputError
from kyverno_mp.program.mutate.strategic import StrategicPatch

_CASES = json.loads(Path(__file__).with_name("ill_typed.json").read_text())


@pytest.mark.parametrize("case", _CASES)
def test_answer_equals_kyvernos(case: dict[str, Any]) -> None:
    """The input object must not change either."""
    given = copy.deepcopy(case["resource"])
    patch = StrategicPatch(case["patch"], has_holes=False)
    found: dict[str, Any] = {}
    try:
        found["result"] = patch.apply(given, ())
    except InputError as error:
        found["error"] = error.message
    wanted = {key: case[key] for key in ("result", "error") if key in case}
    assert _as_read(found) == _as_read(wanted)
    assert given == case["resource"]


def _as_read(value: Any) -> Any:
    """Return the value with ints (not booleans) as floats: JSON has one number type."""
    if isinstance(value, dict):
        return {key: _as_read(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_read(item) for item in value]
    return float(value) if type(value) is int else value
