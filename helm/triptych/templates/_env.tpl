{{/* Environment of a service. `dict "root" $ "component" "prefill" "prefix" "TRIPTYCH_PREFILL" "values" .Values.prefill`. */}}
{{- define "triptych.env" -}}
{{- $root := .root -}}
{{- $prefix := .prefix -}}
{{- $values := .values -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{ include "triptych.redisEnv" . }}
- {name: {{ $prefix }}_MODEL, value: {{ $root.Values.model.path | quote }}}
- {name: {{ $prefix }}_MODEL_NAME, value: {{ $root.Values.model.name | quote }}}
- {name: {{ $prefix }}_HOST, value: {{ $root.Values.global.listenHost | quote }}}
- {name: {{ $prefix }}_PORT, value: "50051"}
- {name: {{ $prefix }}_ADVERTISE, value: "$(POD_IP)"}
- {name: {{ $prefix }}_LOG_LEVEL, value: {{ $root.Values.global.logLevel | quote }}}
- {name: {{ $prefix }}_LOG_FORMAT, value: json}
{{- /* Streams may go on nearly as long as the pod; what is left is for closing. */}}
- {name: {{ $prefix }}_DRAIN_GRACE_S, value: {{ sub $values.gracePeriodSeconds (add 10 (default 0 $values.preStopSeconds)) | max 0 | quote }}}
{{- if ne .component "router" }}
- {name: {{ $prefix }}_METRICS_PORT, value: "9090"}
{{- end }}
{{- if $root.Values.tracing.endpoint }}
- {name: {{ $prefix }}_OTLP_ENDPOINT, value: {{ $root.Values.tracing.endpoint | quote }}}
- {name: {{ $prefix }}_TRACE_RATIO, value: {{ $root.Values.tracing.ratio | quote }}}
{{- end }}
{{- if $root.Values.tls.enabled }}
- {name: {{ $prefix }}_TLS_CERT, value: /etc/triptych/tls/tls.crt}
- {name: {{ $prefix }}_TLS_KEY, value: /etc/triptych/tls/tls.key}
- {name: {{ $prefix }}_TLS_CA, value: /etc/triptych/tls/ca.crt}
{{- if ne .component "router" }}
- {name: {{ $prefix }}_TLS_CLIENT_CA, value: /etc/triptych/tls/ca.crt}
{{- end }}
{{- end }}
{{- if .kuberay }}
{{ include "triptych.rayEnv" . }}
{{- if ne .component "encoder-head" }}
{{- /* How long Ray waits for what runs on a node that gets SIGTERM. */}}
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ sub $values.gracePeriodSeconds 10 | max 0 | quote }}}
{{- end }}
{{- end }}
{{- range $name, $value := $values.settings }}
- {name: {{ $prefix }}_{{ $name | upper }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- include "triptych.moreEnv" . }}
{{- end -}}

{{/* What the values add, on lines of its own. */}}
{{- define "triptych.moreEnv" -}}
{{- with concat (default list .root.Values.global.env) (default list .values.env) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Secret with the CA of an external Redis; empty: a public CA, or no TLS. */}}
{{- define "triptych.redisAuthority" -}}
{{- $redis := .root.Values.redis -}}
{{- if not $redis.enabled }}{{ $redis.external.caSecret }}{{ end -}}
{{- end -}}

{{/* The Redis URL: of the built-in one, of a secret, or as it is given. */}}
{{- define "triptych.redisEnv" -}}
{{- $redis := .root.Values.redis -}}
{{- if $redis.enabled -}}
{{- /* Not REDIS_PASSWORD: KubeRay refuses a head that has that name already. */}}
- name: STORE_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "triptych.redisSecret" .root }}, key: password}}
- {name: {{ .prefix }}_REDIS_URL, value: "redis://:$(STORE_PASSWORD)@{{ include "triptych.fullname" .root }}-redis:6379/0"}
{{- else if $redis.external.secret -}}
- name: {{ .prefix }}_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ $redis.external.secret }}, key: {{ $redis.external.key }}}}
{{- else -}}
- {name: {{ .prefix }}_REDIS_URL, value: {{ required "redis.external.url or redis.external.secret is needed while redis.enabled is false" $redis.external.url | quote }}}
{{- end -}}
{{- end -}}
