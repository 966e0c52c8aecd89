{{- define "mailprobe.labels" -}}
app.kubernetes.io/name: mailprobe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mailprobe.name" -}}
{{ printf "%s-mailprobe" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "mailprobe.secret" -}}
{{ .Values.existingSecret | default (include "mailprobe.name" .) }}
{{- end }}

{{- define "mailprobe.image" -}}
{{ required "image.repository: where your image is" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What every pod has: an unprivileged user, a read-only root, the settings, and the file of secrets. */}}
{{- define "mailprobe.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
volumes:
  - name: config
    secret:
      secretName: {{ include "mailprobe.secret" . }}
      defaultMode: 0440
  - name: tmp
    emptyDir: { sizeLimit: {{ .Values.uploads }} }
  - name: data
    emptyDir: {}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "mailprobe.container" -}}
name: mailprobe
image: {{ include "mailprobe.image" . }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
env:
  - { name: MAILPROBE_CONFIG, value: /run/mailprobe/mailprobe.toml }
  {{- range $name, $value := .Values.settings }}
  - { name: {{ $name }}, value: {{ $value | quote }} }
  {{- end }}
volumeMounts:
  - { name: config, mountPath: /run/mailprobe, readOnly: true }
  - { name: tmp, mountPath: /tmp }
  - { name: data, mountPath: /data }
{{- end }}
