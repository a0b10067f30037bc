{{- /* Additions to pods for the values `dashboard`, `notifications` and `recording`. Each helper takes the root
and the component, and returns nothing if there is nothing to add. */}}

{{- /* The pods that show the dashboard: those that may read reports. */}}
{{- define "kyverno.dashboard.component" -}}
{{ ternary "reports-controller" "admission-controller" .Values.split }}
{{- end }}

{{- /* Whether pods write reports. */}}
{{- define "kyverno.reports.isIn" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
{{- if eq $name (ternary "reportsController" "admissionController" $root.Values.split) }}true{{ end }}
{{- end }}

{{- define "kyverno.dashboard.isIn" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
{{- if and $root.Values.dashboard.enabled (eq $name (ternary "reportsController" "admissionController" $root.Values.split)) }}true{{ end }}
{{- end }}

{{- define "kyverno.dashboard.env" -}}
{{- if include "kyverno.dashboard.isIn" . }}{{ $root := index . 0 }}{{ $values := $root.Values.dashboard -}}
- name: KYVERNO_MP_DASHBOARD
  value: "true"
- name: KYVERNO_MP_DASHBOARD_PORT
  value: {{ $values.port | int | quote }}
{{- if $values.ingressFrom }}
- name: KYVERNO_MP_DASHBOARD_HOST
  value: 0.0.0.0
{{- end }}
{{- if $values.tokenSecret }}
- name: KYVERNO_MP_DASHBOARD_TOKEN_FILE
  value: /var/run/secrets/kyverno/dashboard/token
{{- end }}
{{- end }}
{{- end }}

{{- define "kyverno.dashboard.ports" -}}
{{- if include "kyverno.dashboard.isIn" . }}{{ $root := index . 0 -}}
- name: dashboard
  containerPort: {{ $root.Values.dashboard.port | int }}
  protocol: TCP
{{- end }}
{{- end }}

{{- define "kyverno.dashboard.mounts" -}}
{{- $root := index . 0 }}{{ if and (include "kyverno.dashboard.isIn" .) $root.Values.dashboard.tokenSecret -}}
- name: dashboard-token
  mountPath: /var/run/secrets/kyverno/dashboard
  readOnly: true
{{- end }}
{{- end }}

{{- define "kyverno.dashboard.volumes" -}}
{{- $root := index . 0 }}{{ if and (include "kyverno.dashboard.isIn" .) $root.Values.dashboard.tokenSecret -}}
- name: dashboard-token
  secret:
    secretName: {{ $root.Values.dashboard.tokenSecret }}
{{- end }}
{{- end }}

{{- define "kyverno.notifications.env" -}}
{{- $root := index . 0 }}{{ $values := $root.Values.notifications }}{{ if and $values.urlSecret (include "kyverno.reports.isIn" .) -}}
- name: KYVERNO_MP_NOTIFY_URL_FILE
  value: /var/run/secrets/kyverno/notifications/url
- name: KYVERNO_MP_NOTIFY_FORMAT
  value: {{ $values.format }}
- name: KYVERNO_MP_NOTIFY_INTERVAL_S
  value: {{ $values.intervalSeconds | int | quote }}
{{- end }}
{{- end }}

{{- define "kyverno.notifications.mounts" -}}
{{- $root := index . 0 }}{{ if and $root.Values.notifications.urlSecret (include "kyverno.reports.isIn" .) -}}
- name: notifications
  mountPath: /var/run/secrets/kyverno/notifications
  readOnly: true
{{- end }}
{{- end }}

{{- define "kyverno.notifications.volumes" -}}
{{- $root := index . 0 }}{{ if and $root.Values.notifications.urlSecret (include "kyverno.reports.isIn" .) -}}
- name: notifications
  secret:
    secretName: {{ $root.Values.notifications.urlSecret }}
{{- end }}
{{- end }}

{{- define "kyverno.recording.env" -}}
{{- $root := index . 0 }}{{ with $root.Values.recording }}{{ if .enabled -}}
- name: KYVERNO_MP_RECORD_DIR
  value: /var/lib/recording/reviews
- name: KYVERNO_MP_RECORD_ONE_OF
  value: {{ .oneOf | int64 | quote }}
- name: KYVERNO_MP_RECORD_BYTES_MAX
  value: {{ .bytesMax | int64 | quote }}
{{- with .redact }}
- name: KYVERNO_MP_RECORD_REDACT
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{- define "kyverno.recording.mounts" -}}
{{- $root := index . 0 }}{{ if $root.Values.recording.enabled -}}
- name: recording
  mountPath: /var/lib/recording
{{- end }}
{{- end }}

{{- define "kyverno.recording.volumes" -}}
{{- $root := index . 0 }}{{ if $root.Values.recording.enabled -}}
- name: recording
  {{- toYaml $root.Values.recording.volume | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Names of objects, if they are not the usual ones. */}}
{{- define "kyverno.names.env" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.config.name -}}
- name: KYVERNO_MP_CONFIG_MAP_NAME
  value: {{ . | quote }}
{{ end -}}
{{- with $root.Values.metricsConfig.name -}}
- name: KYVERNO_MP_METRICS_CONFIG_MAP_NAME
  value: {{ . | quote }}
{{ end -}}
{{- end }}

{{- /* Traces, metrics that are pushed, and metrics over TLS: `tracing`, `metering`. */}}
{{- define "kyverno.telemetry.pushes" -}}
{{- $metering := (index (index . 0).Values (index . 1)).metering -}}
{{- if not (has $metering.config (list "" "grpc" "prometheus" nil)) }}
{{- fail (printf "%s.metering.config is neither prometheus nor grpc" (index . 1)) }}
{{- end -}}
{{- if and (eq (toString $metering.config) "grpc") (not $metering.disabled) }}true{{ end }}
{{- end }}

{{- /* The Secret with the collectors' authority, which is one for traces and metrics. */}}
{{- define "kyverno.telemetry.creds" -}}
{{- $name := index . 1 }}{{ $values := index (index . 0).Values $name -}}
{{- $creds := list -}}
{{- if $values.tracing.enabled }}{{ $creds = append $creds ($values.tracing.creds | default "") }}{{ end -}}
{{- if include "kyverno.telemetry.pushes" . }}{{ $creds = append $creds ($values.metering.creds | default "") }}{{ end -}}
{{- if gt (len (uniq $creds)) 1 }}
{{- fail (printf "%s.tracing.creds and %s.metering.creds differ: one authority is used for both collectors" $name $name) }}
{{- end -}}
{{- with $creds }}{{ first . }}{{ end }}
{{- end }}

{{- define "kyverno.telemetry.env" -}}
{{- $name := index . 1 }}{{ $values := index (index . 0).Values $name -}}
{{- with $values.tracing }}{{ if .enabled -}}
- name: KYVERNO_MP_TRACES
  value: "true"
- name: KYVERNO_MP_TRACES_HOST
  value: {{ required (printf "%s.tracing.address is needed with tracing.enabled" $name) .address | quote }}
{{ with .port -}}
- name: KYVERNO_MP_TRACES_PORT
  value: {{ . | int | quote }}
{{ end -}}
{{ if not (kindIs "invalid" .sampled) -}}
- name: KYVERNO_MP_TRACES_SAMPLED
  value: {{ .sampled | quote }}
{{ end -}}
{{ end }}{{ end -}}
{{- if include "kyverno.telemetry.pushes" . -}}
- name: KYVERNO_MP_METRICS_PUSH
  value: "true"
{{ with $values.metering.collector -}}
- name: KYVERNO_MP_METRICS_PUSH_HOST
  value: {{ . | quote }}
{{ end -}}
- name: KYVERNO_MP_METRICS_PUSH_PORT
  value: {{ $values.metering.collectorPort | default $values.metering.port | default 4317 | int | quote }}
{{ end -}}
{{- with $values.otlpProtocol -}}
- name: KYVERNO_MP_OTLP_PROTOCOL
  value: {{ . | quote }}
{{ end -}}
{{- if include "kyverno.telemetry.creds" . -}}
- name: KYVERNO_MP_OTLP_TLS
  value: "true"
- name: KYVERNO_MP_OTLP_CA_FILE
  value: /var/run/secrets/kyverno/collector/ca.pem
{{ end -}}
{{- with $values.metering }}{{ if .disabled -}}
- name: KYVERNO_MP_METRICS
  value: "false"
{{ end -}}
{{ if .secure -}}
- name: KYVERNO_MP_METRICS_TLS
  value: "true"
{{ if .tlsSecret -}}
- name: KYVERNO_MP_METRICS_CERT_FILE
  value: /var/run/secrets/kyverno/metrics/tls.crt
- name: KYVERNO_MP_METRICS_KEY_FILE
  value: /var/run/secrets/kyverno/metrics/tls.key
{{ else if ne $name "admissionController" -}}
{{- fail (printf "%s.metering.secure needs %s.metering.tlsSecret, a Secret of type kubernetes.io/tls: only pods with a webhook have a certificate of their own" $name $name) }}
{{ end -}}
{{ end }}{{ end -}}
{{- end }}

{{- define "kyverno.telemetry.mounts" -}}
{{- $metering := (index (index . 0).Values (index . 1)).metering -}}
{{- if include "kyverno.telemetry.creds" . -}}
- name: collector
  mountPath: /var/run/secrets/kyverno/collector
  readOnly: true
{{ end -}}
{{- if and $metering.secure $metering.tlsSecret -}}
- name: metrics-tls
  mountPath: /var/run/secrets/kyverno/metrics
  readOnly: true
{{ end -}}
{{- end }}

{{- define "kyverno.telemetry.volumes" -}}
{{- $metering := (index (index . 0).Values (index . 1)).metering -}}
{{- with include "kyverno.telemetry.creds" . -}}
- name: collector
  secret:
    secretName: {{ . }}
{{ end -}}
{{- if and $metering.secure $metering.tlsSecret -}}
- name: metrics-tls
  secret:
    secretName: {{ $metering.tlsSecret }}
{{ end -}}
{{- end }}

{{- /* Ports of the webhook, if they are not the usual ones. */}}
{{- define "kyverno.webhook.env" -}}
{{- $values := (index . 0).Values.admissionController -}}
{{- if ne (int $values.webhookServer.port) 9443 -}}
- name: KYVERNO_MP_WEBHOOK_PORT
  value: {{ $values.webhookServer.port | int | quote }}
{{ end -}}
{{- if ne (int $values.service.port) 443 -}}
- name: KYVERNO_MP_SERVICE_PORT
  value: {{ $values.service.port | int | quote }}
{{ end -}}
{{- end }}

{{- /* Certificate authorities: the component's, else the global ones; a PEM before a
volume. Returns the PEM or the volume in a dict, as JSON. */}}
{{- define "kyverno.caCertificates" -}}
{{- $root := index . 0 }}{{ $own := (index $root.Values (index . 1)).caCertificates | default dict -}}
{{- $global := $root.Values.global.caCertificates | default dict -}}
{{- $data := $own.data | default $global.data -}}
{{- $volume := $own.volume | default $global.volume -}}
{{- if $data }}{{ dict "data" $data | toJson }}{{ else if $volume }}{{ dict "volume" $volume | toJson }}{{ end -}}
{{- end }}

{{- define "kyverno.caCertificates.configMapName" -}}
kyverno-{{ . | kebabcase }}-ca-certificates
{{- end }}

{{- define "kyverno.caCertificates.env" -}}
{{- if include "kyverno.caCertificates" . -}}
- name: SSL_CERT_FILE
  value: /etc/kyverno/ca-certificates/ca-certificates.crt
{{- end }}
{{- end }}

{{- define "kyverno.caCertificates.mounts" -}}
{{- if include "kyverno.caCertificates" . -}}
- name: ca-certificates
  mountPath: /etc/kyverno/ca-certificates
  readOnly: true
{{- end }}
{{- end }}

{{- define "kyverno.caCertificates.volumes" -}}
{{- with include "kyverno.caCertificates" . }}{{ $given := fromJson . -}}
- name: ca-certificates
{{- if $given.data }}
  configMap:
    name: {{ include "kyverno.caCertificates.configMapName" (index $ 1) }}
{{- else }}
  {{- toYaml $given.volume | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
