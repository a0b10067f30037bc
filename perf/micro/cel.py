"""Time CEL expressions on a Pod, and how long they take to compile and link.

Room: perf. Takes: nothing. Gives: microseconds per expression, printed.
May touch: nothing; run as ``python perf/micro/cel.py`` from the root.
"""

import sys
import timeit
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kyverno_mp.expr.cel import types  # noqa: E402 - needs the path above
from kyverno_mp.expr.cel.environment import Environment  # noqa: E402 - as above
from kyverno_mp.expr.cel.linking.program import (  # noqa: E402 - as above
    compile_expression,
    link_expression,
)
from kyverno_mp.expr.cel.values import Meter  # noqa: E402 - as above
from kyverno_mp.values.jsonvalue import Json  # noqa: E402 - as above

RUNS, ROUNDS = 20_000, 5
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
    "spec": {
        "containers": [
            {
                "name": name,
                "image": f"registry.example.com/{name}:1",
                "resources": {"limits": {"memory": "128Mi"}},
                "securityContext": {"privileged": False},
            }
            for name in ("web", "sidecar")
        ]
    },
}
EXPRESSIONS = (
    "object.metadata.name != 'x'",
    "has(object.metadata.labels) && object.metadata.labels.app == 'web'",
    """object.spec.containers.all(c, has(c.securityContext) &&
 c.securityContext.?privileged.orValue(false) == false)""",
    "object.spec.containers.all(c, c.image.startsWith('registry.example.com/'))",
    """(object.spec.containers + object.spec.?initContainers.orValue([])).all(c,
 has(c.resources.limits.memory) &&
 quantity(c.resources.limits.memory).isLessThan(quantity('1Gi')))""",
    "object.spec.containers.map(c, c.image.split(':')[1]).all(t, t != 'latest')",
    "object.spec.containers.all(c, c.image.matches('^registry[.]example[.]com/'))",
)
ENVIRONMENT = Environment({"object": types.DYN})


def _best_us(call: Callable[[], object], runs: int) -> float:
    return min(timeit.repeat(call, number=runs, repeat=ROUNDS)) / runs * 1e6


def _line(text: str) -> str:
    expression, _ = compile_expression(text, ENVIRONMENT)
    program = link_expression(expression, ("object",))
    assert program.evaluate([POD], Meter()) is True
    run = _best_us(lambda: program.evaluate([POD], Meter()), RUNS)
    build = _best_us(lambda: compile_expression(text, ENVIRONMENT), 100)
    link = _best_us(lambda: link_expression(expression, ("object",)), 100)
    shown = text.replace("\n", "")[:70]
    return f"{run:8.2f} {build:11.1f} {link:8.1f}  {shown}"


def main() -> None:
    """Print one line per expression."""
    print(f"{'run us':>8} {'compile us':>11} {'link us':>8}  expression")
    for text in EXPRESSIONS:
        print(_line(text))


if __name__ == "__main__":
    main()
