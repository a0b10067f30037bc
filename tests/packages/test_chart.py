"""The Helm chart equals the manifests by default; its values change it.

A failure means: a part was changed without `python -m deploy.chart`, or a Helm
installation differs from the manifest.
"""

import base64
import gzip
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import chart, dashboard
from kyverno_mp import __version__
from kyverno_mp.settings.read import read
from tests.packages.rendered import (
    DEPLOY,
    ROOT,
    Document,
    Key,
    assert_all_in,
    documents_of,
    manifest,
    plain,
    strings,
)

# The first run may have to compile helm.
pytestmark = pytest.mark.timeout(1200)
CHART = DEPLOY / "chart"
# helm compiled by Go claims to support only an old Kubernetes.
KUBERNETES = ("--kube-version", "1.34.0")
ADMISSION = "kyverno-admission-controller"


def run(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *arguments], capture_output=True, text=True, check=False
    )


def template(helm: str, *values: str, namespace: str = "kyverno") -> str:
    flags = [word for one in values for word in ("--set", one)]
    done = run(
        helm,
        *("template", "a-release", str(CHART), "--namespace", namespace),
        *(*KUBERNETES, *flags),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(helm: str, *values: str, namespace: str = "kyverno") -> dict[Key, Document]:
    """Render without the definitions, which take long to parse."""
    text = template(helm, "crds.install=false", *values, namespace=namespace)
    return documents_of(text)


def container(documents: dict[Key, Document]) -> dict[str, Any]:
    spec = documents["Deployment", ADMISSION]["spec"]["template"]["spec"]
    found: dict[str, Any] = spec["containers"][0]
    return found


def test_chart_files_are_generated_from_the_parts() -> None:
    files = chart.files()
    for path, text in files.items():
        assert path.read_text() == text, path
    for folder in ("crds-files", "monitoring"):
        assert set((CHART / folder).iterdir()) <= set(files)
    assert dashboard.FILE.read_text() == dashboard.text()


def test_default_values_render_the_manifest(helm: str) -> None:
    found = documents_of(template(helm))
    assert plain(found) == plain(manifest("install.yaml"))


def test_split_values_render_the_split_manifest(helm: str) -> None:
    found = documents_of(template(helm, "split=true"))
    assert plain(found) == plain(manifest("install-split.yaml"))


@pytest.mark.parametrize("split", ["false", "true"])
def test_authorizer_can_be_installed(helm: str, split: str) -> None:
    """Its documents are those of its manifest, beside all others."""
    bare = render(helm, f"split={split}")
    installed = render(helm, f"split={split}", "authzServer.enabled=true")
    added = {key: installed[key] for key in installed.keys() - bare.keys()}
    assert plain(added) == plain(manifest("authorizer.yaml"))
    assert {key: installed[key] for key in bare} == bare


def test_authorizer_values(helm: str) -> None:
    a = "authzServer."
    found = render(
        helm,
        *(f"{a}enabled=true", f"{a}mode=http", f"{a}workers=4", f"{a}replicas=0"),
        *(f"{a}extraArgs.nested-request=true", f"{a}service.port=80"),
        namespace="proxies",
    )
    name = "kyverno-authz-server"
    deployment = found["Deployment", name]["spec"]
    assert deployment["replicas"] == 0
    (server,) = deployment["template"]["spec"]["containers"]
    assert server["args"] == [
        *("serve", "authz", "--mode=http", "--server-address=:9081"),
        *("--probes-address=:9080", "--workers=4"),
        *("--runtime-dir=/run/kyverno-mp/private", "--nested-request=true"),
    ]
    (port,) = found["Service", name]["spec"]["ports"]
    assert port == {"name": "http", "port": 80, "targetPort": "authz"}
    (subject,) = found["ClusterRoleBinding", "kyverno:authz-server"]["subjects"]
    assert subject["namespace"] == "proxies"
    done = run(helm, "template", "a", str(CHART), *KUBERNETES, "--set", f"{a}mode=x")
    assert "authzServer.mode is neither envoy nor http" in done.stderr


def test_crds_can_be_disabled(helm: str) -> None:
    assert plain(render(helm)) == plain(manifest("install-without-crds.yaml"))


def test_uninstall_keeps_policies(helm: str) -> None:
    """Helm keeps objects with this annotation; a deleted definition deletes objects."""
    kept = {
        name: one["metadata"]["annotations"]["helm.sh/resource-policy"]
        for (kind, name), one in documents_of(template(helm)).items()
        if kind == "CustomResourceDefinition"
    }
    assert len(kept) == len(list((ROOT / "config" / "crds").glob("*.yaml")))
    assert set(kept.values()) == {"keep"}


def test_namespace_value_applies_everywhere(helm: str) -> None:
    assert_all_in(render(helm, namespace="policy-system"), "policy-system")
    found = render(helm, "namespaceOverride=elsewhere", namespace="policy-system")
    assert_all_in(found, "elsewhere")


def test_every_object_has_helms_labels(helm: str) -> None:
    for one in render(helm, "customLabels.team=a").values():
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("kyverno-mp-")
        assert labels["team"] == "a"


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("admissionController.replica=3", "replica"),
        ("nameOverride=x", "nameOverride is not supported: the names of objects"),
        ("admissionController.container.image.tagg=x", "tagg"),
        ("features.logging.fromat=json", "fromat"),
        ("reportsServer.enabled=true", "reportsServer.enabled is not supported"),
        ("reportsController.replicas=3", "reportsController.replicas has an effect"),
    ],
)
def test_unknown_value_is_an_error(helm: str, value: str, wrong: str) -> None:
    """An upstream value without an effect here would surprise the user later."""
    flags = (*KUBERNETES, "--set", value)
    done = run(helm, "template", "a", str(CHART), *flags)
    assert done.returncode != 0
    assert wrong in done.stderr


def test_deployment_values(helm: str) -> None:
    a = "admissionController."
    found = render(
        helm,
        *(f"{a}replicas=5", f"{a}podLabels.x=y", f"{a}podAnnotations.n=v"),
        *(f"{a}nodeSelector.disk=ssd", f"{a}priorityClassName=mine"),
        *(f"{a}tolerations[0].operator=Exists", f"{a}imagePullSecrets[0].name=pull"),
        *(f"{a}container.image.registry=registry.example.com",),
        *(f"{a}container.image.tag=9", f"{a}container.resources.limits.memory=2Gi"),
        *(f"{a}container.extraEnvVars[0].name=A", f"{a}extraVolumes[0].name=v"),
        f"{a}container.extraEnvVars[0].value=b",
    )
    spec = found["Deployment", ADMISSION]["spec"]
    pod = spec["template"]
    assert spec["replicas"] == 5
    assert pod["metadata"]["labels"]["x"] == "y"
    assert pod["metadata"]["annotations"] == {"n": "v"}
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "disk": "ssd"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["spec"]["priorityClassName"] == "mine"
    assert ("PriorityClass", ADMISSION) not in found
    assert pod["spec"]["volumes"][-1] == {"name": "v"}
    assert container(found)["image"] == "registry.example.com/kyverno-mp:9"
    assert container(found)["resources"]["limits"] == {"memory": "2Gi"}
    assert container(found)["env"][-1] == {"name": "A", "value": "b"}
    selector = spec["selector"]["matchLabels"]
    before = manifest("install-without-crds.yaml")["Deployment", ADMISSION]
    assert selector == before["spec"]["selector"]["matchLabels"]


def test_image_registry_can_come_from_a_parent_chart(helm: str, tmp_path: Path) -> None:
    """The parent's global values for other charts are no error; one's own are."""
    about = {
        "apiVersion": "v2",
        "name": "platform",
        "version": "1.0.0",
        "dependencies": [{"name": "kyverno-mp", "version": __version__}],
    }
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    given = {
        "global": {"image": {"registry": "reg"}, "other": {"chart": "x"}},
        "kyverno-mp": {"crds": {"install": False}},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(given))
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "kyverno-mp").symlink_to(CHART)
    done = run(helm, "template", "kyverno", str(tmp_path), *KUBERNETES)
    assert done.returncode == 0, done.stderr
    found = documents_of(done.stdout)
    assert container(found)["image"].startswith("reg/kyverno-mp:")

    done = run(helm, "template", "a", str(CHART), *KUBERNETES, "--set", "global.x=y")
    assert "global.x is no value of this chart" in done.stderr


def test_features_become_flags(helm: str) -> None:
    found = render(
        helm,
        "features.logging.format=json",
        "features.logging.verbosity=4",
        "features.policyExceptions.enabled=false",
        "features.generateMutatingAdmissionPolicy.enabled=true",
        "features.generateValidatingAdmissionPolicy.enabled=false",
        "features.globalContext.maxApiCallResponseLength=2000000",
        "features.globalContext.maxGlobalContextEntries=0",
        "features.excludeBootstrapResources.enabled=true",
        "features.disableCertManagerController.enabled=true",
        "features.omitEvents.eventTypes={PolicyApplied,PolicySkipped}",
        "admissionController.container.extraArgs.webhookTimeout=15",
        # A name takes precedence over a feature.
        "admissionController.container.extraArgs.v=2",
    )
    assert container(found)["args"] == [
        "serve",
        "--disableCertManagerController=true",
        "--enablePolicyException=false",
        "--excludeBootstrapResources=true",
        "--generateMutatingAdmissionPolicy=true",
        "--generateValidatingAdmissionPolicy=false",
        "--loggingFormat=json",
        "--maxAPICallResponseLength=2000000",
        "--maxGlobalContextEntries=0",
        "--omitEvents=PolicyApplied,PolicySkipped",
        "--v=2",
        "--webhookTimeout=15",
    ]


def test_config_map_values(helm: str) -> None:
    found = render(
        helm,
        "config.excludeUsernames={ann,bob}",
        "config.resourceFiltersExclude={[Event\\,*\\,*]}",
        "config.resourceFiltersInclude={[Secret\\,*\\,*]}",
        "config.preserve=true",
        "config.matchConditions[0].name=n",
        "config.matchConditions[0].expression=true",
        "metricsConfig.metricsRefreshInterval=1h",
        namespace="policy-system",
    )
    one = found["ConfigMap", "kyverno"]
    assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    data = one["data"]
    assert data["excludeUsernames"] == "ann,bob"
    filters = data["resourceFilters"].split()
    assert "[Event,*,*]" not in filters
    assert filters[-1] == "[Secret,*,*]"
    assert json.loads(data["matchConditions"])[0]["name"] == "n"
    metrics = found["ConfigMap", "kyverno-metrics"]["data"]
    assert metrics["metricsRefreshInterval"] == "1h"
    found = render(helm, "config.create=false", "metricsConfig.create=false")
    assert not [name for kind, name in found if kind == "ConfigMap"]


def test_own_namespace_is_excluded_with_any_selector(helm: str) -> None:
    selector = "config.webhooks.namespaceSelector.matchExpressions"
    found = render(
        helm, f"{selector}[0].key=team", f"{selector}[0].operator=Exists", namespace="x"
    )
    data = json.loads(found["ConfigMap", "kyverno"]["data"]["webhooks"])
    names = [one["key"] for one in data["namespaceSelector"]["matchExpressions"]]
    assert names == ["team", "kubernetes.io/metadata.name"]
    found = render(helm, "config.excludeKyvernoNamespace=false", namespace="x")
    assert '"x"' not in found["ConfigMap", "kyverno"]["data"]["webhooks"]


def test_access_and_availability_values(helm: str) -> None:
    a = "admissionController."
    found = render(
        helm,
        *(f"{a}podDisruptionBudget.minAvailable=2", f"{a}service.type=NodePort"),
        *(f"{a}networkPolicy.ingressFrom[0].ipBlock.cidr=10.0.0.0/8",),
        *(f"{a}rbac.serviceAccount.annotations.role=r",),
        *(f"{a}rbac.clusterRole.extraResources[0].apiGroups={{}}",),
        f"{a}rbac.clusterRole.extraResources[0].resources={{pods}}",
        f"{a}rbac.clusterRole.extraResources[0].verbs={{get}}",
        "rbac.roles.aggregate.view=false",
    )
    budget = found["PodDisruptionBudget", ADMISSION]["spec"]
    assert budget["minAvailable"] == 2
    assert "maxUnavailable" not in budget
    assert found["Service", "kyverno-svc"]["spec"]["type"] == "NodePort"
    https = found["NetworkPolicy", ADMISSION]["spec"]["ingress"][0]
    assert https["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    account = found["ServiceAccount", ADMISSION]
    assert account["metadata"]["annotations"] == {"role": "r"}
    more = found["ClusterRole", "kyverno:admission-controller:additional"]
    assert more["rules"][0]["resources"] == ["pods"]
    label = "rbac.kyverno.io/aggregate-to-admission-controller"
    assert more["metadata"]["labels"][label] == "true"
    view = found["ClusterRole", "kyverno:rbac:view:policies"]["metadata"]["labels"]
    assert view["rbac.authorization.k8s.io/aggregate-to-view"] == "false"
    found = render(
        helm,
        *(f"{a}podDisruptionBudget.enabled=false", f"{a}networkPolicy.enabled=false"),
        f"{a}metricsService.create=false",
    )
    kinds = {kind for kind, _ in found}
    assert not {"PodDisruptionBudget", "NetworkPolicy"} & kinds
    assert ("Service", "kyverno-svc-metrics") not in found


@pytest.mark.parametrize(
    ("split", "component"),
    [("false", "admission-controller"), ("true", "reports-controller")],
)
def test_dashboard_runs_in_the_reports_deployment(
    helm: str, split: str, component: str
) -> None:
    """Without peers, only a port-forward reaches the dashboard."""
    found = render(helm, f"split={split}", "dashboard.enabled=true")
    assert not [name for kind, name in found if name == "kyverno-dashboard"]
    for (kind, name), one in found.items():
        if kind != "Deployment":
            continue
        (pod,) = one["spec"]["template"]["spec"]["containers"]
        env = {each["name"]: each.get("value") for each in pod["env"]}
        is_shown = name == f"kyverno-{component}"
        assert env.get("KYVERNO_MP_DASHBOARD") == ("true" if is_shown else None)
        assert "KYVERNO_MP_DASHBOARD_HOST" not in env
        ports = [port["containerPort"] for port in pod["ports"]]
        assert (9081 in ports) == is_shown


@pytest.mark.parametrize("split", ["false", "true"])
def test_dashboard_peers_can_be_allowed(helm: str, split: str) -> None:
    """Access needs a token, and other clients are blocked."""
    peer = {"namespaceSelector": {"matchLabels": {"team": "ops"}}}
    values = (
        *(f"split={split}", "dashboard.enabled=true", "dashboard.port=9999"),
        "dashboard.ingressFrom[0].namespaceSelector.matchLabels.team=ops",
    )
    flags = [word for one in values for word in ("--set", one)]
    done = run(helm, "template", "a", str(CHART), *KUBERNETES, *flags)
    assert done.returncode != 0
    assert "dashboard.tokenSecret" in done.stderr
    found = render(helm, *values, "dashboard.tokenSecret=t", namespace="other")
    service = found["Service", "kyverno-dashboard"]["spec"]
    policy = found["NetworkPolicy", "kyverno-dashboard"]["spec"]
    assert service["selector"] == policy["podSelector"]["matchLabels"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [peer]
    [(name, port)] = [(one["targetPort"], one["port"]) for one in service["ports"]]
    assert rule["ports"] == [{"protocol": "TCP", "port": name}]
    assert port == 9999
    (shown,) = (
        one["spec"]["template"]
        for (kind, _), one in found.items()
        if kind == "Deployment"
        and service["selector"].items()
        <= one["spec"]["template"]["metadata"]["labels"].items()
    )
    (pod,) = shown["spec"]["containers"]
    assert {"name": name, "containerPort": 9999, "protocol": "TCP"} in pod["ports"]
    env = {each["name"]: each.get("value") for each in pod["env"]}
    assert env["KYVERNO_MP_DASHBOARD_HOST"] == "0.0.0.0"
    assert env["KYVERNO_MP_DASHBOARD_PORT"] == "9999"
    file = Path(str(env["KYVERNO_MP_DASHBOARD_TOKEN_FILE"]))
    (mount,) = (
        one for one in pod["volumeMounts"] if one["mountPath"] == str(file.parent)
    )
    volumes = {one["name"]: one for one in shown["spec"]["volumes"]}
    assert volumes[mount["name"]]["secret"] == {"secretName": "t"}


@pytest.mark.parametrize("split", ["false", "true"])
def test_recording_uses_a_volume(helm: str, split: str) -> None:
    """Only pods that answer reviews have the volume."""
    found = render(
        helm,
        *(f"split={split}", "recording.enabled=true", "recording.oneOf=10"),
        "recording.redact={ConfigMap:data,Pod:spec.x}",
    )
    pod = container(found)
    env = {each["name"]: each.get("value") for each in pod["env"]}
    assert env["KYVERNO_MP_RECORD_ONE_OF"] == "10"
    assert env["KYVERNO_MP_RECORD_BYTES_MAX"] == str(64 * 1024 * 1024)
    assert env["KYVERNO_MP_RECORD_REDACT"] == "ConfigMap:data,Pod:spec.x"
    folder = Path(str(env["KYVERNO_MP_RECORD_DIR"]))
    (mount,) = (
        one for one in pod["volumeMounts"] if Path(one["mountPath"]) in folder.parents
    )
    spec = found["Deployment", ADMISSION]["spec"]["template"]["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
    assert volume["emptyDir"] == {"sizeLimit": "100Mi"}
    recording = [
        name
        for (kind, name), one in found.items()
        if kind == "Deployment" and "KYVERNO_MP_RECORD_DIR" in str(one)
    ]
    assert recording == [ADMISSION]


@pytest.mark.parametrize("split", ["false", "true"])
def test_notifications_are_sent_by_the_pods_that_write_reports(
    helm: str, split: str
) -> None:
    """The URL is not in the pod's environment: the Secret is a file."""
    found = render(
        helm,
        *(f"split={split}", "notifications.urlSecret=receiver"),
        "notifications.format=alertmanager",
    )
    name = "kyverno-reports-controller" if split == "true" else ADMISSION
    sending = [
        each
        for (kind, each), raw in found.items()
        if kind == "Deployment" and "KYVERNO_MP_NOTIFY_URL_FILE" in str(raw)
    ]
    assert sending == [name]
    spec = found["Deployment", name]["spec"]["template"]["spec"]
    (pod,) = spec["containers"]
    env = {each["name"]: each.get("value") for each in pod["env"]}
    assert env["KYVERNO_MP_NOTIFY_FORMAT"] == "alertmanager"
    assert env["KYVERNO_MP_NOTIFY_INTERVAL_S"] == "30"
    folder = str(Path(str(env["KYVERNO_MP_NOTIFY_URL_FILE"])).parent)
    (mount,) = (each for each in pod["volumeMounts"] if each["mountPath"] == folder)
    (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
    assert volume["secret"] == {"secretName": "receiver"}


def telemetry_of(
    found: dict[Key, Document], name: str = ADMISSION
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the variables of a Deployment, and the Secret of each mounted folder."""
    spec = found["Deployment", name]["spec"]["template"]["spec"]
    pod = spec["containers"][0]
    volumes = {each["name"]: each.get("secret") for each in spec["volumes"]}
    secrets = {
        each["mountPath"]: volumes[each["name"]]["secretName"]
        for each in pod["volumeMounts"]
        if volumes[each["name"]]
    }
    return {each["name"]: each.get("value") for each in pod["env"]}, secrets


def test_traces_go_to_the_collector_of_kyvernos_values(helm: str) -> None:
    a = "admissionController.tracing."
    env, _ = telemetry_of(render(helm))
    assert not [name for name in env if name.startswith("KYVERNO_MP_TRACES")]
    env, secrets = telemetry_of(
        render(
            helm,
            *(f"{a}enabled=true", f"{a}address=tempo.obs", f"{a}port=4318"),
            *(f"{a}creds=tempo-ca", f"{a}sampled=0.5"),
            "admissionController.otlpProtocol=http",
        )
    )
    settings = read({name: value for name, value in env.items() if value is not None})
    assert (settings.traces, settings.traces_host) == (True, "tempo.obs")
    assert (settings.traces_port, settings.traces_sampled) == (4318, 0.5)
    assert (settings.otlp_protocol, settings.otlp_tls) == ("http", True)
    # The key of upstream's Secret.
    folder, _, file = settings.otlp_ca_file.rpartition("/")
    assert (secrets[folder], file) == ("tempo-ca", "ca.pem")


def test_metrics_go_to_the_collector_of_kyvernos_values(helm: str) -> None:
    """As upstream, metering.port is also the collector's port."""
    a = "admissionController.metering."
    on = (f"{a}config=grpc", f"{a}collector=otel.obs", f"{a}port=4317")
    for more, port in (((), 4317), ((f"{a}collectorPort=4319",), 4319)):
        env, secrets = telemetry_of(render(helm, *on, f"{a}creds=otel-ca", *more))
        settings = read({name: value for name, value in env.items() if value})
        assert settings.metrics_push is True
        assert (settings.metrics_push_host, settings.metrics_push_port) == (
            *("otel.obs", port),
        )
        assert secrets[settings.otlp_ca_file.rpartition("/")[0]] == "otel-ca"
        assert settings.traces is False


def test_metrics_can_be_off_or_by_tls(helm: str) -> None:
    """The webhook's own certificate, unless a Secret has another."""
    a = "admissionController.metering."
    found = render(helm, f"{a}disabled=true", f"{a}config=grpc")
    env, _ = telemetry_of(found)
    settings = read({name: value for name, value in env.items() if value})
    assert (settings.metrics, settings.metrics_push) == (False, False)
    assert ("Service", "kyverno-svc-metrics") not in found
    env, _ = telemetry_of(render(helm, f"{a}secure=true"))
    settings = read({name: value for name, value in env.items() if value})
    assert (settings.metrics_tls, settings.metrics_cert_file) == (True, "")
    monitor = "admissionController.serviceMonitor."
    found = render(
        helm,
        *(f"{a}secure=true", f"{a}tlsSecret=pair", f"{monitor}enabled=true"),
        *(f"{monitor}secure=true", f"{monitor}tlsConfig.serverName=metrics"),
    )
    env, secrets = telemetry_of(found)
    settings = read({name: value for name, value in env.items() if value})
    for path, key in (
        (settings.metrics_cert_file, "tls.crt"),
        (settings.metrics_key_file, "tls.key"),
    ):
        folder, _, file = path.rpartition("/")
        assert (secrets[folder], file) == ("pair", key)
    (endpoint,) = found["ServiceMonitor", "kyverno-svc"]["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"serverName": "metrics"}


def test_pods_without_a_webhook_have_telemetry_too(helm: str) -> None:
    name = "kyverno-reports-controller"
    values = ("split=true", "reportsController.metering.secure=true")
    tls = (*values, "reportsController.metering.tlsSecret=pair")
    env, _ = telemetry_of(render(helm, *tls), name)
    assert env["KYVERNO_MP_METRICS_TLS"] == "true"
    env, _ = telemetry_of(render(helm, *tls))
    assert "KYVERNO_MP_METRICS_TLS" not in env
    on = ("authzServer.enabled=true", "authzServer.tracing.enabled=true")
    env, _ = telemetry_of(
        render(helm, *on, "authzServer.tracing.address=c"), "kyverno-authz-server"
    )
    assert env["KYVERNO_MP_TRACES_HOST"] == "c"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (("tracing.enabled=true",), "tracing.address is needed"),
        (("metering.config=stdout",), "neither prometheus nor grpc"),
        (
            (
                *("tracing.enabled=true", "tracing.address=c", "tracing.creds=x"),
                "metering.config=grpc",
            ),
            "tracing.creds and admissionController.metering.creds differ",
        ),
    ],
)
def test_telemetry_that_cannot_work_is_an_error(
    helm: str, values: tuple[str, ...], reason: str
) -> None:
    flags = [word for one in values for word in ("--set", f"admissionController.{one}")]
    done = run(helm, "template", "kyverno", str(CHART), *KUBERNETES, *flags)
    assert done.returncode != 0
    assert reason in done.stderr


def test_monitoring_objects_equal_the_files(helm: str) -> None:
    found = render(
        helm,
        *("prometheusRule.enabled=true", "grafana.enabled=true"),
        *("admissionController.serviceMonitor.enabled=true",),
        "prometheusRule.additionalLabels.release=prom",
        namespace="policy-system",
    )
    rule = found["PrometheusRule", "kyverno-mp"]
    assert rule["metadata"]["labels"]["release"] == "prom"
    ((_, wanted),) = manifest("prometheusrule.yaml").items()
    assert rule["spec"] == wanted["spec"]
    shown = found["ConfigMap", "kyverno-mp-grafana"]
    assert json.loads(shown["data"]["kyverno-mp.json"]) == dashboard.dashboard()
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    monitor = found["ServiceMonitor", "kyverno-svc"]["spec"]
    ((_, by_hand),) = manifest("servicemonitor.yaml").items()
    assert monitor["endpoints"] == by_hand["spec"]["endpoints"]
    assert monitor["selector"] == by_hand["spec"]["selector"]
    assert monitor["namespaceSelector"] == {"matchNames": ["policy-system"]}


def test_release_fits_into_a_secret(helm: str, tmp_path: Path) -> None:
    """K8S: a Secret is limited to 1 MiB, and Helm stores chart and manifest in one."""
    done = run(helm, "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        names = set(archive.getnames())
        content = b"".join(
            found.read() for one in archive if (found := archive.extractfile(one))
        )
    assert "kyverno-mp/monitoring/dashboard.json" in names
    definitions = {name for name in names if "/crds-files/" in name}
    assert len(definitions) == len(list((ROOT / "config" / "crds").glob("*.yaml")))
    # Helm encodes files in base64 within JSON, compresses the JSON, and encodes it
    # again.
    release = base64.b64encode(content) + template(helm).encode()
    assert len(base64.b64encode(gzip.compress(release))) < 900_000


def test_helm_lint_finds_no_problems(helm: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_no_template_expression_remains(helm: str) -> None:
    for key, one in render(helm).items():
        for path, text in strings(one):
            assert "{{" not in text, (key, path)
            assert "@@" not in text, (key, path)
