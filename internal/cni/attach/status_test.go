// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"os"
	"path/filepath"
	"testing"
)

// B65: STATUS is 50 while the file that the published conf was made from is missing or
// broken, and then the primary's own answer. No other verb looks at it.
func TestStatusOfThePrimaryConf(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.dir, "net.d")
	primary := filepath.Join(dir, "10-primary.conflist")
	const good = `{"cniVersion":"0.4.0","name":"defnet","plugins":[{"type":"pa"}]}`
	r.conf["cniVersion"] = "1.1.0"
	r.conf["primaryConf"] = primary
	r.conf["delegates"] = []any{r.delegate("pa", "cniVersion", "1.1.0", "name", "defnet",
		"fail", map[string]any{"STATUS": map[string]any{"code": 51, "msg": "few addresses"}})}

	r.fails(50, "10-primary.conflist", "STATUS")
	for _, broken := range []string{"", `{"cniVersion":`, `{"name":"defnet"}`, `{"name":"defnet","plugins":[]}`, `{"name":"defnet","type":7}`} {
		r.write(primary, broken)
		r.fails(50, "10-primary.conflist", "STATUS")
	}
	r.wantCalls()
	r.pod()
	r.ok("ADD")
	r.ok("CHECK")
	r.ok("DEL")
	r.calls()

	r.write(primary, good)
	r.fails(51, "few addresses", "STATUS")
	r.wantCalls("pa STATUS ")

	// A list may live from the plugins of its sub-directory alone.
	r.write(primary, `{"cniVersion":"1.0.0","name":"defnet"}`)
	r.fails(50, "10-primary.conflist", "STATUS")
	r.write(filepath.Join(dir, "defnet", "10-pa.conf"), `{"type":"pa"}`)
	r.fails(51, "few addresses", "STATUS")
	r.write(filepath.Join(dir, "defnet", "20-pb.conf"), `{"type":`)
	r.fails(50, "chained plugins[1]", "STATUS")

	if err := os.Remove(primary); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(primary, 0o755); err != nil {
		t.Fatal(err)
	}
	r.fails(50, "10-primary.conflist", "STATUS")
	r.conf["primaryConf"] = "net.d/10-primary.conflist"
	r.fails(7, "primaryConf", "STATUS")
}
