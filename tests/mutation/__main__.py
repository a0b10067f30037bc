"""Change the code in small ways, and list the changes that no test notices.

``python -m tests.mutation --seed 2026-01-31``: the same seed and the same code give the
same mutants. The exit code is 1 if a survivor is not in survivors.yaml, and 2 if the
run failed. ``--report`` names a file without its suffix for the list as Markdown and as
JSON.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from tests.mutation.mutants import Mutant, draw, draw_files
from tests.mutation.run import NO_TESTS, SURVIVED, Unusable, run

ROOT: Final = Path(__file__).resolve().parents[2]
KNOWN: Final = Path(__file__).with_name("survivors.yaml")
ROOMS: Final = [
    "kyverno_mp/program/**/*.py",
    "kyverno_mp/expr/**/*.py",
    "kyverno_mp/webhook/**/*.py",
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run."""

    seed: str
    tried: int
    survivors: list[Mutant]
    new: list[Mutant]

    def lines(self) -> list[str]:
        """Return the report, as Markdown."""
        killed = self.tried - len(self.survivors)
        share = 100 * killed / self.tried if self.tried else 0
        head = f"# Mutants, seed {self.seed}"
        score = (
            f"{killed} of {self.tried} noticed ({share:.0f} %), "
            f"{len(self.survivors)} survived, {len(self.new)} of them new."
        )
        return [
            head,
            "",
            score,
            "",
            *[_line(each, self.new) for each in self.survivors],
        ]


def _line(mutant: Mutant, new: list[Mutant]) -> str:
    state = "new" if mutant in new else "known"
    where = f"{mutant.file} {mutant.function}"
    return f"- {state}: {where}\n  - `{mutant.before}`\n  - `{mutant.after}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 = no new survivor, 1 = new survivors, 2 = the run failed."""
    args = _parse(arguments)
    files = draw_files(ROOT, args.only or ROOMS, args.seed, args.files)
    mutants = draw(ROOT, files, args.seed, args.count)
    try:
        codes = run(ROOT, mutants, args.seconds)
    except Unusable as error:
        print(error)
        return 2
    tried = [mutant for mutant in mutants if codes[mutant.name] is not None]
    survivors = [m for m in tried if codes[m.name] in (SURVIVED, NO_TESTS)]
    known = known_keys(KNOWN)
    new = [mutant for mutant in survivors if mutant.key not in known]
    outcome = Outcome(args.seed, len(tried), survivors, new)
    text = "\n".join([*outcome.lines(), ""])
    print(text)
    if args.report:
        args.report.with_suffix(".md").write_text(text)
        args.report.with_suffix(".json").write_text(
            json.dumps(asdict(outcome), indent=2)
        )
    if not tried:
        return 2
    return 1 if new else 0


def known_keys(path: Path) -> set[tuple[str, str, str, str]]:
    """Return the survivors that were reviewed before."""
    return {
        (each["file"], each["function"], each["before"], each["after"])
        for each in yaml.safe_load(path.read_text())
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    today = datetime.now(tz=UTC).date().isoformat()
    parser.add_argument("--seed", default=today, help="default: the date")
    parser.add_argument("--count", type=int, default=100, help="mutants at most")
    parser.add_argument("--files", type=int, default=12, help="files they are from")
    parser.add_argument(
        "--seconds", type=int, default=1200, help="for the mutants of each room"
    )
    parser.add_argument("--only", nargs="+", metavar="GLOB", help="files to draw from")
    parser.add_argument("--report", type=Path, help="file to write, without suffix")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
