"""List and run the chainsaw cases that lie beside the project.

``list``: a table of what the cases miss. ``list CAPABILITY...``: the ids of the cases
that miss only those. ``run ID...``: run cases on the cluster that KUBECONFIG names and
compare with the real program's verdicts; an id may be the beginning of many, and
``--only-missing`` leaves out what misses more than the capabilities after it.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kyverno_mp.errors import Error
from tests.conformance.place import ABSENT, PRESENT
from tests.e2e.api import Api, Refused
from tests.e2e.binaries import find_kubectl
from tests.e2e.chainsaw.commands import command_environment
from tests.e2e.chainsaw.documents import Failed
from tests.e2e.chainsaw.index import FOREIGN_CRDS, Case, all_cases, stage
from tests.e2e.chainsaw.read import Unreadable, read_test
from tests.e2e.chainsaw.run import run_test
from tests.e2e.chainsaw.sweep import sweep
from tests.e2e.crds import install_crds
from tests.e2e.kubeconfig import read_kubeconfig

_VERDICTS = {True: "passes", False: "fails", None: "not run"}


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("capability", nargs="*")
    running = commands.add_parser("run")
    running.add_argument("id", nargs="*", default=[""])
    running.add_argument("--only-missing", nargs="*", metavar="CAPABILITY")
    running.add_argument("--patience", type=float, default=math.inf, metavar="SECONDS")
    asked = parser.parse_args(arguments)
    if not PRESENT:
        print(ABSENT, file=sys.stderr)
        return 1
    if asked.command == "run":
        return _run(_chosen(tuple(asked.id), asked.only_missing), asked.patience)
    if asked.capability:
        _list_missing_only(set(asked.capability))
    else:
        _print_table()
    return 0


def _list_missing_only(capabilities: set[str]) -> None:
    for case in all_cases():
        if set(case.missing) <= capabilities:
            print(case.id)


def _print_table() -> None:
    cases = all_cases()
    touched = Counter(one for case in cases for one in case.missing)
    alone = Counter(case.missing[0] for case in cases if len(case.missing) == 1)
    passed = sum(case.verdict is True for case in cases)
    print(f"{len(cases)} cases, {passed} pass with the real program on such a cluster")
    print(f"{sum(not case.missing for case in cases)} run here")
    print(f"{'cases':>6} {'alone':>6}  missing")
    for name, count in touched.most_common():
        print(f"{count:>6} {alone[name]:>6}  {name}")


def _run(cases: Iterable[Case], patience_s: float) -> int:
    kubeconfig = Path(os.environ["KUBECONFIG"])
    outcomes: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Api(read_kubeconfig(kubeconfig)) as api,
    ):
        install_crds(api, FOREIGN_CRDS)
        environment = command_environment(
            kubeconfig, find_kubectl(), Path(folder) / "bin"
        )
        for case in cases:
            sweep(api)
            began = time.monotonic()
            test = stage(case, Path(folder) / "cases")
            wrong = _wrong(test, patience_s, api, environment)
            seconds = time.monotonic() - began
            outcome = "FAIL" if wrong else "pass"
            outcomes[f"{outcome}, real program {_VERDICTS[case.verdict]}"] += 1
            print(f"{outcome} {seconds:5.1f}s {case.id} {wrong[:500]}", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:>5} {outcome}")
    return 1 if outcomes["FAIL, real program passes"] else 0


def _chosen(
    prefixes: tuple[str, ...], capabilities: Sequence[str] | None
) -> Iterable[Case]:
    """Yield the cases of these ids that miss only the named capabilities."""
    for case in all_cases():
        fits = capabilities is None or set(case.missing) <= set(capabilities)
        if fits and case.id.startswith(prefixes):
            yield case


def _wrong(test: Path, patience_s: float, api: Api, environment: dict[str, str]) -> str:
    """Return why a case fails; "" when it passes."""
    try:
        run_test(read_test(test, patience_s), api, environment)
    except (Failed, Refused, Unreadable, Error) as error:
        return str(error) or type(error).__name__
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
