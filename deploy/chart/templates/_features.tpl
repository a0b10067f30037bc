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
