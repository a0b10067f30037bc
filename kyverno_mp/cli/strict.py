"""Read the CLI's own small files (Values, UserInfo, Test) without accepting typos.

Room: cli. Takes: YAML text and the allowed fields. Gives: dicts. Next: values_file, ...
May touch: files named by the user. Source: spec/cli.md 6, 15.
"""

from collections.abc import Mapping
from pathlib import Path

from kyverno_mp.cli.errors import CommandFailed, not_read
from kyverno_mp.errors import Error
from kyverno_mp.policy.load import load
from kyverno_mp.values.jsonvalue import Json


def read_documents(path: Path) -> list[Json]:
    """Return the documents of a YAML or JSON file; raises CommandFailed."""
    try:
        return [doc.raw for doc in load(path.read_bytes(), file=str(path))]
    except OSError as error:
        raise CommandFailed(not_read(error, path)) from error
    except Error as error:
        line = f"line {error.where.line}: " if error.where.line else ""
        raise CommandFailed(f"{path}: {line}{error.message}") from error


def check_fields(raw: Json, allowed: Mapping[str, type], where: str) -> dict[str, Json]:
    """Return ``raw`` as a dict; raises CommandFailed on unknown fields or types."""
    if not isinstance(raw, dict):
        raise CommandFailed(f"{where}: expected a map, got {type(raw).__name__}")
    for key, value in raw.items():
        if key not in allowed:
            raise CommandFailed(f'{where}: unknown field "{key}"')
        if value is not None and not isinstance(value, allowed[key]):
            raise CommandFailed(
                f"{where}.{key}: expected {allowed[key].__name__},"
                f" got {type(value).__name__}"
            )
    return {key: value for key, value in raw.items() if value is not None}


def check_map(value: Json, where: str) -> dict[str, Json]:
    """Return ``value`` as a dict; raises CommandFailed."""
    if not isinstance(value, dict):
        raise CommandFailed(f"{where}: expected a map, got {type(value).__name__}")
    return value


def check_maps(values: Json, where: str) -> list[dict[str, Json]]:
    """Return ``values`` as a list of maps; raises CommandFailed."""
    if values is None:
        return []
    if not isinstance(values, list):
        raise CommandFailed(f"{where}: expected a list, got {type(values).__name__}")
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise CommandFailed(
                f"{where}[{index}]: expected a map, got {type(value).__name__}"
            )
    return values


def check_texts(values: Json, where: str) -> list[str]:
    """Return ``values`` as a list of texts; raises CommandFailed."""
    if not isinstance(values, list):
        raise CommandFailed(f"{where}: expected a list, got {type(values).__name__}")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise CommandFailed(
                f"{where}[{index}]: expected a text, got {type(value).__name__}"
            )
    return values
