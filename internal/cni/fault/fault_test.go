// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weftnet/weft/internal/cni/fault"
)

func TestError(t *testing.T) {
	cases := []struct {
		f    *fault.Fault
		want string
	}{
		{fault.New(fault.Config, "pod default/web", "annotation a/networks[2].mac", "%s is not %d bytes", fault.Quote("24:"), 6), `pod default/web: annotation a/networks[2].mac: "24:" is not 6 bytes`},
		{fault.New(fault.Config, "configuration m", "", "is empty"), "configuration m: is empty"},
		{fault.New(fault.Config, "", "[0]", "two\nlines\tand \x00"), "[0]: two lines and \uFFFD"},
		{fault.New(fault.Config, "a Not Found", "", "not found, not\nfound, nOT fOUND"), "a Not-Found: not-found, not-found, nOT-fOUND"},
	}
	for _, c := range cases {
		if got := c.f.Error(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestCauseAndAll(t *testing.T) {
	a := fault.New(fault.State, "file x", "", "open: %w", fs.ErrPermission)
	if !errors.Is(a, fs.ErrPermission) {
		t.Error("the cause is lost")
	}
	b := fault.New(fault.Config, "pod y", "", "is wrong")
	err := fmt.Errorf("plan: %w", errors.Join(a, errors.New("other"), fmt.Errorf("in: %w", errors.Join(b))))
	all := fault.All(err)
	if len(all) != 2 || all[0] != a || all[1] != b {
		t.Errorf("faults %v", all)
	}
	if fault.All(nil) != nil || fault.All(errors.New("x")) != nil {
		t.Error("faults out of nothing")
	}
}

func TestQuote(t *testing.T) {
	if got := fault.Quote("a\nb\"\xff"); got != `"a\nb\"\xff"` {
		t.Errorf("got %s", got)
	}
	long := strings.Repeat("é", 65)
	if got, want := fault.Quote(long), `"`+strings.Repeat("é", 64)+`…"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := fault.Quote(long[:128]); got != `"`+long[:128]+`"` {
		t.Errorf("64 runes are cut: %s", got)
	}
}

func FuzzBound(f *testing.F) {
	f.Add("not found\nhere", 10)
	f.Add("\xff\xfeé\u202e", 3)
	f.Add(strings.Repeat("é", 40), 41)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 || limit > 1<<16 {
			return
		}
		got := fault.Hyphenate(fault.Bound(s, limit))
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\u202e") || strings.Contains(strings.ToLower(got), "not found") {
			t.Errorf("Hyphenate(Bound(%q, %d)) = %q", s, limit, got)
		}
	})
}
