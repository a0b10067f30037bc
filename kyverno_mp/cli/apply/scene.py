"""Define what ``apply`` judges, and against which data.

Room: cli. Takes: objects and cluster data, from files or from a cluster. Gives: Scene.
Next: apply, apply_cluster. May touch: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kyverno_mp.cli.apply.admission_policies import Plurals
from kyverno_mp.cli.apply.given import Given
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json


@dataclass(frozen=True, slots=True)
class Scene:
    """What the policies of a run are held against."""

    given: Given
    cluster_data: ClusterData
    params: Sequence[Json]
    plurals: Plurals
    errors: int = 0
    """Kinds of objects that could not be loaded."""
    unread: Sequence[str] = ()
    """Folders of objects, or what is in them, that could not be read."""
