"""Build the check of the authors of the policies that a pool carries out.

Room: process. Takes: a pool's Tools. Gives: author_reason, for its dependencies.
Next: egress/stored_authors.py.
Source: docs/operate.md (the author of a namespaced policy).
"""

from collections.abc import Callable

from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.stored_authors import StoredAuthors
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.pool.coordinator import Tools


def author_reason(tools: Tools) -> Callable[[Resource, Key], str]:
    """Return the check; it finds nothing if the operator has turned it off."""
    settings = tools.place.settings
    if not settings.check_policy_authors:
        return lambda _resource, _key: ""
    client = tools.client
    # The kinds are read from the API server, some times an hour.
    kinds = LiveKinds(lambda: None, client)
    permissions = LivePermissions(client, settings.namespace)
    authors = StoredAuthors(Objects(client), kinds, permissions)
    return authors.reason
