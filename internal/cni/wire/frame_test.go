// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

func TestFrameBytes(t *testing.T) {
	var buf bytes.Buffer
	if err := Write(&buf, map[string]string{"a": "<&>"}); err != nil {
		t.Fatal(err)
	}
	if got, want := buf.String(), "\x00\x00\x00\x0c{\"a\":\"<&>\"}\n"; got != want {
		t.Errorf("frame = %q, want %q", got, want)
	}
	var back map[string]string
	if err := Read(iotest.OneByteReader(&buf), &back); err != nil || back["a"] != "<&>" {
		t.Errorf("read back %v, %v", back, err)
	}
	if err := Read(&buf, &back); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want error
	}{
		"end inside the header":         {"\x00\x00", io.ErrUnexpectedEOF},
		"end behind the header":         {"\x00\x00\x00\x05", io.ErrUnexpectedEOF},
		"end inside the body":           {"\x00\x00\x00\x05{\"a\"", io.ErrUnexpectedEOF},
		"one byte more than 32 MiB":     {"\x02\x00\x00\x01{}", ErrTooLarge},
		"four GiB":                      {"\xff\xff\xff\xff{}", ErrTooLarge},
		"exactly 32 MiB that end early": {"\x02\x00\x00\x00{}", io.ErrUnexpectedEOF},
		"an HTTP request":               {"GET / HTTP/1.1\r\n\r\n", ErrTooLarge},
		"no JSON":                       {"\x00\x00\x00\x03{a}", ErrGarbage},
		"an empty frame":                {"\x00\x00\x00\x00", ErrGarbage},
		"two values":                    {"\x00\x00\x00\x04{}{}", ErrGarbage},
		"an array":                      {"\x00\x00\x00\x02[]", ErrGarbage},
		"a version that is a string":    {"\x00\x00\x00\x0f{\"version\":\"1\"}", ErrGarbage},
	} {
		t.Run(name, func(t *testing.T) {
			var req Request
			if err := Read(strings.NewReader(c.in), &req); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestReadDoesNotTrustTheLength(t *testing.T) {
	var req Request
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_ = Read(strings.NewReader("\x02\x00\x00\x00{}"), &req)
	}
	runtime.ReadMemStats(&after)
	if cost := (after.TotalAlloc - before.TotalAlloc) / 100; cost > 64<<10 {
		t.Errorf("a header alone costs %d bytes", cost)
	}
}

func TestWriteRefusesBeyondTheLimit(t *testing.T) {
	var buf bytes.Buffer
	frame := make([]byte, HeaderSize+MaxMessage+1)
	if err := writeFrame(&buf, frame); !errors.Is(err, ErrTooLarge) || buf.Len() != 0 {
		t.Errorf("error %v with %d bytes written, want ErrTooLarge and none", err, buf.Len())
	}
	if err := writeFrame(&buf, frame[:HeaderSize+MaxMessage]); err != nil || !bytes.Equal(buf.Next(HeaderSize), []byte("\x02\x00\x00\x00")) || buf.Len() != MaxMessage {
		t.Errorf("error %v with %d bytes written, want the whole frame", err, buf.Len())
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x02{}\x00\x00\x00\x05null"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x3e" + `{"version":1,"requestID":"r","verb":"plan","plan":{"conf":""}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			before := r.Len()
			var req Request
			err := Read(r, &req)
			if err == nil {
				// What was read can be sent, and reads the same.
				var buf bytes.Buffer
				if err := Write(&buf, req); err != nil {
					t.Fatalf("write what was read: %v", err)
				}
				var again Request
				if err := Read(&buf, &again); err != nil || again.RequestID != req.RequestID || again.Version != req.Version {
					t.Fatalf("read again %+v, %v; want %+v", again, err, req)
				}
				continue
			}
			if errors.Is(err, ErrGarbage) {
				if r.Len() >= before {
					t.Fatal("garbage was not consumed")
				}
				continue
			}
			if errors.Is(err, io.EOF) && before != 0 {
				t.Fatalf("io.EOF with %d bytes left", before)
			}
			return
		}
	})
}
