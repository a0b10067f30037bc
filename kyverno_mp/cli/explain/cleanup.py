"""Describe compiled clean-up policies for ``explain``.

Room: cli. Takes: CleanupIRs. Gives: the records that ``explain`` prints. Next: explain.
Source: docs/behaviour/controllers 1.3, 7.
"""

from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.values.jsonvalue import Json


def describe_cleanup(
    ir: CleanupIR, kinds: list[str], words: tuple[tuple[int, str], ...]
) -> dict[str, Json]:
    """Return a clean-up policy in the format of other policies, as one rule.

    ``kinds``: kinds that ``match`` names; ``words``: each effect with its name.
    """
    effects = effects_of((ir.match, ir.exclude, ir.context, ir.conditions))
    return {
        "policy": ir.policy.key,
        "kind": ir.policy.kind,
        "failurePolicy": "",
        "background": ir.policy.background,
        "admission": ir.policy.admission,
        "rules": [
            {
                "name": ir.policy.name,
                "body": f"schedule {ir.schedule}",
                "autogen": False,
                "kinds": kinds,
                "operations": [],
                "namespaces": [ir.policy.namespace] if ir.policy.namespace else [],
                "action": "delete",
                "overrides": False,
                "context": [entry.name for entry in ir.context],
                "effects": [word for bit, word in words if effects & bit] or ["pure"],
                "exceptions": [],
                "notEvaluated": "",
            }
        ],
    }
