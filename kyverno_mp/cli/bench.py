"""``bench``: measure how long a policy set takes for each object.

Room: cli. Takes: policies and objects, from files or a cluster. Gives: the time of all
policies per object, and of each rule alone, the slowest first; as tables or JSON. Next:
cli/apply/evaluate.py.
May touch: files named by the user, the API server with ``--cluster``, standard output,
the clock.

The time of a rule is its time when it runs alone, minus the cost of an object without
any policy. The sum over all rules exceeds the time of the set, which evaluates equal
conditions once.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator, Response, resource_path
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.output.counted import counted
from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import Compiled, compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.resources import load_resources
from kyverno_mp.cli.sources.values_file import Values, load_values
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.cli.cluster.bench_input import Source

_ROUNDS_MIN: Final = 3
"""The first of these rounds links the rules and fills caches; it is not counted."""
_NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds per object; ``slowest`` names the object with the longest time."""

    mean_us: float
    median_us: float
    max_us: float
    slowest: str

    def without(self, base: "Times") -> "Times":
        """Subtract the cost of an object without any policy."""

        def rest(mine: float, its: float) -> float:
            return round(max(0.0, mine - its), 1)

        return Times(
            rest(self.mean_us, base.mean_us),
            rest(self.median_us, base.median_us),
            rest(self.max_us, base.median_us),
            self.slowest,
        )


@dataclass(frozen=True, slots=True)
class RuleTimes:
    """Times of one rule that ran alone; ``matched``: number of matched objects."""

    policy: str
    rule: str
    matched: int
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags, as click parsed them."""

    policies: tuple[str, ...]
    resources: tuple[str, ...]
    cluster: bool
    kubeconfig: str
    context: str
    namespace: str
    values_file: str
    seconds: float
    top: int
    output: str


@dataclass(frozen=True, slots=True)
class _Input:
    """The input of a measurement; ``policies`` have at least one rule."""

    policies: Sequence[CompiledPolicy]
    objects: Sequence[dict[str, Json]]
    values: Values
    cluster_data: ClusterData


def called(**flags: Any) -> int:
    """Run the command with the flags that click parsed."""
    options = Options(**flags)
    _check(options)
    if not options.cluster:
        return _run(options, _of_files(options))
    # Imported late: the client takes 60 ms, and only --cluster needs it.
    from kyverno_mp.cli.cluster.bench_input import open_source

    with open_source(options.kubeconfig, options.context) as source:
        return _run(options, _of_cluster(options, source))


def _check(options: Options) -> None:
    """Raise CommandFailed for contradictory flags."""
    if options.cluster:
        if options.resources and options.namespace:
            raise CommandFailed("--namespace selects objects of the cluster, -r files")
        return
    if not options.policies:
        raise CommandFailed("name files or folders with policies, or --cluster")
    if not options.resources:
        raise CommandFailed("name files with objects (-r), or --cluster")
    for name in ("kubeconfig", "context", "namespace"):
        if getattr(options, name):
            raise CommandFailed(f"--{name} has no meaning without --cluster")


def _values(options: Options) -> Values:
    file = options.values_file
    return load_values(Path(file), _note) if file else Values()


def _of_files(options: Options) -> _Input:
    compiled = _compiled(options.policies)
    objects = _objects(options.resources)
    data = load_cluster_data(())
    return _Input(compiled.policies, objects, _values(options), data)


def _objects(paths: Sequence[str]) -> list[dict[str, Json]]:
    objects = load_resources(paths, echo=_note)
    if not objects:
        raise CommandFailed(f"no objects in {', '.join(paths)}")
    return objects


def _of_cluster(options: Options, source: "Source") -> _Input:
    """Return the input; policies or objects that no flag names are the cluster's."""
    if options.policies:
        compiled = _compiled(options.policies)
    else:
        compiled = _stored(source.policies())
    if options.resources:
        objects = _objects(options.resources)
    else:
        objects = source.objects(compiled, options.namespace)
        if not objects:
            raise CommandFailed("the cluster has no objects that the policies match")
    data = source.cluster_data()
    return _Input(compiled.policies, objects, _values(options), data)


def _run(options: Options, inputs: _Input) -> int:
    rules = [(policy, rule) for policy in inputs.policies for rule in policy.rules]
    share_s = options.seconds / 3
    base, _ = _measure((), inputs, share_s)
    total, _ = _measure(inputs.policies, inputs, share_s)
    rule_times = []
    with progress("Measuring", len(rules), "rules") as advance:
        for policy, rule in rules:
            alone = [replace(policy, rules=(rule,))]
            times, matched = _measure(alone, inputs, share_s / len(rules))
            times = times.without(base)
            rule_times.append(RuleTimes(policy.policy.key, rule.name, matched, times))
            advance(1)
    rule_times.sort(key=lambda timed: -timed.times.mean_us)
    show = _json if options.output == "json" else _tables
    sizes = len(inputs.policies), len(rules), len(inputs.objects)
    click.echo(show(*sizes, total, rule_times, options.top))
    return 0


def _note(message: str) -> None:
    click.echo(message, err=True)


def _compiled(paths: Sequence[str]) -> Compiled:
    """Load and compile policies; raises CommandFailed if none can be measured."""
    policy_set = load_policies(paths)
    compiled = compile_all(policy_set.documents, policy_set.exceptions)
    lost = [f"{path}: {reason}" for path, reason in policy_set.failed_paths]
    lost += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    if lost:
        raise CommandFailed("\n".join(lost))
    for name in policy_set.of_other_kinds:
        _note(
            f"not measured, bench evaluates only ClusterPolicies and Policies: {name}"
        )
    if not any(policy.rules for policy in compiled.policies):
        raise CommandFailed(f"no policies with rules in {', '.join(paths)}")
    return compiled


def _stored(policy_set: PolicySet) -> Compiled:
    """Compile a cluster's policies; policies that are not in force are skipped.

    Raises: CommandFailed if no policy is left.
    """
    compiled = compile_all(policy_set.documents, policy_set.exceptions)
    for name, reason in policy_set.failed_paths:
        _note(f"not measured: {name}: {reason}")
    for name, error in compiled.invalid:
        _note(f"not measured: policy {name}: {error.message}")
    if not any(policy.rules for policy in compiled.policies):
        raise CommandFailed("the cluster has no policies with rules")
    return compiled


def _measure(
    policies: Sequence[CompiledPolicy], inputs: _Input, seconds: float
) -> tuple[Times, int]:
    """Return a summary of each object's shortest time, and the number of matches."""
    evaluator = Evaluator(
        policies,
        values=inputs.values,
        user=None,
        cluster_data=inputs.cluster_data,
        clock=clock(),
        with_messages=False,
    )
    objects = inputs.objects
    matched = sum(_matches(evaluator.apply(raw)) for raw in objects)
    best = _rounds(evaluator, objects, seconds)
    slowest = max(range(len(best)), key=best.__getitem__)
    return (
        Times(
            fmean(best), median(best), best[slowest], resource_path(objects[slowest])
        ),
        matched,
    )


def _matches(responses: Sequence[Response]) -> bool:
    return any(
        response.results or response.passed or response.skipped
        for response in responses
    )


def _rounds(
    evaluator: Evaluator,
    objects: Sequence[dict[str, Json]],
    seconds: float,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> list[float]:
    """Evaluate all objects repeatedly; return each object's best time in us."""
    best = [float("inf")] * len(objects)
    end_ns = now_ns() + int(seconds * 1e9)
    rounds = 0
    while rounds < _ROUNDS_MIN or now_ns() < end_ns:
        for position, raw in enumerate(objects):
            evaluator.forget()
            before = now_ns()
            evaluator.apply(raw)
            took = (now_ns() - before) / _NS_PER_US
            best[position] = min(best[position], took)
        rounds += 1
    return best


def _json(
    policies: int,
    rules: int,
    objects: int,
    times: Times,
    rule_times: Sequence[RuleTimes],
    top: int,
) -> str:
    """Return all results.

    Shape: ``{"policies": 1, "rules": 3, "objects": 2, "set": {"mean_us": 20.1, ...},
    "slowest": [{"policy": "p", "rule": "r", "matched": 2, "times": {...}}]}``.
    """
    listed = rule_times[:top] if top else rule_times
    facts = {"policies": policies, "rules": rules, "objects": objects}
    slowest = [asdict(timed) for timed in listed]
    return json.dumps({**facts, "set": asdict(times), "slowest": slowest}, indent=2)


def _tables(
    policies: int,
    rules: int,
    objects: int,
    times: Times,
    rule_times: Sequence[RuleTimes],
    top: int,
) -> str:
    listed = rule_times[:top] if top else rule_times
    lines = [
        (
            f"{counted(policies, 'policy')} with {counted(rules, 'rule')},"
            f" {counted(objects, 'object')}"
        ),
        "",
        "All policies, microseconds per object:",
        f"  mean {times.mean_us:.0f}, median {times.median_us:.0f}",
        f"  longest {times.max_us:.0f} ({times.slowest})",
        "",
        "Each rule alone, the slowest first, microseconds per object:",
        f"{'MEAN':>8} {'LONGEST':>8} {'MATCHED':>8}  POLICY/RULE",
    ]
    for timed in listed:
        numbers = (
            f"{timed.times.mean_us:8.0f} {timed.times.max_us:8.0f} {timed.matched:8d}"
        )
        lines.append(f"{numbers}  {timed.policy}/{timed.rule}")
    if len(listed) < len(rule_times):
        lines.append(
            f"... and {len(rule_times) - len(listed)} faster rules (--top 0: all)"
        )
    return "\n".join(lines)
