{{/* Of the encoder's image; a test compares it with requirements.lock. The operator reads it. */}}
{{- define "triptych.rayVersion" -}}
2.60.0
{{- end -}}

{{/* The Redis of Ray's state: with it, front and replicas go on serving while the head restarts. */}}
{{- define "triptych.rayState" -}}
{{- $state := .Values.encoder.kuberay.faultTolerance -}}
{{- if $state.redisAddress -}}
redisAddress: {{ $state.redisAddress | quote }}
{{- if and $state.secret $state.usernameKey }}
redisUsername:
  valueFrom: {secretKeyRef: {name: {{ $state.secret }}, key: {{ $state.usernameKey }}}}
{{- end }}
{{- if $state.secret }}
redisPassword:
  valueFrom: {secretKeyRef: {name: {{ $state.secret }}, key: {{ $state.passwordKey }}}}
{{- end }}
{{- else -}}
{{- if not .Values.redis.enabled -}}
{{- fail "encoder.kuberay.faultTolerance.redisAddress is needed while redis.enabled is false" -}}
{{- end -}}
redisAddress: {{ include "triptych.fullname" . }}-redis:6379
redisPassword:
  valueFrom: {secretKeyRef: {name: {{ include "triptych.redisSecret" . }}, key: password}}
{{- end }}
{{- end -}}
