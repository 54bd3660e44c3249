{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The values, with the defaults of those that are absent, as after `upgrade --reuse-values`. */ -}}
{{- define "nvshared.values" -}}
{{- mergeOverwrite (.Files.Get "files/values.yaml" | fromYaml) (deepCopy .Values) | toYaml -}}
{{- end -}}

{{- /* What names of this release's objects end with, so that a cluster may have several. */ -}}
{{- define "nvshared.suffix" -}}
{{- if ne .Release.Name .Chart.Name }}-{{ .Release.Name }}{{ end -}}
{{- end -}}

{{- define "nvshared.name" -}}
{{- printf "%s%s" .name (include "nvshared.suffix" .root) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* The text of a file of kustomize's, for this release's namespace and account. */ -}}
{{- define "nvshared.file" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $account := include "nvshared.name" (dict "root" .root "name" "nvshare-kubelet") -}}
{{- .root.Files.Get (printf "files/%s" .path)
  | replace ":nvshare:nvshare-kubelet" (printf ":%s:%s" $namespace $account)
  | replace "namespace: nvshare" (printf "namespace: %s" $namespace) -}}
{{- end -}}

{{- define "nvshared.labels" -}}
app.kubernetes.io/part-of: nvshared
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "nvshared.strategy" -}}
{{- $values := include "nvshared.values" . | fromYaml -}}
nvshare.com/strategy: {{ ternary "nvshared-daemonset" "nvshared" $values.daemon.enabled }}
{{- end -}}

{{- /* An object of a file, with this release's names and labels. */ -}}
{{- define "nvshared.object" -}}
{{- $object := fromYaml .text -}}
{{- with $object.Error }}{{ fail . }}{{ end -}}
{{- $named := list $object.metadata -}}
{{- if eq $object.kind "DeviceClass" }}{{ $named = list }}{{ end -}}
{{- with $object.roleRef }}{{ $named = append $named . }}{{ end -}}
{{- $named = concat $named ($object.subjects | default list) -}}
{{- range $named }}{{ $_ := set . "name" (include "nvshared.name" (dict "root" $.root "name" .name)) }}{{ end -}}
{{- with $object.spec -}}
  {{- if .policyName -}}
    {{- $_ := set . "policyName" (include "nvshared.name" (dict "root" $.root "name" .policyName)) -}}
  {{- end -}}
{{- end -}}
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

{{- /* Variables, where later ones replace earlier ones of the same name as a whole. */ -}}
{{- define "nvshared.env" -}}
{{- $last := dict -}}
{{- range . }}{{ $_ := set $last .name . }}{{ end -}}
{{- $env := list -}}
{{- range . -}}
  {{- if hasKey $last .name }}{{ $env = append $env (get $last .name) }}{{ $_ := unset $last .name }}{{ end -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{- define "nvshared.image" -}}
{{- with .image.digest -}}
{{ $.image.repository }}@{{ . }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* Options of nvshare-kubelet that may depend on the node. */ -}}
{{- define "nvshared.options" -}}
{{- $options := list "--replicas" (.replicas | int | toString) -}}
{{- range .priorityClasses -}}
  {{- $options = concat $options (list "--priority-class" (printf "%s=%s" .class .priority)) -}}
{{- end -}}
{{- if .foreignAnnotations }}{{ $options = append $options "--foreign-annotations" }}{{ end -}}
{{- toYaml $options -}}
{{- end -}}

{{- define "nvshared.settings" -}}
{{- $values := include "nvshared.values" . | fromYaml -}}
{{- $files := dict -}}
{{- range $name, $settings := merge $values.nodeSettings (dict "default" dict) -}}
  {{- $all := mergeOverwrite (pick $values "replicas" "priorityClasses" "foreignAnnotations") ($settings | default dict) -}}
  {{- $_ := set $files $name (printf "%s\n" (include "nvshared.options" $all | fromYamlArray | join " ")) -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}

{{- /* nvshared.conf. */ -}}
{{- define "nvshared.config" -}}
{{- $values := include "nvshared.values" . | fromYaml -}}
{{ $values.daemon.config | default (.Files.Get "files/nvshared.conf") }}
{{- end -}}
