// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const testKind = "attachment"

func lineOf(t testing.TB, v any) []byte {
	t.Helper()
	line, err := encodeLine(v)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// Both ways to the sum of a body, at the length where one takes over, give what hash/crc32 says.
func TestChecksum(t *testing.T) {
	for _, n := range []int{0, 1, 9, 4096, 1<<17 - 1, 1 << 17, 1<<17 + 1} {
		body := bytes.Repeat([]byte("weft\x00\xff"), n/6+1)[:n]
		if got, want := checksum(body), fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}

// framed is a line with a right checksum around any body.
func framed(body string) []byte {
	return fmt.Appendf(nil, `{"sum":"%s","body":%s}`+"\n", checksum([]byte(body)), body)
}

func testIntent(key Key) Intent {
	return Intent{
		Version: Version, Kind: testKind, Key: key, PodUID: "uid-1", Boot: "boot-1",
		Owner: Process{PID: 7, Start: 99}, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Body: json.RawMessage(`{"n":12345678901234567890,"s":"<&>"}`),
	}
}

func TestEncodeLineIsTheRecordedForm(t *testing.T) {
	got := string(lineOf(t, Phase{Phase: Done, Item: WholeCall, Result: json.RawMessage(`{"a": "<é>"}`)}))
	// The checksum is that of Castagnoli's CRC over the body, computed by another program.
	want := `{"sum":"4625bac9","body":{"phase":"done","item":-1,"plugin":0,"result":{"a":"<é>"},"time":"0001-01-01T00:00:00Z"}}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

func TestParse(t *testing.T) {
	in := testIntent("k")
	first := lineOf(t, in)
	phase := Phase{Phase: Attempting, Item: 1, Plugin: 2, Time: in.Time}
	second := lineOf(t, phase)
	newer := in
	newer.Version = Version + 1
	frozen := Intent{Version: 2, Kind: "other", Key: "else", PodUID: "u"}

	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	edit := func(line []byte, old, replacement string) []byte {
		if !bytes.Contains(line, []byte(old)) {
			t.Fatalf("%s is not in %s", old, line)
		}
		return bytes.Replace(line, []byte(old), []byte(replacement), 1)
	}
	for _, tt := range []struct {
		name  string
		data  []byte
		want  State
		whole int
		line  int    // of the corruption, 0 for none
		text  string // in its reason
		newer bool
	}{
		{name: "nothing", want: State{Empty: true}},
		{name: "intent", data: first, want: State{Intents: []Intent{in}}, whole: len(first)},
		{
			name: "intent and phase", data: cat(first, second),
			want: State{Intents: []Intent{in}, Phases: []Phase{phase}}, whole: len(first) + len(second),
		},
		{
			name: "torn phase", data: cat(first, second, second[:len(second)-1]),
			want: State{Intents: []Intent{in}, Phases: []Phase{phase}}, whole: len(first) + len(second),
		},
		{
			name: "zeros of a power loss", data: cat(first, make([]byte, 100)),
			want: State{Intents: []Intent{in}}, whole: len(first),
		},
		{
			name: "second intent", data: cat(first, second, first),
			want: State{Intents: []Intent{in, in}, Phases: []Phase{phase}}, whole: 2*len(first) + len(second),
		},
		{name: "torn intent", data: first[:len(first)-1], line: 1, text: "torn"},
		{name: "empty first line", data: []byte("\n"), line: 1, text: "framed"},
		{name: "no JSON", data: []byte("hello\n"), line: 1, text: "framed"},
		{name: "phase first", data: second, line: 1, text: "not an intent"},
		{name: "changed byte", data: edit(first, `"uid-1"`, `"uid-2"`), line: 1, text: "checksum"},
		{name: "changed sum", data: edit(first, string(first[sumStart:sumEnd]), "00000000"), line: 1, text: "checksum"},
		{name: "capital sum", data: cat(first[:sumStart], bytes.ToUpper(first[sumStart:sumEnd]), first[sumEnd:]), line: 1, text: "checksum"},
		{name: "version digit changed without sum", data: edit(first, `"version":1`, `"version":9`), line: 1, text: "checksum"},
		{
			name: "bad line before a good one", data: cat(first, []byte("x\n"), second),
			want: State{Intents: []Intent{in}}, whole: len(first), line: 2, text: "framed",
		},
		{
			name: "neither intent nor phase", data: cat(first, framed(`{"other":1}`)),
			want: State{Intents: []Intent{in}}, whole: len(first), line: 2, text: "neither",
		},
		{
			name: "phase of wrong types", data: cat(first, framed(`{"phase":1}`)),
			want: State{Intents: []Intent{in}}, whole: len(first), line: 2, text: "no phase",
		},
		{name: "intent of wrong types", data: framed(`{"version":1,"kind":"attachment","key":"k","boot":1}`), line: 1, text: "no intent"},
		{name: "intent is no JSON", data: framed(`{"version":`), line: 1, text: "no intent"},
		{name: "version 0", data: framed(`{"version":0,"kind":"attachment","key":"k"}`), line: 1, text: "version is 0"},
		{name: "version is text", data: framed(`{"version":"2"}`), line: 1, text: "no intent"},
		{name: "other kind", data: framed(`{"version":1,"kind":"device","key":"k"}`), line: 1, text: "kind"},
		{name: "other key", data: framed(`{"version":1,"kind":"attachment","key":"z"}`), line: 1, text: "key"},
		{
			name: "newer version, whatever follows", data: cat(framed(`{"version":2,"kind":"other","key":"else","podUID":"u","boot":1}`), []byte("?\n?")),
			want: State{Intents: []Intent{frozen}}, newer: true,
		},
		{
			name: "extended by a newer version", data: cat(first, lineOf(t, newer)),
			want:  State{Intents: []Intent{in, {Version: 2, Kind: testKind, Key: "k", PodUID: "uid-1"}}},
			whole: len(first), newer: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st, whole, err := parse(tt.data, testKind, "k")
			if diff := cmp.Diff(tt.want, st); diff != "" {
				t.Error(diff)
			}
			if whole != tt.whole {
				t.Errorf("whole lines take %d bytes, want %d", whole, tt.whole)
			}
			if errors.Is(err, ErrNewer) != tt.newer {
				t.Errorf("error is %v, newer wanted: %t", err, tt.newer)
			}
			corrupt, ok := errors.AsType[*CorruptError](err)
			switch {
			case tt.line == 0 && !tt.newer && err != nil:
				t.Errorf("unwanted error: %v", err)
			case tt.line == 0:
			case !ok:
				t.Errorf("error is %v, want a corrupt line %d", err, tt.line)
			case corrupt.Line != tt.line || !strings.Contains(corrupt.Reason, tt.text):
				t.Errorf("line %d: %s; want line %d with %q", corrupt.Line, corrupt.Reason, tt.line, tt.text)
			case cmp.Diff(tt.want, corrupt.State) != "":
				t.Errorf("salvaged: %s", cmp.Diff(tt.want, corrupt.State))
			}
		})
	}
}

func TestKeyValidate(t *testing.T) {
	for key, ok := range map[Key]bool{
		"0123abcd-eth0": true, "a": true, "a.b_c-é0": true, Key(strings.Repeat("k", MaxKey)): true,
		"": false, ".": false, "..": false, ".hidden": false, "a/b": false, "a b": false, "a\x00": false,
		"a\n": false, "\xff": false, Key(strings.Repeat("k", MaxKey+1)): false,
	} {
		if err := key.Validate(); (err == nil) != ok {
			t.Errorf("%.20q: %v, want valid: %t", string(key), err, ok)
		}
	}
}

func TestLastStarted(t *testing.T) {
	st := State{Phases: []Phase{
		{Phase: Started, Group: 1}, {Phase: Done}, {Phase: Started, Group: 2, Start: 5}, {Phase: Undoing},
	}}
	if p, ok := st.LastStarted(); !ok || p.Group != 2 || p.Start != 5 {
		t.Errorf("got %+v, %t", p, ok)
	}
	if p, ok := (State{Phases: []Phase{{Phase: Done}}}).LastStarted(); ok {
		t.Errorf("got %+v of a record without delegates", p)
	}
}

// No byte of a record can change unnoticed, except by tearing its last line.
func TestParseNoticesChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, want := drawRecord(t)
		at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
		data[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		st, _, err := parse(data, testKind, "k")
		if err != nil {
			return
		}
		last := len(want.Phases) - 1
		if at != len(data)-1 || last < 0 {
			t.Fatalf("byte %d of %d is other, and that is no error", at, len(data))
		}
		want.Phases = want.Phases[:last]
		if len(want.Phases) == 0 {
			want.Phases = nil
		}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A record that is cut anywhere behind its intent says a prefix of what it said.
func TestParseOfCutRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, want := drawRecord(t)
		first := bytes.IndexByte(data, '\n') + 1
		cut := rapid.IntRange(first, len(data)).Draw(t, "cut")
		want.Phases = want.Phases[:bytes.Count(data[first:cut], []byte("\n"))]
		if len(want.Phases) == 0 {
			want.Phases = nil
		}
		st, whole, err := parse(data[:cut], testKind, "k")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Fatal(diff)
		}
		if end := bytes.LastIndexByte(data[:cut], '\n') + 1; whole != end {
			t.Fatalf("whole lines end at %d, want %d", whole, end)
		}
	})
}

func drawRecord(t *rapid.T) ([]byte, State) {
	st := State{Intents: []Intent{testIntent("k")}}
	data, err := encodeLine(st.Intents[0])
	if err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(0, 4).Draw(t, "phases") {
		p := drawPhase(t)
		line, err := encodeLine(p)
		if err != nil {
			t.Fatal(err)
		}
		data, st.Phases = append(data, line...), append(st.Phases, p)
	}
	return data, st
}

func drawPhase(t *rapid.T) Phase {
	p := Phase{
		Phase: rapid.SampledFrom([]Op{Attempting, Started, Done, Undoing, Undone}).Draw(t, "op"),
		Item:  rapid.IntRange(WholeCall, 300).Draw(t, "item"), Plugin: rapid.IntRange(0, 9).Draw(t, "plugin"),
		Group: rapid.IntRange(0, 1<<22).Draw(t, "group"), Start: rapid.Uint64().Draw(t, "start"),
		Error: rapid.String().Draw(t, "error"), Time: time.Unix(0, rapid.Int64Range(0, 1<<61).Draw(t, "time")).UTC(),
	}
	if rapid.Bool().Draw(t, "has result") {
		text, err := json.Marshal(map[string]string{"text": rapid.String().Draw(t, "result")})
		if err != nil {
			t.Fatal(err)
		}
		p.Result = bytes.ReplaceAll(text, []byte(`\u003c`), []byte("<"))
	}
	return p
}

func FuzzParse(f *testing.F) {
	in := lineOf(f, testIntent("k"))
	phase := lineOf(f, Phase{Phase: Done, Result: json.RawMessage(`{}`)})
	for _, seed := range [][]byte{
		nil, []byte("\n"), in, append(bytes.Clone(in), phase...), append(bytes.Clone(in), phase[:20]...),
		framed(`{"version":2}`), framed(`{"phase":"done"}`), append(bytes.Clone(in), 0, 0, 0), []byte(framePrefix + "}\n"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		st, whole, err := parse(data, testKind, "k")
		if whole > len(data) || st.Empty != (len(data) == 0) {
			t.Fatalf("whole is %d of %d bytes, empty: %t", whole, len(data), st.Empty)
		}
		if _, corrupt := errors.AsType[*CorruptError](err); err != nil && !corrupt && !errors.Is(err, ErrNewer) {
			t.Fatalf("neither corrupt nor newer: %v", err)
		}
		if err != nil {
			return
		}
		again, n, err := parse(data[:whole], testKind, "k")
		if err != nil || n != whole || !cmp.Equal(st, again) {
			t.Fatalf("without the torn line: %d bytes, %v, %s", n, err, cmp.Diff(st, again))
		}
		// What was read can be written, and then reads the same.
		var lines []byte
		for _, in := range st.Intents {
			lines = append(lines, lineOf(t, in)...)
		}
		for _, p := range st.Phases {
			lines = append(lines, lineOf(t, p)...)
		}
		if _, _, err := parse(lines, testKind, "k"); err != nil {
			t.Fatal(err)
		}
	})
}
