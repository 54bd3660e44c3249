{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The text of a file of kustomize's, for this release's namespace. */ -}}
{{- define "nvshared.file" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- .root.Files.Get (printf "files/%s" .path)
  | replace ":nvshare:nvshare-kubelet" (printf ":%s:nvshare-kubelet" $namespace)
  | replace "namespace: nvshare" (printf "namespace: %s" $namespace)
  | replace "/var/lib/kubelet/" (printf "%s/" .root.Values.kubeletRootDir) -}}
{{- end -}}

{{- define "nvshared.labels" -}}
app.kubernetes.io/part-of: nvshared
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "nvshared.strategy" -}}
nvshare.com/strategy: {{ ternary "nvshared-daemonset" "nvshared" .Values.daemon.enabled }}
{{- end -}}

{{- /* An object of a file, with this release's labels. */ -}}
{{- define "nvshared.object" -}}
{{- $object := fromYaml .text -}}
{{- with $object.Error }}{{ fail . }}{{ end -}}
{{- $labels := mergeOverwrite (include "nvshared.labels" .root | fromYaml)
    (include "nvshared.strategy" .root | fromYaml) ($object.metadata.labels | default dict) -}}
{{- $_ := set $object.metadata "labels" $labels -}}
{{- toYaml $object -}}
{{- end -}}

{{- /* A list whose members have names, with those of another one: what kustomize's patches do. */ -}}
{{- define "nvshared.merged" -}}
{{- $news := dict -}}
{{- range .new }}{{ $_ := set $news .name . }}{{ end -}}
{{- $merged := list -}}
{{- range $old := .old -}}
  {{- $one := deepCopy $old -}}
  {{- range $key, $value := get $news $old.name | default dict -}}
    {{- if kindIs "invalid" $value }}{{ $_ := unset $one $key }}
    {{- else if eq $key "volumeMounts" }}{{ $_ := set $one $key (concat (get $one $key) $value) }}
    {{- else }}{{ $_ := set $one $key $value }}{{ end -}}
  {{- end -}}
  {{- $_ := unset $news $old.name -}}
  {{- $merged = append $merged $one -}}
{{- end -}}
{{- range .new }}{{ if hasKey $news .name }}{{ $merged = append $merged . }}{{ end }}{{ end -}}
{{- toYaml $merged -}}
{{- end -}}

{{- define "nvshared.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
