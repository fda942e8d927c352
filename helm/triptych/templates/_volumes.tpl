{{/* Where the checkpoint of this pod comes from; empty: it is in the image, or nobody needs it. */}}
{{- define "triptych.modelSource" -}}
{{- if and (not .withoutModel) (ne .root.Values.model.source "image") }}{{ .root.Values.model.source }}{{ end -}}
{{- end -}}

{{- define "triptych.mounts" -}}
{{- $source := include "triptych.modelSource" . -}}
- {name: tmp, mountPath: /tmp}
{{- if $source }}
- name: model
  mountPath: {{ .root.Values.model.path }}
  readOnly: true
  {{- if and (eq $source "pvc") .root.Values.model.pvc.subPath }}
  subPath: {{ .root.Values.model.pvc.subPath }}
  {{- end }}
{{- end }}
{{- if .values.shm }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/triptych/tls, readOnly: true}
{{- end }}
{{- if include "triptych.redisAuthority" . }}
- {name: redis-authority, mountPath: /etc/triptych/redis, readOnly: true}
{{- end }}
{{- if and (eq .component "router") .values.keys.secret }}
- {name: keys, mountPath: /etc/triptych/keys, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "triptych.volumes" -}}
{{- $source := include "triptych.modelSource" . -}}
- name: tmp
  emptyDir: {}
{{- if eq $source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ .root.Values.model.pvc.claim }}, readOnly: true}
{{- else if eq $source "imageVolume" }}
- name: model
  image:
    reference: {{ required "model.imageVolume.reference is needed" .root.Values.model.imageVolume.reference }}
    pullPolicy: {{ .root.Values.model.imageVolume.pullPolicy }}
{{- else if eq $source "initContainer" }}
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
{{- with include "triptych.redisAuthority" . }}
- name: redis-authority
  secret: {secretName: {{ . }}}
{{- end }}
{{- if and (eq .component "router") .values.keys.secret }}
- name: keys
  secret: {secretName: {{ .values.keys.secret }}}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
