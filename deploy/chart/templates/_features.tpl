{{- /* Additions to pods for the values `dashboard` and `recording`. Each helper takes the root
and the component, and returns nothing if there is nothing to add. */}}

{{- /* The pods that show the dashboard: those that may read reports. */}}
{{- define "kyverno.dashboard.component" -}}
{{ ternary "reports-controller" "admission-controller" .Values.split }}
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
