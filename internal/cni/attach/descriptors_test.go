// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// With the least no file can be opened, with the most an ADD succeeds.
const minDescriptors, maxDescriptors = 3, 28

// limited runs a call that may have so many descriptors open. What it answers must be a
// result or a CNI error, and no fault of Weft's own.
func (r *rig) limited(n int, verb string, env ...string) {
	r.t.Helper()
	cmd := r.command(verb, env...)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf("ulimit -n %d; exec %q", n, r.bin)}
	a := r.finish(cmd)
	var e cniError
	if len(a.stdout) > 0 || a.status != 0 {
		if err := json.Unmarshal([]byte(a.stdout), &e); err != nil {
			r.t.Errorf("%s with %d descriptors: exit %d, %v\n%s%s", verb, n, a.status, err, a.stdout, a.stderr)
		}
	}
	if e.Code == 100 || (a.status == 0) != (e.Code == 0) {
		r.t.Errorf("%s with %d descriptors: exit %d, %s%s", verb, n, a.status, a.stdout, a.stderr)
	}
}

// wantUndone is wantClean, but for the sweep's marks of DELs that failed, which it takes
// away by itself.
func (r *rig) wantUndone() {
	r.t.Helper()
	if left := append(r.files(r.hold), r.files(filepath.Dir(r.record()))...); len(left) > 0 {
		r.t.Errorf("left %v", left)
	}
}

// Running out of descriptors, wherever it happens, is nobody's bug and leaves nothing.
func TestFewDescriptors(t *testing.T) {
	for name, prepare := range map[string]func(*rig){
		"confs in the request": func(r *rig) { r.pod(networks, "neta") },
		"confs of the host": func(r *rig) {
			delete(r.conf, "delegates")
			r.conf["clusterNetwork"] = "defnet"
			r.write(filepath.Join(r.conf["confDir"].(string), "10-defnet.conf"), r.json(r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet")))
			r.nad("default", "filed", "")
			r.write(filepath.Join(r.conf["confDir"].(string), "20-filed.conf"), r.json(r.delegate("pb", "cniVersion", "1.0.0", "name", "filed")))
			r.pod(networks, "filed")
		},
		"conf at a path": func(r *rig) {
			delete(r.conf, "delegates")
			r.conf["clusterNetwork"] = filepath.Join(r.dir, "net.d", "10-defnet.conf")
			r.conf["auxiliaryCNIChainName"] = "chain"
			r.write(filepath.Join(r.dir, "net.d", "10-defnet.conf"), r.json(r.delegate("pa", "cniVersion", "1.0.0", "name", "defnet")))
			r.write(filepath.Join(r.dir, "net.d", "chain", "10.conf"), r.json(r.delegate("pc", "cniVersion", "1.0.0", "name", "aux")))
			r.conf["logFile"] = filepath.Join(r.dir, "log")
			r.pod()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			prepare(r)
			for n := minDescriptors; n <= maxDescriptors; n++ {
				r.limited(n, "ADD")
				r.ok("DEL")
				r.wantUndone()
				r.ok("ADD")
				for _, verb := range []string{"CHECK", "STATUS", "GC", "DEL"} {
					r.limited(n, verb)
				}
				r.ok("DEL")
				r.wantUndone()
			}
		})
	}
}

// What Multus left is read under the same law.
func TestFewDescriptorsAndScratch(t *testing.T) {
	r := newRig(t)
	old := r.delegate("pb", "cniVersion", "1.0.0", "name", "old")
	scratch := filepath.Join(r.conf["cniDir"].(string), "cid1")
	for n := minDescriptors; n <= maxDescriptors; n++ {
		r.write(scratch, r.json([]any{map[string]any{"Conf": old, "Name": "old", "Bytes": base64.StdEncoding.EncodeToString([]byte(r.json(old)))}}))
		r.limited(n, "GC")
		r.limited(n, "DEL")
		r.ok("DEL")
		if _, err := os.Stat(scratch); err == nil {
			t.Errorf("%d descriptors: Multus' record is left", n)
		}
	}
}
