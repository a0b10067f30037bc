"""Install the CustomResourceDefinitions of config/crds/ and wait for them.

Takes: a connection. Gives: their names. May touch: the cluster.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.api import Api

FOLDER: Final = Path(__file__).resolve().parents[2] / "config" / "crds"
ESTABLISHED_S: Final = 30.0
_COLLECTION: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(api: Api, folder: Path = FOLDER) -> list[str]:
    """Apply every definition on the server side; return when all are served."""
    names = []
    for definition in _definitions(folder):
        name = definition["metadata"]["name"]
        names.append(name)
        address = f"{_COLLECTION}/{name}?fieldManager=e2e&force=true"
        api.patch(address, definition, "apply")
    deadline = time.monotonic() + ESTABLISHED_S
    for name in names:
        while not _is_established(api, name):
            assert time.monotonic() < deadline, f"{name} is not established"
            time.sleep(0.05)
    return names


def _definitions(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.rglob("*.yaml")):
        for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if one and one.get("kind") == "CustomResourceDefinition":
                one.pop("status", None)
                yield one


def _is_established(api: Api, name: str) -> bool:
    status = api.get(f"{_COLLECTION}/{name}").get("status", {})
    return any(
        one["type"] == "Established" and one["status"] == "True"
        for one in status.get("conditions", ())
    )
