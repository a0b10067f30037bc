"""Define the record of a compiled clean-up policy.

Room: ir. Takes: written by compiler/cleanup. Gives: read by program/cleanup, the CLI
and the clean-up pool. No behaviour here.
"""

import msgspec

from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.ir.match import MatchIR
from kyverno_mp.ir.rules import ContextEntryIR, PolicyIR


class CleanupIR(msgspec.Struct, frozen=True, array_like=True):
    """What to delete, when (``schedule``, in cron syntax) and how (``propagation``)."""

    policy: PolicyIR
    match: MatchIR
    exclude: MatchIR | None = None
    context: tuple[ContextEntryIR, ...] = ()
    conditions: Conditions | None = None
    schedule: str = ""
    propagation: str = ""
