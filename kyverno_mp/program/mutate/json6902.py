"""Parse the texts of one patchesJson6902 and apply them.

Room: program.mutate. Takes: the text after substitution; an object. Gives: the patched
object. Next: program/mutate/patch.
May touch: nothing outside its arguments; some texts are cached, bounded.
Source: docs/behaviour/engine 7.4; Kyverno pkg/engine/mutate/patch/patchJSON6902.go.
"""

import msgspec

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath.yaml_text import decode_yaml
from kyverno_mp.limits import (
    PATCH_TEXT_BYTES_MAX,
    PATCH_TEXT_KEPT_BYTES_MAX,
    PATCH_TEXTS_KEPT_MAX,
)
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.values.json_equal import whole_numbers
from kyverno_mp.values.json_patch import Operation, apply_patch, check_operations
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import Spender

_PART_BYTES = 64


class JsonPatch:
    """Applies the texts that one patch of a policy resolves to."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # PERF: reading YAML takes longer than all other steps; a patch in a foreach has
        # as many texts as a list has indexes.
        self._known: dict[str, list[Operation]] = {}

    def knows(self, text: str) -> bool:
        """Return whether ``apply`` needs no scope for the text."""
        return text in self._known

    def apply(
        self, resource: Json, text: str, scope: RuleContext | None, spend: Spender
    ) -> Json:
        """Return the patched object. Raises: ExpressionFailed."""
        operations = self._known.get(text)
        if operations is None:
            assert scope is not None
            operations = check_operations(_read(text, scope), spend)
            if len(text) <= PATCH_TEXT_KEPT_BYTES_MAX:
                if len(self._known) >= PATCH_TEXTS_KEPT_MAX:
                    self._known.clear()
                self._known[text] = operations
        return apply_patch(resource, operations, spend)


def _read(text: str, scope: RuleContext) -> Json:
    """Parse a JSON patch: as JSON when it begins with a bracket, otherwise as YAML."""
    if len(text) > PATCH_TEXT_BYTES_MAX:
        raise ExpressionFailed(
            "mutate.patch",
            f"failed to decode patches: the text is over {PATCH_TEXT_BYTES_MAX} bytes",
        )
    if text.startswith("["):
        parts = text.count(",") + text.count("[") + text.count("{")
        scope.runtime.charge((len(text) >> 4) + parts)
        scope.runtime.charge_bytes(len(text) + _PART_BYTES * parts)
        try:
            return whole_numbers(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise ExpressionFailed(
                "mutate.patch", "failed to decode patches: invalid state detected"
            ) from error
    try:
        return whole_numbers(decode_yaml(text, scope.runtime.charge))
    except ExpressionFailed as error:
        raise ExpressionFailed(
            error.code, f"failed to convert patchesJSON6902 to JSON: {error.message}"
        ) from error
