"""Install the CustomResourceDefinitions of config/crds/ and wait for them.

Takes: a connection. Gives: their names. May touch: the cluster.
"""

import time
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.api import Api

FOLDER: Final = Path(__file__).resolve().parents[2] / "config" / "crds"
ESTABLISHED_S: Final = 30.0
_COLLECTION: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(api: Api) -> list[str]:
    """Apply every definition on the server's side; returns when all are served."""
    names = []
    for path in sorted(FOLDER.glob("*.yaml")):
        definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
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


def _is_established(api: Api, name: str) -> bool:
    status = api.get(f"{_COLLECTION}/{name}").get("status", {})
    return any(
        one["type"] == "Established" and one["status"] == "True"
        for one in status.get("conditions", ())
    )
