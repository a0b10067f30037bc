"""``python -m tests.e2e.chainsaw``: which cases run here, and what the others miss.

With capabilities as arguments: the ids of the cases that miss only those.
"""

import sys
from collections import Counter
from collections.abc import Sequence

from tests.e2e.chainsaw.index import PRESENT, all_cases


def main(arguments: Sequence[str]) -> int:
    """Print a table: cases that miss a capability at all, and that miss it alone."""
    if not PRESENT:
        print("no conformance data beside the project", file=sys.stderr)
        return 1
    cases = all_cases()
    if arguments:
        asked = set(arguments)
        for case in cases:
            if set(case.missing) <= asked:
                print(case.id)
        return 0
    touched = Counter(one for case in cases for one in case.missing)
    alone = Counter(case.missing[0] for case in cases if len(case.missing) == 1)
    passed = sum(case.verdict is True for case in cases)
    print(f"{len(cases)} cases, {passed} pass with the real program on such a cluster")
    print(f"{sum(not case.missing for case in cases)} run here")
    print(f"{'cases':>6} {'alone':>6}  missing")
    for name, count in touched.most_common():
        print(f"{count:>6} {alone[name]:>6}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
