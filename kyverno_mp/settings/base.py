"""Compute the Configuration for keys that the ConfigMap ``kyverno`` lacks.

Room: settings. Takes: Settings. Gives: Configuration. Next: leader/configuration.py,
webhook/start.py. Source: docs/behaviour/controllers 10.3.
"""

from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.settings.settings import Settings


def base_of(settings: Settings) -> Configuration:
    """Return the defaults in the code, changed by the settings of the environment."""
    return Configuration(
        resource_filters=settings.resource_filters,
        exclude_groups=settings.exclude_groups,
        exclude_usernames=settings.exclude_usernames,
        exclude_roles=settings.exclude_roles,
        exclude_cluster_roles=settings.exclude_cluster_roles,
    )
