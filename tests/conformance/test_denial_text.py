"""Our emitter reproduces every denial text of the real webhook byte for byte.

The recorded text is parsed with an independent YAML parser, and our emitter writes the
resulting map.
"""

import json
from collections.abc import Iterator

import pytest
import yaml

from kyverno_mp.admission.denial import denial
from kyverno_mp.program.request import Request
from kyverno_mp.values.go.goyaml import block_text
from tests.conformance.place import ABSENT, PRESENT, ROOT


def recorded_denials() -> Iterator[tuple[str, str]]:
    """Yield (resource, text) of all recorded blocks, without duplicates."""
    seen = set()
    for path in sorted(ROOT.rglob("webhook.json")):
        for review in json.loads(path.read_bytes())["reviews"]:
            for answer in review["answers"].values():
                text = answer["response"].get("status", {}).get("message", "")
                if text.startswith("\n\nresource ") and text not in seen:
                    seen.add(text)
                    yield text.split()[1], text


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
def test_denial_texts_equal_the_recorded_ones() -> None:
    """The folding and quoting of yaml.v2 are part of Kyverno's contract (2.8)."""
    count = 0
    for resource, text in recorded_denials():
        body = text.split("policies \n\n", 1)[1]
        # BaseLoader: every scalar is a string, as in Go's map[string]string.
        failures = yaml.load(body, Loader=yaml.BaseLoader)
        kind, namespace, name = resource.split("/")
        named = {"metadata": {"name": name}}
        request = Request(kind=kind, namespace=namespace, object=named)
        assert text == denial(request, block_text(failures))
        count += 1
    assert count > 700
