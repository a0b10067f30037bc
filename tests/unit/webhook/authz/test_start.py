"""A worker of the HTTP authorizer believes the callers that it should."""

import asyncio
from pathlib import Path

import pytest

from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.webhook.authz.attach import Places
from kyverno_mp.webhook.authz.start import make_start


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize("caller_path", [True, False])
def test_with_authorities_a_caller_needs_a_certificate(
    tmp_path: Path,
    standalone: bool,  # noqa: FBT001 - a column of the table
    caller_path: bool,  # noqa: FBT001 - as above
) -> None:
    """The webhook's secret path segments are no proof here, and none is awaited."""
    tmp_path.chmod(0o700)
    for name in ("snapshot", "pages"):
        (tmp_path / name).mkdir(mode=0o700)
    ControlPage.create(tmp_path / "snapshot")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c,"
        " contexts: [{name: c, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {}}]}"
    )
    settings = Settings(
        authz_mode="http",
        standalone=standalone,
        caller_path=caller_path,
        client_ca_file="authorities.pem",
        kubeconfig=str(kubeconfig),
        webhook_workers=1,
    )
    places = Places(tmp_path / "snapshot", tmp_path / "pages")

    async def story() -> None:
        begin = make_start(settings, places, None)
        served = begin(asyncio.get_running_loop())
        callers = served.connections.callers
        assert callers.is_required
        assert callers.refusal(is_proved=False, certified=None)
        assert callers.certified({"subject": ((("commonName", "mallory"),),)}) is False
        assert not served.connections.serves_reviews
        served.stop(0)

    asyncio.run(story())
