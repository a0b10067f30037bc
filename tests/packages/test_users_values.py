"""What users of Kyverno's chart set is installed, or refused with the reason.

A failure means: an upgrade to this chart loses a part of somebody's configuration.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kyverno_mp.settings.upstream import FLAG_OF, translate
from tests.packages.rendered import documents_of
from tests.packages.test_chart import container
from tests.packages.test_every_value import merged, rendered

pytestmark = pytest.mark.timeout(1200)
FILE: Final = Path(__file__).parent / "users-values.yaml"
ROWS: Final[list[dict[str, Any]]] = yaml.safe_load(FILE.read_text())


def at(value: Any, path: str) -> Any:
    """Return the part of an object at a path, None if there is none."""
    for word in path.split("."):
        if isinstance(value, list):
            value = value[int(word)] if int(word) < len(value) else None
        else:
            value = (value or {}).get(word)
    return value


@pytest.mark.parametrize("row", ROWS, ids=[row["of"] for row in ROWS])
def test_values_of_users(helm: str, row: dict[str, Any]) -> None:
    done = rendered(helm, merged({"crds": {"install": False}}, row["values"]))
    if "refused" in row:
        assert row["refused"] in done.stderr
        return
    assert done.returncode == 0, done.stderr
    found = documents_of(done.stdout)
    names = {f"{kind} {name}" for kind, name in found}
    assert set(row.get("has", ())) <= names
    assert not set(row.get("lacks", ())) & names
    for place, expected in row.get("is", {}).items():
        kind, name, path = place.split(" ")
        assert at(found[kind, name], path) == expected, place
    pod = container(found)
    assert set(row.get("flags", ())) <= set(pod["args"])
    variables = {one["name"]: one.get("value") for one in pod["env"]}
    assert variables.items() >= row.get("env", {}).items()
    assert len(variables) == len(pod["env"])


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "flags" in row], ids=lambda row: row["of"]
)
def test_flags_are_known(row: dict[str, Any]) -> None:
    """The program ends at an unknown flag, and warns of one without effect."""
    given = [tuple(flag.removeprefix("--").split("=", 1)) for flag in row["flags"]]
    assert {name for name, _ in given} <= set(FLAG_OF)
    done = translate((name, value) for name, value in given)
    assert (done.problems, done.warnings) == ((), ())
