// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
)

// A line is framePrefix with the CRC-32C of the body in place of the zeros, the body, and
// frameSuffix. Both kinds of body start with the field that tells them apart.
const (
	framePrefix = `{"sum":"00000000","body":`
	frameSuffix = "}\n"
	sumStart    = len(`{"sum":"`)
	sumEnd      = sumStart + 8

	intentStart = `{"version":`
	phaseStart  = `{"phase":`
)

// checksum is the CRC-32C of a body in hexadecimal.
func checksum(body []byte) string {
	// The fast way prepares itself for what takes longer than the whole sum of a usual record, and
	// most processes that come here read or write one.
	const fast = 1 << 17
	table := plainTable()
	if len(body) >= fast {
		table = crc32.MakeTable(crc32.Castagnoli)
	}
	return fmt.Sprintf("%08x", crc32.Checksum(body, table))
}

// plainTable is the table of CRC-32C, of which hash/crc32 does not know that it is that one.
var plainTable = sync.OnceValue(func() *crc32.Table { //nolint:gochecknoglobals // a table
	var t crc32.Table
	for i := range t {
		sum := uint32(i)
		for range 8 {
			sum = sum>>1 ^ crc32.Castagnoli&-(sum&1)
		}
		t[i] = sum
	}
	return &t
})

// encodeLine gives the whole line of an Intent or a Phase.
func encodeLine(v any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(framePrefix)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // results keep their characters
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode line: %w", err)
	}
	b.Truncate(b.Len() - 1) // the encoder's newline
	line := b.Bytes()
	copy(line[sumStart:sumEnd], checksum(line[len(framePrefix):]))
	return append(line, frameSuffix...), nil
}

// unframe gives a line's body. The line comes without its newline.
func unframe(line []byte) (body []byte, reason string) {
	if len(line) < len(framePrefix)+1 || line[len(line)-1] != '}' ||
		string(line[:sumStart]) != framePrefix[:sumStart] ||
		string(line[sumEnd:len(framePrefix)]) != framePrefix[sumEnd:] {
		return nil, "it is not framed as a line of a record"
	}
	body = line[len(framePrefix) : len(line)-1]
	if string(line[sumStart:sumEnd]) != checksum(body) {
		return nil, "its checksum differs"
	}
	return body, ""
}

// parse reads a record's bytes. whole is how many of them are whole lines; what follows
// is a torn line. The errors are a *CorruptError without a path, and one that is ErrNewer,
// with the frozen fields in the state.
func parse(b []byte, kind string, key Key) (st State, whole int, err error) {
	st.Empty = len(b) == 0
	for n := 1; ; n++ {
		length := bytes.IndexByte(b[whole:], '\n')
		if length < 0 {
			break
		}
		reason, newer := st.add(b[whole:whole+length], kind, key)
		if newer {
			last := st.Intents[len(st.Intents)-1]
			return st, whole, fmt.Errorf("read record %s: version %d: %w", key, last.Version, ErrNewer)
		}
		if reason != "" {
			return st, whole, &CorruptError{Key: key, Line: n, Reason: reason, State: st}
		}
		whole += length + 1
	}
	if len(st.Intents) == 0 && len(b) > 0 {
		// A first line gets its name by rename, when it is whole.
		return st, whole, &CorruptError{Key: key, Line: 1, Reason: "it is torn"}
	}
	return st, whole, nil
}

// add takes one whole line in.
func (s *State) add(line []byte, kind string, key Key) (reason string, newer bool) {
	body, reason := unframe(line)
	switch {
	case reason != "":
		return reason, false
	case bytes.HasPrefix(body, []byte(intentStart)):
		return s.addIntent(body, kind, key)
	case bytes.HasPrefix(body, []byte(phaseStart)) && len(s.Intents) > 0:
		var p Phase
		if err := json.Unmarshal(body, &p); err != nil {
			return "it is no phase: " + err.Error(), false
		}
		s.Phases = append(s.Phases, p)
		return "", false
	case len(s.Intents) == 0:
		return "it is not an intent", false
	}
	return "it is neither an intent nor a phase", false
}

func (s *State) addIntent(body []byte, kind string, key Key) (reason string, newer bool) {
	var in Intent
	err := json.Unmarshal(body, &in)
	if err != nil {
		// A newer version may have given other fields other types; the frozen ones tell.
		in = Intent{}
		if frozen := readFrozen(body, &in); frozen != nil || in.Version <= Version {
			return "it is no intent: " + err.Error(), false
		}
	}
	switch {
	case in.Version > Version:
		in = Intent{Version: in.Version, Kind: in.Kind, Key: in.Key, PodUID: in.PodUID}
		s.Intents = append(s.Intents, in)
		return "", true
	case in.Version < 1:
		return "its version is " + strconv.Itoa(in.Version), false
	case in.Kind != kind:
		return fmt.Sprintf("its kind is %.64q instead of %q", in.Kind, kind), false
	case in.Key != key:
		return fmt.Sprintf("its key is %.64q", string(in.Key)), false
	}
	s.Intents = append(s.Intents, in)
	return "", false
}

// readFrozen reads what every version can read of an intent.
func readFrozen(body []byte, in *Intent) error {
	frozen := struct {
		Version *int    `json:"version"`
		Kind    *string `json:"kind"`
		Key     *Key    `json:"key"`
		PodUID  *string `json:"podUID"`
	}{&in.Version, &in.Kind, &in.Key, &in.PodUID}
	return json.Unmarshal(body, &frozen)
}
