"""Read the objects that a step names: files or an inline resource.

Takes: an operation's fields, the test's folder. Gives: plain objects; lists are split
into their items. May touch: files of the test.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.chainsaw.expressions import Names, fill
from tests.e2e.chainsaw.read import Unreadable

_WILDCARDS: Final = frozenset("*?[")


def read_objects(
    fields: Mapping[str, Any], folder: Path, names: Names
) -> list[dict[str, Any]]:
    """Return the objects of ``file`` or ``resource`` as written."""
    raw: list[dict[str, Any]] = []
    if "resource" in fields:
        raw = [fields["resource"]]
    else:
        for path in _paths(folder, fill(fields["file"], names)):
            raw.extend(_load(path))
    return [item for one in raw for item in _taken_apart(one)]


def _paths(folder: Path, name: str) -> list[Path]:
    if not _WILDCARDS & set(name):
        return [folder / name]
    return sorted(folder.glob(name))


def _load(path: Path) -> list[dict[str, Any]]:
    try:
        # Read as by kubectl and chainsaw: the last line has a line end, too.
        text = path.read_text().removesuffix("\n") + "\n"
        return [one for one in yaml.load_all(text, Loader=_Loader) if one]
    except (OSError, yaml.YAMLError) as error:
        raise Unreadable(f"{path}: {error}") from error


def _taken_apart(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Yield the items of a list.

    K8S: any object with ``items`` is a list, whatever its kind.
    """
    items = raw.get("items")
    return items if isinstance(items, list) else [raw]


class _Loader(yaml.CSafeLoader):
    """A loader that keeps dates as strings, because JSON has no dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if "timestamp" not in tag]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
