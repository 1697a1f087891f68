// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// recorded are orders as an agent of version 1 gives them, by the name of the file.
func recorded(tb testing.TB) map[string][]byte {
	tb.Helper()
	paths, err := filepath.Glob("testdata/orders/*.json")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no recorded orders: %v", err)
	}
	all := map[string][]byte{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = b
	}
	return all
}

// What an agent of version 1 has sent is read as it was meant.
func TestRecordedOrders(t *testing.T) {
	for name, b := range recorded(t) {
		o, err := apply.Parse(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		conf, _, err := netconf.Parse(o.Conf)
		if err != nil || conf.Name != "k8s-pod-network" {
			t.Errorf("%s: conf %q: %v", name, o.Conf, err)
		}
		if string(o.Task) != name || o.Begun.UTC().Hour() != 16 || !strings.HasSuffix(string(o.Key), "-eth0") {
			t.Errorf("%s is read as %+v", name, o)
		}
	}
}

// FuzzParse: whatever is on stdin, there is an error, or an order that may be obeyed: of a version
// and task that are known, with a key that names a file of the record's directory and none elsewhere.
func FuzzParse(f *testing.F) {
	for _, b := range recorded(f) {
		f.Add(b)
		f.Add([]byte(strings.Replace(string(b), `"key":"`, `"key":"../`, 1)))
		f.Add([]byte(strings.Replace(string(b), `"version":1`, `"version":1.0e0`, 1)))
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte(`{"version":1,"task":"undo","key":"a-b","begun":"0001-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := apply.Parse(b)
		if err != nil {
			return
		}
		key := string(o.Key)
		switch {
		case o.Version != apply.Version || o.Begun.IsZero():
			t.Errorf("obeys %+v", o)
		case o.Task != apply.Undo && o.Task != apply.Plug:
			t.Errorf("obeys task %q", o.Task)
		case key == "" || key != filepath.Base(key) || key == "." || key == "..":
			t.Errorf("obeys an order about %q", key)
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		same, err := apply.Parse(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if diff := cmp.Diff(o, same); diff != "" {
			t.Error(diff)
		}
	})
}
