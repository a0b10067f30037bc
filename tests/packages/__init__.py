"""What we hand out beside the source: manifests, chart, alerts, dashboard, wheel."""
