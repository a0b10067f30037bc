"""Write the pages about the pod: policies, one policy, exceptions, processes.

Room: dashboard. Takes: a View, the query. Gives: pages. Next: site.py; frame.py writes
their frame. May touch: nothing outside its arguments.
Source: docs/dashboard.md.

SAFETY: every untrusted string is passed through ``text_of`` or ``escape``.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.dashboard.activity import Activity, Cost
from kyverno_mp.dashboard.charts import columns
from kyverno_mp.dashboard.facts import ProcessRow, View
from kyverno_mp.dashboard.frame import (
    anchor,
    heads_of,
    notices,
    page,
    pager,
    section,
    slice_of,
    table,
)
from kyverno_mp.dashboard.history import REVIEWS, Series, increases
from kyverno_mp.dashboard.markup import count_of, text_of, totals
from kyverno_mp.dashboard.query import Values, link, page_of
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.limits import DASHBOARD_ROWS

_PROBLEMS_MAX: Final = 50
_RULES_MAX: Final = 1000
_NAMED_MAX: Final = 20
"""Number of rules that are named for an exception."""
_MIB: Final = 1024 * 1024


def policies(view: View, values: Values) -> str:
    """Return one page of the list of policies."""
    status = view.facts.status()
    number = page_of(values)
    found = sorted(status.policies, key=lambda one: (one.ready, _key(one)))
    number, pages, first = slice_of(number, len(found), DASHBOARD_ROWS)

    def content() -> Iterator[str]:
        yield from notices(status.problems[:_PROBLEMS_MAX])
        ready = sum(one.ready for one in found)
        word = "policy" if len(found) == 1 else "policies"
        yield (
            f'<h2 id="list">{len(found):,} {word}, {ready:,} ready</h2>'
            f"<p>Generation {status.generation:,} is published; all workers serve"
            f" generation {view.facts.generation():,}. Times are those of reviews since"
            " the processes started; the rules of a review share its time evenly.</p>"
        )
        activity, published = view.facts.activity(), view.facts.published()
        heads = heads_of(
            ("Policy", "Kind", "State", "Action", "Severity"),
            ("Rules", "Evaluations", "Mean time", "Total time"),
        )

        def row(one: PolicyStatus) -> str:
            said = published.about.get(_key(one))
            return _policy(one, said.severity if said else "", activity)

        chosen = found[first : first + DASHBOARD_ROWS]
        if chosen:
            yield from table("list", heads, map(row, chosen))
        yield from pager("/policies", number, pages, {})

    return page("/policies", "Policies", content(), view)


def _key(one: PolicyStatus) -> str:
    return f"{one.namespace}/{one.name}" if one.namespace else one.name


def _policy(one: PolicyStatus, severity: str, activity: Activity) -> str:
    cost = activity.cost_of(_key(one))
    numbers = (f"{len(one.rules):,}", *_cost(cost))
    kind, mode = text_of(one.kind), text_of(one.mode)
    cells = (
        f'<td class="word">{kind}</td>',
        f"<td>{_state(one)}</td>",
        f'<td class="word">{mode}</td>',
        f'<td class="word">{text_of(severity)}</td>',
    )
    return (
        f'<tr><th scope="row">{anchor(link("/policy", name=_key(one)), _key(one))}</th>'
        + "".join(cells)
        + "".join(f'<td class="count">{number}</td>' for number in numbers)
        + "</tr>"
    )


def _state(one: PolicyStatus) -> str:
    if one.ready:
        return '<span class="mark pass">Ready</span>'
    word = "In part" if one.rules else "Not ready"
    return f'<span class="mark fail">{word}</span> {text_of(one.message)}'


def _cost(cost: Cost) -> tuple[str, str, str]:
    if not cost.count:
        return "0", "", ""
    return f"{cost.count:,}", _time(cost.mean_us), _time(1e6 * cost.seconds)


def _time(microseconds: float) -> str:
    if microseconds < 1000:  # noqa: PLR2004 - units
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:  # noqa: PLR2004 - units
        return f"{microseconds / 1000:.1f} ms"
    return f"{microseconds / 1e6:,.1f} s"


def policy(view: View, values: Values) -> str:
    """Return the page of one policy. Raises: RequestInvalid."""
    name = values.get("name", "")
    if not name:
        raise RequestInvalid("dashboard.query", "name is missing")
    found = [one for one in view.facts.status().policies if _key(one) == name]

    def content() -> Iterator[str]:
        activity = view.facts.activity()
        said = view.facts.published().about.get(name)
        if not found:
            yield "<p>This pod currently has no such policy.</p>"
        for one in found:
            yield from _facts(
                one, said.severity if said else "", said.category if said else ""
            )
        if view.watch is not None:
            target = link("/results", policy=name)
            yield f"<p>{anchor(target, 'Results in stored reports')}</p>"
        counts = activity.by["policy"].get(name)
        if counts is not None:
            yield from section("reviews", "Reviews since the start", [totals(counts)])
        course = increases(view.history.course(Series(REVIEWS, "policy", name)))
        yield columns(course, "New results of reviews")
        yield from section("rules", "Rules", _rules(found, activity, name))

    return page("/policies", f"Policy {name}", content(), view)


def _facts(one: PolicyStatus, severity: str, category: str) -> Iterator[str]:
    facts = {
        "Kind": text_of(one.kind),
        "State": _state(one),
        "Action": text_of(one.mode),
        "Background": "yes" if one.background else "no",
        "Severity": text_of(severity) or "none",
        "Category": text_of(category) or "none",
    }
    if one.generation:
        facts["Generation"] = f"{one.generation:,}"
    if one.file:
        facts["File"] = text_of(one.file)
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    yield f"<dl>{rows}</dl>"


def _rules(found: list[PolicyStatus], activity: Activity, name: str) -> Iterator[str]:
    costs = activity.costs.get(name, {})
    types = {rule.name: rule.rule_type for one in found for rule in one.rules}
    names = sorted({*types, *costs}, key=lambda one: (-_seconds(costs.get(one)), one))
    if not names:
        yield "<p>No rule is in force.</p>"
        return

    def row(one: str) -> str:
        numbers = _cost(costs.get(one, Cost()))
        cells = "".join(f'<td class="count">{number}</td>' for number in numbers)
        kind = text_of(types.get(one, "not in force"))
        return f'<tr><th scope="row">{text_of(one)}</th><td>{kind}</td>{cells}</tr>'

    heads = heads_of(("Rule", "Type"), ("Evaluations", "Mean time", "Total time"))
    yield from table("rules", heads, map(row, names[:_RULES_MAX]))
    if len(names) > _RULES_MAX:
        yield f"<p>{len(names) - _RULES_MAX:,} more rules are not shown.</p>"


def _seconds(cost: Cost | None) -> float:
    return cost.seconds if cost else 0.0


def exceptions(view: View, values: Values) -> str:
    """Return one page of the list of exceptions."""
    published = view.facts.published()
    found = published.exceptions
    number, pages, first = slice_of(page_of(values), len(found), DASHBOARD_ROWS)

    def content() -> Iterator[str]:
        yield from notices([published.problem] if published.problem else [])
        count = published.exceptions_count
        yield f'<h2 id="list">{count_of(count, "PolicyException")} in force</h2>'
        yield (
            "<p>An exception is in force if it names a rule that is in force. What it"
            " matches is in the exception itself.</p>"
        )
        if count > len(found):
            yield f"<p>The first {len(found):,} by name are listed.</p>"

        def rows() -> Iterator[str]:
            for one in found[first : first + DASHBOARD_ROWS]:
                named = "".join(
                    f"<li>{text_of(rule)}</li>" for rule in one.rules[:_NAMED_MAX]
                )
                if len(one.rules) > _NAMED_MAX:
                    named += f"<li>and {len(one.rules) - _NAMED_MAX:,} more</li>"
                yield (
                    f'<tr><th scope="row">{text_of(one.key)}</th>'
                    f"<td><ul>{named}</ul></td></tr>"
                )

        if found:
            yield from table("list", heads_of(("Exception", "Policy: rule")), rows())
        yield from pager("/exceptions", number, pages, {})

    return page("/exceptions", "Exceptions", content(), view)


def processes(view: View, _values: Values) -> str:
    """Return the page of the pod's processes."""
    rows = view.facts.processes()

    def content() -> Iterator[str]:
        memory = sum(one.pss_bytes for one in rows)
        yield f'<h2 id="list">{len(rows):,} processes, {memory / _MIB:,.0f} MiB</h2>'
        yield (
            "<p>Memory is the proportional set size (PSS): pages that processes share"
            " count once.</p>"
        )
        heads = heads_of(
            ("Process", "State"), ("Process id", "Memory", "CPU time", "Restarts")
        )
        largest = max((one.pss_bytes for one in rows), default=0.0)
        yield from table("list", heads, (_process(one, largest) for one in rows))

    return page("/processes", "Processes", content(), view)


def _process(one: ProcessRow, largest: float) -> str:
    if one.crash_loop:
        state = '<span class="mark fail">Crash loop</span>'
    elif one.pid:
        state = '<span class="mark pass">Running</span>'
    else:
        state = '<span class="mark warn">Starting</span>'
    share = 100 * one.pss_bytes / largest if largest else 0
    gauge = (
        '<svg class="gauge" viewBox="0 0 100 10" preserveAspectRatio="none"'
        f' aria-hidden="true"><rect width="{share:.0f}" height="10"></rect></svg>'
    )
    memory = f"{gauge}{one.pss_bytes / _MIB:,.1f} MiB" if one.pss_bytes else ""
    cells = (str(one.pid or ""), memory, f"{one.cpu_s:,.1f} s", f"{one.restarts:,}")
    return (
        f'<tr><th scope="row">{text_of(one.name)}</th><td>{state}</td>'
        + "".join(f'<td class="count">{cell}</td>' for cell in cells)
        + "</tr>"
    )
