// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/test/binaries"
)

// BenchmarkRun compares one ADD of a delegate that does nothing with the same process
// run by os/exec alone.
func BenchmarkRun(b *testing.B) {
	dir := binaries.Delegate(b, "pa")
	conf := []byte(`{"cniVersion":"1.0.0","name":"n","type":"pa"}`)
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command(filepath.Join(dir, "pa"))
			cmd.Env = []string{"CNI_COMMAND=ADD"}
			cmd.Stdin = bytes.NewReader(conf)
			if _, err := cmd.Output(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("chain", func(b *testing.B) {
		r := chain.New(nil, nil)
		c := chain.Call{Path: dir, Network: netconf.Network{
			Name: "n", CNIVersion: "1.0.0", Plugins: []netconf.Plugin{{Type: "pa", Conf: conf}},
		}, Started: func(int, chain.Group) {}}
		for b.Loop() {
			if _, err := r.Add(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	})
}
