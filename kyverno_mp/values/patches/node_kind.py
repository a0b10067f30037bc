"""Report a part of a patch or an object with the wrong node kind, with kyaml's text.

Room: values. Takes: the expected kind, the actual value. Gives: ExpressionFailed.
Next: strategic_merge, merge_list, program/mutate/anchors.
Source: kustomize kyaml yaml/rnode.go (ErrorIfInvalid); the real program's messages.
"""

import json
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import whole_numbers

MAPPING: Final = "MappingNode"
SEQUENCE: Final = "SequenceNode"
_SHOWN_CHARACTERS_MAX: Final = 16_384
"""The maximum length of a message, to keep it readable; upstream has no limit."""


def node_kind(value: Json) -> str:
    """Return the name of a value's YAML node kind."""
    if type(value) is dict:
        return MAPPING
    return SEQUENCE if type(value) is list else "ScalarNode"


def wrong_kind_text(expected: str, got: Json) -> str:
    """Return the text, which ends with the actual value as one line of YAML."""
    contents = json.dumps(whole_numbers(got), ensure_ascii=False)
    contents = contents[:_SHOWN_CHARACTERS_MAX]
    kinds = f"expected {expected} but got {node_kind(got)}"
    return f"wrong node kind: {kinds}: node contents:\n{contents}\n"


def wrong_kind(expected: str, got: Json) -> ExpressionFailed:
    """Return the error for a value with the wrong node kind."""
    return ExpressionFailed("merge.kind", wrong_kind_text(expected, got))
