"""The README's generated tables equal the code. Red here means: the README lies.

`python -m tests.unit.test_readme` writes the tables into the README.
"""

import re
from pathlib import Path

from kyverno_mp.settings.table import table as settings_table
from kyverno_mp.settings.upstream import table as flags_table
from kyverno_mp.settings.upstream import variable_table
from kyverno_mp.telemetry.families import table as metrics_table
from kyverno_mp.webhook.http_errors import table as refusals_table

README = Path(__file__).resolve().parents[2] / "README.md"
TABLES = {
    "settings": settings_table,
    "metrics": metrics_table,
    "flags": flags_table,
    "variables": variable_table,
    "refusals": refusals_table,
}


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


def test_tables_equal_code() -> None:
    text = README.read_text()
    for name, render in TABLES.items():
        found = _section(name).search(text)
        assert found is not None
        assert render().strip() == found[2].strip()


def _write() -> None:
    text = README.read_text()
    for name, render in TABLES.items():
        text = _section(name).sub(
            lambda m, r=render: f"{m[1]}{r().strip()}\n{m[3]}",  # type: ignore[misc]  # a lambda has no annotations
            text,
        )
    README.write_text(text)


if __name__ == "__main__":
    _write()
