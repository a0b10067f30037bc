"""Install the CustomResourceDefinitions of config/crds/ and wait for them.

Each module of tests does so. The API server takes seconds of CPU time to apply all of
them, so those that nobody changed since are left alone.

Takes: a connection. Gives: their names. May touch: the cluster.
"""

import functools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.api import Api
from tests.waiting import wait_for

FOLDER: Final = Path(__file__).resolve().parents[2] / "config" / "crds"
_COLLECTION: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


_UNCHANGED: Final[dict[tuple[str, str], tuple[int, Any]]] = {}
"""(Server, uid) -> generation, and the definition that the object has."""


def install_crds(api: Api, folder: Path = FOLDER) -> list[str]:
    """Apply every definition on the server side; return when all are served."""
    now = {one["name"]: one for one in api.metadata(_COLLECTION)}
    definitions = {one["metadata"]["name"]: one for one in _definitions(folder)}
    known = {
        name: _UNCHANGED.get((api.server, one["uid"])) for name, one in now.items()
    }
    changed = {
        name: definition
        for name, definition in definitions.items()
        if name not in now or known[name] != (now[name]["generation"], definition)
    }
    for name, definition in changed.items():
        address = f"{_COLLECTION}/{name}?fieldManager=e2e&force=true"
        applied = api.patch(address, definition, "apply")["metadata"]
        _UNCHANGED[api.server, applied["uid"]] = applied["generation"], definition
    for name in changed:
        wait_for(partial(_is_established, api, name))
    return list(definitions)


def note_crds(api: Api, folder: Path = FOLDER) -> None:
    """Take the definitions as installed: this cluster started with them."""
    definitions = {one["metadata"]["name"]: one for one in _definitions(folder)}
    for found in api.metadata(_COLLECTION):
        known = found["generation"], definitions[found["name"]]
        _UNCHANGED[api.server, found["uid"]] = known


@functools.cache
def _definitions(folder: Path) -> tuple[Any, ...]:
    return tuple(_read(folder))


def _read(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.rglob("*.yaml")):
        for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if one and one.get("kind") == "CustomResourceDefinition":
                one.pop("status", None)
                yield one


def _is_established(api: Api, name: str) -> bool:
    # K8S: a new definition has no status, or one whose conditions are null.
    status = api.get(f"{_COLLECTION}/{name}").get("status") or {}
    return any(
        one["type"] == "Established" and one["status"] == "True"
        for one in status.get("conditions") or ()
    )
