"""Recognise files and documents in a repository that are not policies.

Room: cli. Takes: file names, raw documents. Gives: their kind, "" for a policy.
Next: policies, cli/lint/command. May touch: names of files (Chart.yaml beside a
folder of templates).
Source: Helm, "Charts" (the layout of a chart); docs/behaviour/cli 4.
"""

from pathlib import Path
from typing import Final

from kyverno_mp.policy.reading.decode import KINDS
from kyverno_mp.values.jsonvalue import Json

_GROUPS: Final = ("kyverno.io", "policies.kyverno.io")
_OURS: Final = ("cli.kyverno.io", "json.kyverno.io", "chainsaw.kyverno.io")
"""API groups of files for other commands, which have no findings."""
_ADMISSION: Final = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")


def is_template(file: str) -> bool:
    """Return whether the file is a template of a Helm chart, which is not YAML."""
    path = Path(file)
    return any(
        parent.name == "templates" and (parent.parent / "Chart.yaml").is_file()
        for parent in path.parents
    )


def is_input_of_another_command(raw: Json) -> bool:
    """Return whether the document is input of another command, such as a test."""
    return _group_of(raw) in _OURS


def foreign_kind(raw: Json) -> str:
    """Return the kind of a document that cannot be a policy, else ""."""
    if type(raw) is not dict:
        return "a document that is not an object"
    kind, api_version = raw.get("kind"), raw.get("apiVersion")
    if type(kind) is not str or not kind:
        is_policy = _group_of(raw) in _GROUPS
        return "" if is_policy else "a document without a kind"
    if kind in KINDS or _group_of(raw) in _GROUPS or kind.startswith(_ADMISSION):
        return ""
    return f"{api_version} {kind}" if type(api_version) is str else kind


def _group_of(raw: Json) -> str:
    api_version = raw.get("apiVersion") if type(raw) is dict else None
    return api_version.rpartition("/")[0] if type(api_version) is str else ""
