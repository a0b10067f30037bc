"""Collect what the pages about the pod show: policies, exceptions, processes.

Room: dashboard. Takes: a View, the query. Gives: pages. Next: site.py; render.py fills
their templates.
Source: docs/dashboard.md.
"""

from typing import Final, NamedTuple

from kyverno_mp.dashboard.activity import NOTHING, About, Activity, Cost
from kyverno_mp.dashboard.facts import View
from kyverno_mp.dashboard.pages import page, reviews_over_time, rows_of
from kyverno_mp.dashboard.query import Values, page_of
from kyverno_mp.dashboard.render import paging_of
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.leader.status import PolicyStatus

PROBLEMS_MAX: Final = 50
_RULES_MAX: Final = 1000
NAMED_MAX: Final = 20
"""Number of rules that are named for an exception."""


class PolicyRow(NamedTuple):
    """A policy in the list."""

    key: str
    policy: PolicyStatus
    about: About
    cost: Cost


class RuleRow(NamedTuple):
    """A rule of a policy, with the cost of its evaluations."""

    name: str
    type: str
    cost: Cost


def policies(view: View, values: Values) -> str:
    """Return one page of the list of policies."""
    status, listed = view.facts.status(), listed_policies(view)
    chosen, number, pages = rows_of(listed, page_of(values))
    activity, about = view.facts.activity(), view.facts.published().about
    return page(
        "policies",
        view,
        "Policies",
        count=len(listed),
        paging=paging_of("/policies", number, pages),
        problems=status.problems[:PROBLEMS_MAX],
        published=status.generation,
        ready=sum(policy.ready for policy in listed),
        rows=[
            PolicyRow(key, policy, about.get(key, NOTHING), activity.cost_of(key))
            for policy in chosen
            for key in (key_of(policy),)
        ],
        served=view.facts.generation(),
    )


def listed_policies(view: View) -> list[PolicyStatus]:
    """Return all policies, those that are not ready first."""
    policies = view.facts.status().policies
    return sorted(policies, key=lambda policy: (policy.ready, key_of(policy)))


def key_of(policy: PolicyStatus) -> str:
    """Return the name of a policy, after its namespace if it has one."""
    return f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name


def policy(view: View, values: Values) -> str:
    """Return the page of one policy. Raises: RequestInvalid."""
    name = values.get("name", "")
    if not name:
        raise RequestInvalid("dashboard.query", "name is missing")
    named = [
        policy for policy in view.facts.status().policies if key_of(policy) == name
    ]
    activity = view.facts.activity()
    rules = _rules(named, activity, name)
    return page(
        "policy",
        view,
        f"Policy {name}",
        "/policies",
        about=view.facts.published().about.get(name, NOTHING),
        counts=activity.by["policy"].get(name),
        course=reviews_over_time(view, "policy", name),
        has_reports=view.watch is not None,
        more_rules=max(0, len(rules) - _RULES_MAX),
        name=name,
        policies=named,
        rules=rules[:_RULES_MAX],
    )


def _rules(
    policies: list[PolicyStatus], activity: Activity, name: str
) -> list[RuleRow]:
    """Return the rules, those that cost most first."""
    costs = activity.costs.get(name, {})
    types = {rule.name: rule.rule_type for policy in policies for rule in policy.rules}
    rows = [
        RuleRow(rule, types.get(rule, "not in force"), costs.get(rule, Cost()))
        for rule in {*types, *costs}
    ]
    return sorted(rows, key=lambda row: (-row.cost.seconds, row.name))


def exceptions(view: View, values: Values) -> str:
    """Return one page of the list of exceptions."""
    published = view.facts.published()
    chosen, number, pages = rows_of(published.exceptions, page_of(values))
    return page(
        "exceptions",
        view,
        "Exceptions",
        count=published.exceptions_count,
        exceptions=chosen,
        expired={each.key for each in chosen if each.is_expired(view.now)},
        known=len(published.exceptions),
        named_max=NAMED_MAX,
        paging=paging_of("/exceptions", number, pages),
        problems=[published.problem] if published.problem else [],
    )


def processes(view: View, _values: Values) -> str:
    """Return the page of the pod's processes."""
    return page("processes", view, "Processes", processes=view.facts.processes())
