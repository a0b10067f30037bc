"""Published artefacts besides the source: manifests, chart, alerts, dashboard."""
