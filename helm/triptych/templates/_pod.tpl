{{/* The pod of a service: `dict "root" $ "component" "prefill" "module" "services.prefill" "prefix" ... "values" .Values.prefill`. */}}
{{- define "triptych.pod" -}}
{{- $root := .root -}}
{{- $global := $root.Values.global -}}
{{- $values := .values -}}
metadata:
  labels: {{- include "triptych.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ toYaml (dict "values" $values "model" $root.Values.model "redis" $root.Values.redis "tls" $root.Values.tls) | sha256sum }}
    {{- with $global.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "triptych.serviceAccount" $root }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ $values.gracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with $global.pullSecrets }}
  imagePullSecrets: {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- include "triptych.scheduling" . | nindent 2 }}
  {{- if eq $root.Values.model.source "initContainer" }}
  initContainers:
    - name: model
      image: {{ required "model.initContainer.image is needed" $root.Values.model.initContainer.image }}
      {{- with $root.Values.model.initContainer.command }}
      command: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.model.initContainer.env }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "triptych.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: model, mountPath: {{ $root.Values.model.path }}}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "triptych.image" (dict "root" $root "image" $values.image) }}
      imagePullPolicy: {{ $global.pullPolicy }}
      command: [python, -P, -m, {{ .module }}]
      env: {{- include "triptych.env" . | nindent 8 }}
      ports: {{- include "triptych.ports" . | nindent 8 }}
      {{- include "triptych.probes" . | nindent 6 }}
      {{- if $values.preStopSeconds }}
      lifecycle:
        preStop: {exec: {command: [sleep, {{ $values.preStopSeconds | quote }}]}}
      {{- end }}
      resources: {{- include "triptych.resources" $values | nindent 8 }}
      securityContext: {{- include "triptych.containerSecurity" $root | nindent 8 }}
      volumeMounts: {{- include "triptych.mounts" . | nindent 8 }}
    {{- with .sidecar }}
    {{- . | nindent 4 }}
    {{- end }}
  volumes: {{- include "triptych.volumes" . | nindent 4 }}
{{- end -}}

{{- define "triptych.scheduling" -}}
{{- $global := .root.Values.global -}}
{{- $priority := default (ternary (include "triptych.fullname" .root) "" .root.Values.priorityClass.create) $global.priorityClassName -}}
{{- with $priority }}
priorityClassName: {{ . }}
{{- end }}
{{- with $global.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with default $global.nodeSelector .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $global.tolerations .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $global.affinity .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $global.spreadOver }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "triptych.selector" $ | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "triptych.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "triptych.ports" -}}
- {name: grpc, containerPort: 50051}
{{- if eq .component "router" }}
- {name: http, containerPort: 8000}
{{- else }}
- {name: metrics, containerPort: 9090}
{{- end }}
{{- end -}}

{{- define "triptych.resources" -}}
{{- $gpus := default 0 .gpus | int -}}
{{- $resources := deepCopy (default dict .resources) -}}
{{- if gt $gpus 0 -}}
{{- $_ := set $resources "limits" (merge (dict .gpuResource (toString $gpus)) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

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

{{- define "triptych.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if ne .root.Values.model.source "image" }}
- name: model
  mountPath: {{ .root.Values.model.path }}
  readOnly: true
  {{- if and (eq .root.Values.model.source "pvc") .root.Values.model.pvc.subPath }}
  subPath: {{ .root.Values.model.pvc.subPath }}
  {{- end }}
{{- end }}
{{- if .values.shm }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/triptych/tls, readOnly: true}
{{- end }}
{{- if and (eq .component "router") .values.keys.secret }}
- {name: keys, mountPath: /etc/triptych/keys, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "triptych.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if eq .root.Values.model.source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ .root.Values.model.pvc.claim }}, readOnly: true}
{{- else if eq .root.Values.model.source "imageVolume" }}
- name: model
  image:
    reference: {{ required "model.imageVolume.reference is needed" .root.Values.model.imageVolume.reference }}
    pullPolicy: {{ .root.Values.model.imageVolume.pullPolicy }}
{{- else if eq .root.Values.model.source "initContainer" }}
- name: model
  emptyDir: {sizeLimit: {{ .root.Values.model.initContainer.size }}}
{{- end }}
{{- if .values.shm }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .values.shm }}}
{{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "triptych.tlsSecret" .root }}}
{{- end }}
{{- if and (eq .component "router") .values.keys.secret }}
- name: keys
  secret: {secretName: {{ .values.keys.secret }}}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
