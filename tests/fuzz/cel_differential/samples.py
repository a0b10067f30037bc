"""Read the odd values of every type of CEL, and the variables of a run.

``samples.yaml`` contains them as expressions, or as texts for the functions that parse
them.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import yaml

_FILE = Path(__file__).parent / "samples.yaml"
POOLS: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
OBJECT = POOLS["object"]


def variables(random: Random) -> str:
    """Return the JSON of one set of variables."""
    return json.dumps({"object": OBJECT, "x": random.choice(POOLS["x"])})
