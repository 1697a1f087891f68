// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// limits adds up the extended resources (those with a domain) that a pod's containers are
// given, and says whether the pod has resource claims. An init container gives back what
// it had, so the greatest of them counts where it is more. What is malformed counts
// nothing: judging it is the API server's part.
func limits(spec *yaml.Node) (sum map[string]int, claims bool) {
	v := &view{}
	fields := v.object(spec, "spec")
	sum = map[string]int{}
	for _, container := range elements(fields["containers"]) {
		for name, n := range containerLimits(v, container) {
			sum[name] += n
		}
	}
	for _, container := range elements(fields["initContainers"]) {
		for name, n := range containerLimits(v, container) {
			sum[name] = max(sum[name], n)
		}
	}
	return sum, len(elements(fields["resourceClaims"])) > 0
}

func containerLimits(v *view, container *yaml.Node) map[string]int {
	all := map[string]int{}
	resources := v.object(v.object(container, "")["resources"], "")
	for name, value := range v.object(resources["limits"], "") {
		value = target(value)
		n, err := strconv.Atoi(value.Value)
		if value.Kind == yaml.ScalarNode && err == nil && n > 0 && strings.Contains(name, "/") {
			all[name] = n
		}
	}
	return all
}

func elements(n *yaml.Node) []*yaml.Node {
	if n = target(n); isNull(n) || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}
