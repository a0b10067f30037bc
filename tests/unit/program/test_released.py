"""Rules are freed with their last reference, in every rule language.

A failure means: a linked rule is part of a reference cycle, so a replaced snapshot
stays in memory until the garbage collector visits every object of a worker. This blocks
all reviews: for two seconds with ten thousand policies.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.program.rule import LinkedRule
from tests.faults.attacks import ATTACKS
from tests.fuzz.bench import Bench, pod

ROOT = Path(__file__).resolve().parents[3]
FILES = [
    ROOT / "tests/fuzz/language.yaml",
    *sorted((ROOT / "config/samples").glob("[cp]*/*.yaml")),
]
TEXTS = {path.stem: path.read_text() for path in FILES} | {
    name: attack.policy for name, attack in ATTACKS.items()
}
OBJECTS: list[dict[str, Any]] = [pod(), pod(hostNetwork=True, xs=[1, "a", ["b"], {}])]
PATHS = (b"/validate/fail", b"/validate/ignore", b"/mutate/fail", b"/mutate/ignore")


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    # The objects of other tests: each collection below would visit all of them.
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", TEXTS)
def test_rules_create_no_garbage(name: str) -> None:
    bench = Bench(TEXTS[name])
    # Objects that reviews create from the rules are included.
    for path in PATHS:
        for given in OBJECTS:
            bench.ask(given, path)
    # Left over from reading the policies.
    gc.collect()
    linked = _linked()
    del bench
    assert _linked() == 0
    assert gc.collect() == 0
    assert linked or all("validate" not in rule for rule in _rules(TEXTS[name]))


def _linked() -> int:
    return sum(type(each) is LinkedRule for each in gc.get_objects())


def _rules(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for document in yaml.safe_load_all(text):
        found += document["spec"].get("rules", [])
    return found
