"""Create the client that authenticates as the ServiceAccount of a pool.

Room: pool. Takes: Settings, the name of the pool's account. Gives: a Client.
Next: pool/coordinator.py. May touch: the environment through settings, the files of a
kubeconfig; the first call opens the connections.
Source: docs/pools.md 1.

A Deployment with only this pool runs under the pool's account. In a pod with several
roles, the pool uses the pod's account to request tokens for its own.
"""

from kyverno_mp import __version__
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.tokens import RequestedToken
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings

USER_AGENT = f"kyverno-mp/{__version__}"


def open_client_as(settings: Settings, account: str) -> Client:
    """Return a client that authenticates as a ServiceAccount of our namespace.

    Raises: SettingInvalid.
    """
    access = access_of(settings.kubeconfig, environment())
    if settings.service_account_name == account:
        return Client(Pool(access), USER_AGENT)
    pod_client = Client(Pool(access), USER_AGENT)
    tokens = RequestedToken(pod_client, settings.namespace, account)
    return Client(Pool(access, tokens), USER_AGENT)
