"""Count the policies of a library that ``fix policy --to`` moves, and why others stay.

``python -m tests.conformance.moved [FOLDER]``: a checkout of kyverno/policies, by
default the policies of the conformance data. Prints, by rule type, the files and
documents that are moved, the generated requests on which both decide alike, the
policies whose versions disagree, and what is in the way of the others. May touch:
standard output.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kyverno_mp.cli.fix.to_cel import CLEANUP, REWRITTEN, Rewrite, rewrite
from tests.conformance.place import ROOT

Json = Any
_TYPES = ("validate", "mutate", "generate", "verifyImages")
_BODIES = ("cel", "deny", "foreach", "podSecurity", "pattern", "anyPattern")
_SPECIAL = re.compile(r"'[^']*'|\{\{.*\}\}|(?<=kind )\S+|(?<=entry )\S+")


def policies_in(folder: Path) -> Iterator[tuple[Path, Json]]:
    """Yield the policies of a library, without those of its tests."""
    for path in sorted(folder.rglob("*.yaml")):
        below = path.relative_to(folder)
        if any(part.startswith(".") for part in below.parts):
            continue
        for raw in yaml.safe_load_all(path.read_text()):
            if type(raw) is dict and raw.get("kind") in REWRITTEN:
                yield below, raw


def type_of(raw: Json) -> str:
    """Return the type of a policy's rules."""
    found = set()
    if raw["kind"] in CLEANUP:
        return "clean-up"
    for rule in raw["spec"].get("rules") or ():
        for name in _TYPES:
            if name in rule:
                found.add(
                    next(
                        (f"{name}.{one}" for one in _BODIES if one in rule[name]), name
                    )
                )
    return found.pop() if len(found) == 1 else "several types"


def reason_of(outcome: Rewrite) -> str:
    """Return what is in the way, without names of the policy."""
    if outcome.differences:
        return "requests with different decisions"
    return _SPECIAL.sub("...", outcome.reason.partition(": ")[2] or outcome.reason)


def main() -> int:
    """Print the counts."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "policies"
    documents: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    files: dict[Path, bool] = {}
    requests = disagreements = 0
    for path, raw in policies_in(folder.resolve()):
        outcome = rewrite(raw)
        kind = type_of(raw)
        documents[kind] += 1
        files[path] = files.get(path, True) and bool(outcome.documents)
        if not outcome.documents:
            reasons[reason_of(outcome)] += 1
            disagreements += bool(outcome.differences)
            continue
        moved[kind] += 1
        requests += outcome.requests
    for kind, count in documents.most_common():
        print(f"{moved[kind]:5} of {count:3} {kind}")
    print(f"{sum(moved.values()):5} of {sum(documents.values())} documents")
    print(f"{sum(files.values()):5} of {len(files)} files")
    print(f"{requests} generated requests; {disagreements} policies disagree")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
