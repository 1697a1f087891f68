// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// HeaderSize is the length of what a frame begins with: the length of the rest.
const HeaderSize = 4

// BodySize is what a header says of the length of what follows it.
func BodySize(header [HeaderSize]byte) int64 { return int64(binary.BigEndian.Uint32(header[:])) }

// Errors of frames, besides those of the stream itself.
var (
	// ErrTooLarge: the message is beyond MaxMessage.
	ErrTooLarge = errors.New("message is larger than 32 MiB")
	// ErrGarbage: the frame holds no JSON of the expected shape.
	ErrGarbage = errors.New("message is not of the planner protocol")
)

// Write sends v as one frame, in one call of w.Write.
func Write(w io.Writer, v any) error {
	var buf bytes.Buffer
	buf.Write(make([]byte, HeaderSize))
	if err := encode(&buf, v); err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return writeFrame(w, buf.Bytes())
}

// writeFrame fills in the header that frame begins with, and sends it.
func writeFrame(w io.Writer, frame []byte) error {
	size := len(frame) - HeaderSize
	if size > MaxMessage {
		return fmt.Errorf("send message of %d bytes: %w", size, ErrTooLarge)
	}
	binary.BigEndian.PutUint32(frame, uint32(size))
	if _, err := w.Write(frame); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// Read receives one frame into v. It returns io.EOF when the stream ended
// between two frames, io.ErrUnexpectedEOF (wrapped) when it ended inside one,
// ErrTooLarge (wrapped; the stream is of no use afterwards) and ErrGarbage
// (wrapped; the next frame can be read).
func Read(r io.Reader, v any) error {
	var header [HeaderSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return err
		}
		return fmt.Errorf("receive message: %w", err)
	}
	size := BodySize(header)
	if size > MaxMessage {
		return fmt.Errorf("receive message of %d bytes: %w", size, ErrTooLarge)
	}
	// The buffer grows with what really arrives: four bytes alone must not cost 32 MiB.
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, size); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("receive message: %w", err)
	}
	if err := json.Unmarshal(body.Bytes(), v); err != nil {
		return fmt.Errorf("decode message: %w: %w", ErrGarbage, err)
	}
	return nil
}
