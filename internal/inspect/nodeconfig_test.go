// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/kube/rest"
)

// selected answers Select from JSON, by plural.
type selected map[string][]string

func (s selected) Select(_ context.Context, res rest.Resource, _, _ string) ([]rest.Object, error) {
	var all []rest.Object
	for plural, texts := range s {
		if fmt.Sprint(res) != fmt.Sprint(map[string]rest.Resource{
			"nodes": rest.Nodes(), "ciliumnodes": rest.CiliumNodes(), "cluster": rest.ClusterConfigs(), "node": rest.NodeConfigs(),
		}[plural]) {
			continue
		}
		for _, text := range texts {
			var o rest.Object
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				return nil, err
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// TestExplainNodeConfig: why a node has what it has of the network driver.
func TestExplainNodeConfig(t *testing.T) {
	const (
		all   = `{"metadata":{"name":"all","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"spec":{}}}`
		role  = `{"metadata":{"name":"role","creationTimestamp":"2026-01-02T00:00:00Z"},"spec":{"nodeSelector":{"matchLabels":{"role":"x"}},"spec":{}}}`
		wrong = `{"metadata":{"name":"wrong","creationTimestamp":"2026-01-02T00:00:00Z"},"spec":{"spec":{"pools":[{"name":"a"},{"name":"a"}]}}}`
		n1    = `{"metadata":{"name":"n1","labels":{"role":"x"}}}`
		byAll = `{"metadata":{"name":"n1","labels":{"app.kubernetes.io/managed-by":"weft-operator"},"annotations":{"networkdriver.cilium.io/cluster-config":"all"}},"spec":{}}`
		hand  = `{"metadata":{"name":"n1"},"spec":{}}`
	)
	for name, c := range map[string]struct {
		api  selected
		want []string
	}{
		"nothing": {selected{"nodes": {n1}}, nil},
		"a conflict": {selected{"nodes": {n1}, "cluster": {role, all}, "node": {byAll}}, []string{
			"ok cluster configuration: all governs the node: it is the first of 2 configurations that select it",
			"warn cluster configuration: role selects the node and is in conflict: all goes first and governs nodes that this configuration selects too: n1",
			"ok node configuration: was made by all",
		}},
		"nobody works": {selected{"nodes": {n1}, "cluster": {role}, "node": {byAll}}, []string{
			"ok cluster configuration: role governs the node: it is the first of 1 configuration that select it",
			"warn node configuration: is not yet the one of role",
		}},
		"by hand": {selected{"nodes": {n1}, "node": {hand}}, []string{"info cluster configuration: none selects the node", "ok node configuration: was written by hand, and stays"}},
		"an invalid one": {selected{"nodes": {n1}, "cluster": {wrong}}, []string{
			`fault cluster configuration: wrong selects the node and is invalid: spec.spec.pools[1].name: Duplicate value: "a"`,
			"info node configuration: there is none",
		}},
		"nodes of Cilium": {selected{"nodes": {n1}, "ciliumnodes": {`{"metadata":{"name":"n1"}}`}, "cluster": {role}}, []string{
			"info cluster configuration: none selects the node", "info node configuration: there is none",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			checkup := newCheckup()
			checkup.nodeConfig(t.Context(), "n1", c.api)
			var got []string
			for _, check := range checkup.Checks {
				got = append(got, check.Result+" "+check.Check+": "+check.Text)
			}
			if d := cmp.Diff(c.want, got); d != "" || len(checkup.Unseen) > 0 {
				t.Errorf("checks (-want +got):\n%s%v", d, checkup.Unseen)
			}
		})
	}
}
