// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func benchBody(b *testing.B) json.RawMessage {
	b.Helper()
	body, err := json.Marshal(map[string]string{"conf": strings.Repeat("Q", 4000)})
	must(b, err)
	return body
}

// BenchmarkFloor is the two syncs that no durable record goes without.
func BenchmarkFloor(b *testing.B) {
	dir, err := PrivateDir(filepath.Join(b.TempDir(), "state", "x"))
	must(b, err)
	body := benchBody(b)
	for b.Loop() {
		f, err := os.OpenFile(dir.Name()+"/t", os.O_CREATE|os.O_WRONLY, 0o600)
		must(b, err)
		_, err = f.Write(body)
		must(b, errors.Join(err, f.Sync(), f.Close(), os.Rename(dir.Name()+"/t", dir.Name()+"/r"), dir.Sync(), os.Remove(dir.Name()+"/r")))
	}
}

// BenchmarkRecord is the journal's part of an ADD and a DEL of two attachments.
func BenchmarkRecord(b *testing.B) {
	s := newStore(b)
	in := Intent{Boot: BootID(), Owner: Self(), Body: benchBody(b)}
	result := json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}]}`)
	for b.Loop() {
		r, err := s.Acquire(b.Context(), "k")
		must(b, err)
		must(b, r.Begin(in))
		for i := range 2 {
			must(b, errors.Join(r.Append(Phase{Phase: Attempting, Item: i}), r.Append(Phase{Phase: Started, Item: i}), r.Append(Phase{Phase: Done, Item: i, Result: result})))
		}
		must(b, r.Close())
		r, err = s.Acquire(b.Context(), "k")
		must(b, err)
		for i := range 2 {
			must(b, errors.Join(r.Append(Phase{Phase: Undoing, Item: i}), r.Append(Phase{Phase: Undone, Item: i})))
		}
		must(b, errors.Join(r.Forget(), r.Close()))
	}
}

func BenchmarkAppend(b *testing.B) {
	s := newStore(b)
	r := acquire(b, s, "k")
	must(b, r.Begin(testIntent("k")))
	for b.Loop() {
		if r.size > 1<<20 {
			must(b, r.Begin(testIntent("k")))
		}
		must(b, r.Append(Phase{Phase: Attempting}))
	}
}

func BenchmarkRead(b *testing.B) {
	s := newStore(b)
	r := acquire(b, s, "k")
	must(b, r.Begin(Intent{Body: benchBody(b)}))
	for range 8 {
		must(b, r.Append(Phase{Phase: Done, Result: json.RawMessage(`{"cniVersion":"1.0.0"}`)}))
	}
	for b.Loop() {
		_, err := s.Read("k")
		must(b, err)
	}
}

// BenchmarkNoWork is what each call pays to learn that nothing is left to do.
func BenchmarkNoWork(b *testing.B) {
	s := newStore(b)
	w := OpenSweep(filepath.Dir(s.dir))
	must(b, w.Mark("k"))
	must(b, w.Done("k"))
	for b.Loop() {
		must(b, w.NoteBoot(s, "boot"))
		if due := w.Due(time.Now(), 4); due != nil {
			b.Fatal(due)
		}
	}
}
