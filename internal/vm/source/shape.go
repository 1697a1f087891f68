// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// shape describes the XDR form of an answer, a letter an element: i = 4 bytes, U = a UUID,
// s = a string, [...] = a counted list of what is in it.
type shape string

// errShape: the counts in an answer do not fit its bytes. Decoding it could take any memory.
var errShape = errors.New("its counts do not fit its bytes") //nolint:gochecknoglobals // a sentinel

const (
	word     = 4
	uuidSize = 16
	// maxList is what libvirt itself allows for interfaces, and for addresses of one.
	maxList = 2048
)

// fits says whether data is of the shape. What follows it is none of its business.
func (s shape) fits(data []byte) error {
	rest, err := s.cut(data)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("it has %d bytes too many", len(rest))
	}
	return nil
}

// cut gives what follows the shape.
func (s shape) cut(data []byte) (rest []byte, err error) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case 'i':
			data, err = skip(data, word)
		case 'U':
			data, err = skip(data, uuidSize)
		case 's':
			var n int
			if n, data, err = count(data); err == nil {
				data, err = skip(data, (n+word-1)/word*word)
			}
		case '[':
			end := i + s[i:].end()
			data, err = s[i+1 : end].list(data)
			i = end
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

// end is where the list ends that s begins with.
func (s shape) end() int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(s)
}

func (s shape) list(data []byte) ([]byte, error) {
	n, data, err := count(data)
	// Every element has a word at least.
	if err != nil || n > len(data)/word {
		return nil, errShape
	}
	if n > maxList {
		return nil, fmt.Errorf("it has a list of %d, more than %d", n, maxList)
	}
	for range n {
		if data, err = s.cut(data); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func count(data []byte) (n int, rest []byte, err error) {
	if len(data) < word {
		return 0, nil, errShape
	}
	size := binary.BigEndian.Uint32(data)
	if int64(size) > int64(len(data)) {
		return 0, nil, errShape
	}
	return int(size), data[word:], nil
}

func skip(data []byte, n int) ([]byte, error) {
	if len(data) < n {
		return nil, errShape
	}
	return data[n:], nil
}
