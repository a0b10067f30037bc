"""Declare ``generate``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: generate.py.
Source: docs/background.md (preview).
"""

from typing import Any

from kyverno_mp.cli.commands.declare import Example
from kyverno_mp.cli.commands.preview import preview_command


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the client.
    from kyverno_mp.cli.generate import COMMAND

    return COMMAND.run(**flags)


command = preview_command(
    "generate",
    (
        Example("Preview a stored policy", "generate --cluster add-quota"),
        Example("Preview a file", "generate --cluster policy.yaml --output json"),
    ),
    callback=_run,
    namespace_help="Namespace of Kyverno, which contains the record of generate rules.",
    summary="Shows which objects of a cluster generate rules and GeneratingPolicies"
    " would create, update and delete now if each trigger changed, with the"
    " differences, and writes nothing."
    " Values of Secrets are hidden.",
)
