// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"
)

func made(t *testing.T, at time.Time, life time.Duration) *pair {
	t.Helper()
	p, err := newPair(at, life, []string{"weft-operator.kube-system.svc"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPair: a client that has the bundle takes the certificate, during its life and for its name.
func TestPair(t *testing.T) {
	now := time.Now()
	p := made(t, now, 90*time.Hour)
	for _, c := range []struct {
		at   time.Duration
		name string
		fine bool
	}{
		{0, "weft-operator.kube-system.svc", true},
		{-30 * time.Minute, "weft-operator.kube-system.svc", true},
		{89 * time.Hour, "weft-operator.kube-system.svc", true},
		{91 * time.Hour, "weft-operator.kube-system.svc", false},
		{0, "other.kube-system.svc", false},
	} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle(now, nil, p.cert))
		_, err := p.tls.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now.Add(c.at), DNSName: c.name})
		if (err == nil) != c.fine {
			t.Errorf("%s after %s: %v", c.name, c.at, err)
		}
		if c.name == "weft-operator.kube-system.svc" && p.valid(now.Add(c.at)) != c.fine {
			t.Errorf("valid after %s: %v", c.at, !c.fine)
		}
	}
}

// TestDue: a new one is made after two thirds of the life, and when its length was changed.
func TestDue(t *testing.T) {
	now, life := time.Now(), 90*time.Hour
	p := made(t, now, life)
	for after, want := range map[time.Duration]bool{0: false, 59 * time.Hour: false, 61 * time.Hour: true, 100 * time.Hour: true} {
		if got := p.due(now.Add(after), life); got != want {
			t.Errorf("after %s it is due: %v", after, got)
		}
	}
	if !p.due(now, 10*time.Hour) {
		t.Error("a pair of a longer life than is asked for is not due")
	}
}

// TestReadPair: what a Secret may hold.
func TestReadPair(t *testing.T) {
	p, other := made(t, time.Now(), time.Hour), made(t, time.Now(), time.Hour)
	for name, c := range map[string]struct{ cert, key []byte }{
		"nothing": {}, "no PEM": {[]byte("x"), []byte("y")}, "another's key": {p.cert, other.key}, "no key": {p.cert, nil},
	} {
		if _, err := readPair(c.cert, c.key, nil); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	if _, err := readPair(p.cert, p.key, []string{"another.kube-system.svc"}); err == nil {
		t.Error("a pair for another name is read")
	}
}

// TestBundle: each authority once, the expired ones and what is none left out.
func TestBundle(t *testing.T) {
	now := time.Now()
	old, current, gone := made(t, now, time.Hour), made(t, now, 2*time.Hour), made(t, now.Add(-3*time.Hour), time.Hour)
	before := bytes.Join([][]byte{old.cert, gone.cert, current.cert, []byte("noise\n")}, nil)
	if got := bundle(now, before, current.cert); !bytes.Equal(got, append(bytes.Clone(current.cert), old.cert...)) {
		t.Errorf("bundle:\n%s", got)
	}
	var many []byte
	for range 2 * maxRoots {
		many = append(many, made(t, now, time.Hour).cert...)
	}
	if n := bytes.Count(bundle(now, many), []byte("BEGIN")); n != maxRoots {
		t.Errorf("%d authorities", n)
	}
}
