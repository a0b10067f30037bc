"""``snapshot inspect``: show the content of a snapshot file that workers serve.

Room: cli. Takes: a segment file. Gives: its header and records, as a table or JSON.
May touch: the file named by the user, standard output.
"""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.jsonvalue import Json


def describe(path: Path) -> dict[str, Json]:
    """Return the content of the file; raises SnapshotUnusable if it is damaged.

    Shape: ``{"file": "...", "segment": "policies", "generation": 3, "bytes": 4096,
    "policies": [{"key": "p", "kind": "ClusterPolicy", "rules": ["r"]}]}``.
    """
    name = path.name.partition(".")[0]
    segment = Segment.attach(path, name)
    facts: dict[str, Json] = {
        "file": str(path),
        "segment": name,
        "generation": segment.generation,
        "bytes": path.stat().st_size,
    }
    if name != POLICIES:
        facts["keys"] = sorted(k.decode(errors="replace") for k in segment.list_keys())
        return facts
    policies = PolicySegment(segment)
    facts["policies"] = [
        _policy(policies, position) for position in range(policies.policy_count)
    ]
    return facts


def _policy(policies: PolicySegment, position: int) -> dict[str, Json]:
    policy = policies.policy(position)
    return {
        "key": policy.key,
        "kind": policy.kind,
        "failurePolicy": policy.failure_policy,
        "rules": [name for name, _type, _action in policy.rule_actions],
        "isDecoded": policy.is_decoded,
    }


def inspect(path: Path, output: str) -> None:
    """Check a segment file and list its content."""
    facts = describe(path)
    if output == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    for name in ("file", "segment", "generation", "bytes"):
        console.print(f"{name}: {facts[name]}", highlight=False)
    table = Table()
    if "policies" in facts:
        for name in ("key", "kind", "failurePolicy", "rules"):
            table.add_column(name, overflow="fold")
        for row in facts["policies"]:
            table.add_row(
                row["key"], row["kind"], row["failurePolicy"], ", ".join(row["rules"])
            )
    else:
        table.add_column("key", overflow="fold")
        for key in facts["keys"]:
            table.add_row(key)
    console.print(table)
