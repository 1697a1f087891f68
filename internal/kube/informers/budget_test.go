// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/kube/kubetest"
)

// TestBudget: NADs that are each small enough are kept as far as there is room for all together, in
// whatever way they come; of the others there are size and outline, and room that becomes free is
// used again.
func TestBudget(t *testing.T) {
	const each, most = 10 << 10, 10
	nad := func(i, size int) string {
		return fmt.Sprintf("---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: n%d, uid: u%d}\nspec: {config: '%s'}\n",
			i, i, strings.Repeat("x", size))
	}
	s := kubetest.New(t)
	var b strings.Builder
	for i := range most + 20 {
		b.WriteString(nad(i, each))
	}
	s.Apply(b.String())
	sum := func(c *Cluster) (whole, outlined, bytes int) {
		for _, n := range c.NADs() {
			switch bytes += n.size(); {
			case n.Large == 0:
				whole++
			case n.Large > 0 && n.Config == "" && n.Outline == fmt.Sprint("of ", n.Large):
				outlined++
			}
		}
		return whole, outlined, bytes
	}
	for name, before := range map[string]func(){"streamed": func() {}, "listed": func() {
		s.Inject(kubetest.Fault{Verb: "watch", Status: 422, Times: 2})
	}} {
		t.Run(name, func(t *testing.T) {
			before()
			r := startWith(t, s, nil, func(c *Cluster) {
				trim := trimmer{func(config string) string { return fmt.Sprint("of ", len(config)) }}
				c.nads.trim, c.nads.budget = trim.trim, trim.budget()
				c.nads.budget.most = most*each + each/2
			}).ready()
			c := r.Cluster
			check := func(whole, outlined int) {
				t.Helper()
				r.until("budget", func() bool {
					w, o, bytes := sum(c)
					c.nads.mu.RLock()
					defer c.nads.mu.RUnlock()
					return w == whole && o == outlined && bytes == c.nads.size
				})
			}
			check(most, 20)
			for i := range most + 20 { // what shrinks makes room
				s.Apply(nad(i, 1))
			}
			check(most+20, 0)
			for i := range most + 20 {
				s.Apply(nad(i, each))
			}
			check(most, 20)
			s.Delete("network-attachment-definitions", "default", "n0")
			s.Apply(nad(most+19, each-1))
			check(most, 19)
			s.Apply(nad(0, each))
			check(most, 20)
			s.Apply(nad(most+19, each))
		})
	}
}
