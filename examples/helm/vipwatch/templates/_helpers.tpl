{{- define "vipwatch.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}-node
{{- end }}

{{- define "vipwatch.selector" -}}
app.kubernetes.io/name: vipwatch
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "vipwatch.labels" -}}
{{ include "vipwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}
