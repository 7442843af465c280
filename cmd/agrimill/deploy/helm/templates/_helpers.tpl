{{/* The name of everything: that of the release, with agrimill in it. */}}
{{- define "agrimill.name" -}}
{{- if contains "agrimill" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-agrimill" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "agrimill.selector" -}}
app.kubernetes.io/name: agrimill
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "agrimill.labels" -}}
{{ include "agrimill.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "agrimill.claim" -}}
{{ .Values.persistence.existingClaim | default (include "agrimill.name" .) }}
{{- end }}
