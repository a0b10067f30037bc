"""Define the objects and the cluster data of a run of ``apply``.

Room: cli. Takes: objects and cluster data, from files or from a cluster. Gives: Scene.
Next: command, from_cluster.
"""

from collections.abc import Sequence

import msgspec

from kyverno_mp.cli.apply.given import Given
from kyverno_mp.cli.sources.plurals import Plurals
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json


class Scene(msgspec.Struct, frozen=True):
    """The objects and the cluster data of a run."""

    resources: Given
    cluster_data: ClusterData
    params: Sequence[Json]
    plurals: Plurals
    errors: int = 0
    """Kinds of objects that could not be loaded."""
    definitions: Sequence[Json] = ()
    """CustomResourceDefinitions of files."""
    unread: Sequence[str] = ()
    """Folders of objects, or files in them, that could not be read."""
    targets: Sequence[Json] = ()
    """Existing objects that rules can change."""
