{{/*
Copyright The Weft Authors.
SPDX-License-Identifier: Apache-2.0

What is installed stands in files/, which are copies of deploy/ (make generate). The templates only change
what a value changes. What is called "change" below changes the object that it is given and prints nothing.
*/}}

{{/* A file of files/, for the release's namespace. (list $ "rbac.yaml") */}}
{{- define "weft.file" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (printf "files/%s" (index . 1)) -}}
{{- if not $text -}}{{- fail (printf "the chart has no files/%s" (index . 1)) -}}{{- end -}}
{{- $text | replace "kube-system" $root.Release.Namespace
  | replace "/etc/cni/net.d" $root.Values.directories.cniConf
  | replace "/opt/cni/bin" $root.Values.directories.cniBin
  | replace "/var/lib/kubelet" $root.Values.directories.kubelet -}}
{{- end -}}

{{- define "weft.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the operator is installed: "true" or "". */}}
{{- define "weft.operator" -}}
{{- if or (eq (toString .Values.operator.enabled) "true") (and (eq (toString .Values.operator.enabled) "auto") .Values.networkDriver.enabled) -}}
true
{{- end -}}
{{- end -}}

{{/* Change a list of a map: each item takes the place of the one whose key has the same value, field by
field, or comes behind. (dict "into" map "field" "env" "key" "name" "items" list) */}}
{{- define "weft.merge" -}}
{{- $all := index .into .field | default list -}}
{{- range $new := .items -}}
  {{- $found := false -}}
  {{- range $old := $all -}}
    {{- if eq (index $old $.key) (index $new $.key) -}}
      {{- $found = true -}}
      {{- range $k, $v := $new -}}{{- $_ := set $old $k $v -}}{{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if not $found -}}{{- $all = append $all $new -}}{{- end -}}
{{- end -}}
{{- $_ := set .into .field $all -}}
{{- end -}}

{{/* Change a DaemonSet as a component's patch says. Fields that no patch has so far are refused, since
they would be lost. (dict "onto" daemonset "patch" daemonset) */}}
{{- define "weft.patch" -}}
{{- $pod := .onto.spec.template.spec -}}
{{- $labels := .onto.metadata.labels -}}
{{- range $k, $v := .patch.metadata.labels -}}{{- $_ := set $labels $k $v -}}{{- end -}}
{{- range $field, $value := .patch.spec.template.spec -}}
  {{- if eq $field "volumes" -}}
    {{- include "weft.merge" (dict "into" $pod "field" "volumes" "key" "name" "items" $value) -}}
  {{- else if eq $field "containers" -}}
    {{- range $container := $pod.containers -}}
      {{- range $change := $value -}}
        {{- if eq $change.name $container.name -}}{{- include "weft.patchContainer" (dict "onto" $container "patch" $change) -}}{{- end -}}
      {{- end -}}
    {{- end -}}
  {{- else if kindIs "bool" $value -}}
    {{- $_ := set $pod $field $value -}}
  {{- else -}}
    {{- fail (printf "a patch has the field %s, which the chart does not know how to merge" $field) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "weft.patchContainer" -}}
{{- $container := .onto -}}
{{- range $field, $value := .patch -}}
  {{- if eq $field "env" -}}
    {{- include "weft.merge" (dict "into" $container "field" "env" "key" "name" "items" $value) -}}
  {{- else if eq $field "volumeMounts" -}}
    {{- include "weft.merge" (dict "into" $container "field" "volumeMounts" "key" "mountPath" "items" $value) -}}
  {{- else if eq $field "resources" -}}
    {{- range $kind, $amounts := $value -}}
      {{- range $k, $v := $amounts -}}{{- $_ := set (index $container.resources $kind) $k $v -}}{{- end -}}
    {{- end -}}
  {{- else if eq $field "securityContext" -}}
    {{- range $k, $v := $value -}}{{- $_ := set $container.securityContext $k $v -}}{{- end -}}
  {{- else if or (eq $field "command") (eq $field "name") -}}
    {{- $_ := set $container $field $value -}}
  {{- else -}}
    {{- fail (printf "a patch has the container's field %s, which the chart does not know how to merge" $field) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Change what agent and operator have in common. (list $ podSpec) */}}
{{- define "weft.pod" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- range concat ($pod.initContainers | default list) $pod.containers -}}
  {{- $_ := set . "image" (include "weft.image" $root) -}}
  {{- $_ := set . "imagePullPolicy" $root.Values.image.pullPolicy -}}
{{- end -}}
{{- with $root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- end -}}

{{/* agent.yaml: the commented file of deploy/ first, then what values say. */}}
{{- define "weft.agentConfig" -}}
{{- $config := deepCopy .Values.agent.config -}}
{{- $cni := $config.cni | default dict -}}
{{- $driver := dict -}}
{{- with .Values.directories -}}
  {{- if ne .cniConf "/etc/cni/net.d" -}}{{- $_ := set $cni "confDir" .cniConf -}}{{- end -}}
  {{- if ne .cniBin "/opt/cni/bin" -}}{{- $_ := set $cni "binDir" .cniBin -}}{{- end -}}
  {{- if ne .kubelet "/var/lib/kubelet" -}}
    {{- $_ := set $cni "kubeletDir" .kubelet -}}
    {{- $_ := set $driver "kubeletDir" .kubelet -}}
  {{- end -}}
  {{- if ne .sysfs "/sys" -}}{{- $_ := set $driver "sysfs" .sysfs -}}{{- end -}}
{{- end -}}
{{- if $cni -}}{{- $_ := set $config "cni" $cni -}}{{- end -}}
{{- if $driver -}}{{- $_ := set $config "networkDriver" $driver -}}{{- end -}}
{{- if ne .Values.vmi.mode "disabled" -}}
  {{- $_ := set $config "vmi" (set ($config.vmi | default dict) "mode" .Values.vmi.mode) -}}
{{- end -}}
{{- if $config -}}{{- toYaml $config -}}{{- end -}}
{{- end -}}
