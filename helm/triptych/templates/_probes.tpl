{{/* Startup covers loading, liveness sees a frozen engine, readiness follows drain. */}}
{{- define "triptych.probes" -}}
{{- if eq .component "router" }}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }}}
  periodSeconds: 2
  failureThreshold: 60
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }}}
  periodSeconds: 10
  failureThreshold: 3
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }}}
  periodSeconds: 3
  failureThreshold: 3
  timeoutSeconds: 5
{{- else if hasPrefix "encoder-" .component }}
startupProbe:
  httpGet: {path: /api/healthz, port: ray-agent}
  periodSeconds: 5
  failureThreshold: {{ div .values.startupSeconds 5 }}
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /api/healthz, port: ray-agent}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 10
readinessProbe:
  httpGet: {path: /api/healthz, port: ray-agent}
  periodSeconds: 10
  failureThreshold: 3
  timeoutSeconds: 10
{{- else }}
startupProbe:
  exec: {command: {{ include "triptych.probe" (dict "root" .root "service" "") }}}
  periodSeconds: 5
  failureThreshold: {{ div .values.startupSeconds 5 }}
  timeoutSeconds: 10
livenessProbe:
  exec: {command: {{ include "triptych.probe" (dict "root" .root "service" "liveness") }}}
  periodSeconds: 20
  failureThreshold: 3
  timeoutSeconds: 10
readinessProbe:
  exec: {command: {{ include "triptych.probe" (dict "root" .root "service" "") }}}
  periodSeconds: 10
  failureThreshold: 3
  timeoutSeconds: 10
{{- end }}
{{- end -}}

{{- define "triptych.probe" -}}
{{- $command := list "triptych" "probe" "127.0.0.1:50051" -}}
{{- if .service -}}{{- $command = concat $command (list "--service" .service) -}}{{- end -}}
{{- if .root.Values.tls.enabled -}}
{{- $command = concat $command (list "--tls-ca" "/etc/triptych/tls/ca.crt" "--tls-cert" "/etc/triptych/tls/tls.crt" "--tls-key" "/etc/triptych/tls/tls.key") -}}
{{- end -}}
{{- toJson $command -}}
{{- end -}}
