"""Declare ``cleanup``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cleanup.py.
Source: docs/cleanup.md (preview).
"""

from typing import Any

from kyverno_mp.cli.commands.declare import Example
from kyverno_mp.cli.commands.preview import preview_command


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.cleanup import COMMAND

    return COMMAND.run(**flags)


command = preview_command(
    "cleanup",
    (
        Example("Preview a stored policy", "cleanup --cluster old-pods"),
        Example("Preview a file", "cleanup --cluster policy.yaml --output json"),
    ),
    callback=_run,
    namespace_help="Namespace of Kyverno's ConfigMap with the resourceFilters.",
    summary="Shows which objects of a cluster clean-up policies and DeletingPolicies"
    " would delete now, and deletes nothing.",
)
