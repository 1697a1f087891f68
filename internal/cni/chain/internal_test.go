// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weftnet/weft/internal/cni/netconf"
)

// Holders is holders for the tests outside: the numbers, sorted.
func Holders(lock *os.File) ([]int, error) {
	found, err := holders(lock)
	return slices.Sorted(maps.Keys(found)), err
}

func TestAtLeast(t *testing.T) {
	tests := []struct {
		version      string
		major, minor int
		want         bool
	}{
		{"", 0, 4, false},
		{"0.3.1", 0, 4, false},
		{"0.4.0", 0, 4, true},
		{"0.10.0", 0, 4, true},
		{"1.0.0", 0, 4, true},
		{"1.0.0", 1, 1, false},
		{"1.1.0", 1, 1, true},
		{"2.0.0", 1, 1, true},
		{"x", 0, 4, false},
		{"1", 0, 4, false},
		{"-1.4", 0, 4, false},
	}
	for _, test := range tests {
		if got := atLeast(test.version, test.major, test.minor); got != test.want {
			t.Errorf("atLeast(%q, %d, %d) = %v", test.version, test.major, test.minor, got)
		}
	}
}

// Plugins start with one thread for Go's code, unless the runtime says otherwise.
func TestAllowedThreads(t *testing.T) {
	tests := []struct {
		name string
		env  []string
		want []string
	}{
		{"none", nil, []string{"PATH=" + defaultPath, "GOMAXPROCS=1"}},
		{"the runtime's", []string{"PATH=/bin", "GOMAXPROCS=3"}, []string{"PATH=/bin", "GOMAXPROCS=3"}},
		{"the runtime's, empty", []string{"GOMAXPROCS=", "PATH=/bin"}, []string{"GOMAXPROCS=", "PATH=/bin"}},
		{"others of Go's", []string{"PATH=/bin", "GOMAXPROCS_X=3", "GODEBUG=x=1"}, []string{"PATH=/bin", "GOMAXPROCS=1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := allowed(test.env); !slices.Equal(got, test.want) {
				t.Errorf("allowed(%q) = %q, want %q", test.env, got, test.want)
			}
		})
	}
}

// The name of a process may hold anything, also what looks like the fields after it.
func TestParseStat(t *testing.T) {
	line := "42 (a) R 1 (b) S 1 77 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1\n"
	if got, err := parseStat([]byte(line)); err != nil || got != (stat{state: 'S', group: 77, start: 123456}) {
		t.Errorf("parseStat = %+v, %v", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", strings.Replace(line, " 77 ", " x ", 1), strings.Replace(line, "123456", "-1", 1)} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", bad, got)
		}
	}
}

// Whatever a delegate answers to ADD becomes a result that the next plugin can be given,
// or an *Error with a code and a bounded text.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"code":0,"msg":""}`, `{"code":7}`, `{"code":-1,"msg":"x"}`, `{"code":1e99}`, `{"msg":7}`, `{"code":11,"msg":"x","details":"y"}`,
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8"}}`, `{"cniVersion":"1.0.0","interfaces":[null]}`, "{\"msg\":\"\xff\"}",
	} {
		f.Add([]byte(seed), "1.0.0")
		f.Add([]byte(seed), "0.2.0")
	}
	f.Fuzz(func(t *testing.T, stdout []byte, version string) {
		c := Call{Network: netconf.Network{Name: "n", CNIVersion: version, Plugins: []netconf.Plugin{{Type: "p", Conf: []byte(`{"type":"p"}`)}}}}
		out, prev, err := c.judge(0, stdout)
		if err != nil {
			e, ok := err.(*Error) //nolint:errorlint // the very type is promised
			if !ok || e.Code == 0 || e.Plugin != "p" || out != nil {
				t.Fatalf("error %#v, result %v", err, out)
			}
			if len(e.Msg) > maxText+8 && e.Err == nil || !utf8.ValidString(e.Msg) {
				t.Fatalf("text of %d bytes, valid %v", len(e.Msg), utf8.ValidString(e.Msg))
			}
			return
		}
		if conf, err := pluginConf(c.Network, 0, keys{prevResult: prev}); err != nil {
			t.Fatalf("configuration of the next plugin: %v", err)
		} else if _, err := netconf.ParseObject(conf); err != nil {
			t.Fatalf("configuration of the next plugin %s: %v", conf, err)
		}
	})
}
