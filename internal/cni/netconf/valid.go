// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import "bytes"

// maxDepth bounds how deep valid follows: deeper JSON is encoding/json's to judge.
const maxDepth = 200

// valid is encoding/json's Valid at a third of its time, for it is most of what reading a
// configuration takes. What it says yes to is valid; a no wants a second opinion.
func valid(b []byte) bool {
	end := validValue(b, skipSpace(b, 0), 0)
	return end > 0 && skipSpace(b, end) == len(b)
}

// The functions below give the index after what begins at i, or -1 where that is not valid.

func validValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > maxDepth {
		return -1
	}
	switch b[i] {
	case '"':
		return validString(b, i)
	case '{':
		return validList(b, i, depth, '}')
	case '[':
		return validList(b, i, depth, ']')
	case 't':
		return validWord(b, i, "true")
	case 'f':
		return validWord(b, i, "false")
	case 'n':
		return validWord(b, i, "null")
	}
	return validNumber(b, i)
}

// validList reads what stands in brackets: values, and before each of an object its key.
func validList(b []byte, i, depth int, closing byte) int {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == closing {
		return i + 1
	}
	for i < len(b) {
		if closing == '}' {
			if i = validKey(b, i); i < 0 {
				return -1
			}
		}
		if i = validValue(b, i, depth+1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i == len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case closing:
			return i + 1
		default:
			return -1
		}
	}
	return -1
}

func validKey(b []byte, i int) int {
	if b[i] != '"' {
		return -1
	}
	if i = validString(b, i); i < 0 {
		return -1
	}
	if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
		return -1
	}
	return skipSpace(b, i+1)
}

func validString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < 0x20:
			return -1
		case c == '\\':
			if i++; i == len(b) {
				return -1
			}
			if b[i] != 'u' {
				if bytes.IndexByte([]byte(`"\/bfnrt`), b[i]) < 0 {
					return -1
				}
				continue
			}
			for range 4 {
				if i++; i == len(b) || !isHex(b[i]) {
					return -1
				}
			}
		}
	}
	return -1
}

func validNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	first := i
	if i = digits(b, i); i == first || b[first] == '0' && i > first+1 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = digits(b, from); i == from {
			return -1
		}
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func validWord(b []byte, i int, word string) int {
	if !bytes.HasPrefix(b[i:], []byte(word)) {
		return -1
	}
	return i + len(word)
}
