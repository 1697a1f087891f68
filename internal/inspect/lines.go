// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weftnet/weft/internal/cni/manifests"
)

// offset finds the byte of text, an annotation or a configuration, where the value of a
// field begins: "[2].mac", "plugins[0].ipam". Where the field is missing, or the text is
// no JSON from some byte on, it is that of the part of the field that is there.
func offset(text, field string) int {
	if !strings.ContainsAny(text, "[{\"") {
		return item(text, field)
	}
	return value(text, 0, field)
}

// item is offset for the short form of an annotation.
func item(text, field string) int {
	n, _, ok := index(field)
	if !ok {
		return 0
	}
	at := 0
	for ; n > 0; n-- {
		comma := strings.IndexByte(text[at:], ',')
		if comma < 0 {
			break
		}
		at += comma + 1
	}
	return at + spaces(text[at:])
}

func spaces(s string) int { return len(s) - len(strings.TrimLeft(s, " \t\r\n")) }

// index takes "[n]" off the front of a field.
func index(field string) (n int, rest string, ok bool) {
	inner, rest, ok := strings.Cut(strings.TrimPrefix(field, "["), "]")
	n, err := strconv.Atoi(inner)
	return n, rest, ok && err == nil && field[0] == '['
}

// value is offset for JSON that begins at text[at:].
func value(text string, at int, field string) int {
	at += spaces(text[at:])
	field = strings.TrimLeft(field, " .")
	d := json.NewDecoder(strings.NewReader(text[at:]))
	open, err := d.Token()
	if err != nil || field == "" {
		return at
	}
	switch open {
	case json.Delim('{'):
		return member(text, at, d, field)
	case json.Delim('['):
		n, rest, ok := index(field)
		for ; ok && d.More(); n-- {
			var raw json.RawMessage
			if err := d.Decode(&raw); err != nil {
				return at
			}
			if n == 0 {
				return value(text, at+int(d.InputOffset())-len(raw), rest)
			}
		}
	}
	return at
}

// member looks for the key that field begins with: the longest, since keys may hold dots,
// and of equal ones the last, which counts.
func member(text string, at int, d *json.Decoder, field string) int {
	best, size, rest := at, 0, ""
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			break
		}
		end := at + int(d.InputOffset())
		var raw json.RawMessage
		broken := d.Decode(&raw) != nil
		if after, ok := strings.CutPrefix(field, key); ok && key != "" && len(key) >= size && (after == "" || strings.IndexByte(".[ ", after[0]) >= 0) {
			best, size, rest = end-1, len(key), after
			if start := at + int(d.InputOffset()) - len(raw); !broken && strings.Trim(rest, " .") != "" {
				best = deeper(text, start, rest, best)
			}
		}
		if broken {
			break
		}
	}
	return best
}

// deeper is the offset of a field of the value at start; the key's own where the value has
// no such field.
func deeper(text string, start int, field string, key int) int {
	if at := value(text, start, field); at != start {
		return at
	}
	if text[start] == '{' || text[start] == '[' {
		return start
	}
	return key
}

// lineAt is the line of a file's src on which byte off of a value stands that begins at
// mark and was read as text. Only space differs between the two, in the block and plain
// forms of YAML; quoted ones have escapes besides. Where they part it stays with the last
// line that is certain.
func lineAt(src []byte, mark manifests.Mark, text string, off int) int {
	if mark.Column == 0 {
		return mark.Line
	}
	w := walk{src: src, line: 1}
	for ; w.line < mark.Line; w.line++ {
		end := bytes.IndexByte(w.src[w.at:], '\n')
		if end < 0 {
			return mark.Line
		}
		w.at += end + 1
	}
	for range mark.Column - 1 {
		_, size := utf8.DecodeRune(w.src[w.at:])
		w.at += size
	}
	w.begin()
	for i := 0; i <= off && i < len(text); i++ {
		if !w.take(text[i]) {
			break
		}
	}
	return w.line
}

// walk goes through the source of one value.
type walk struct {
	src   []byte
	at    int
	line  int
	quote byte // 0 for the block and plain forms
}

// begin passes over anchor, tag and the mark of the form.
func (w *walk) begin() {
	properties := regexp.MustCompile(`^(?:[&!]\S*\s+)*`)
	w.skip(len(properties.Find(w.src[w.at:])))
	if w.at >= len(w.src) {
		return
	}
	switch w.src[w.at] {
	case '|', '>':
		if end := bytes.IndexByte(w.src[w.at:], '\n'); end >= 0 {
			w.skip(end + 1)
		}
	case '"', '\'':
		w.quote = w.src[w.at]
		w.at++
	}
}

func (w *walk) skip(n int) {
	w.line += bytes.Count(w.src[w.at:w.at+n], []byte("\n"))
	w.at += n
}

// take goes to where the byte c of the value stands. White space stands nowhere.
func (w *walk) take(c byte) bool {
	if space(c) {
		return true
	}
	for w.at < len(w.src) && (space(w.src[w.at]) || w.blankEscape()) {
		w.skip(1)
	}
	if w.quote != 0 && w.at+1 < len(w.src) && (w.quote == '"' && w.src[w.at] == '\\' || w.quote == '\'' && w.src[w.at] == '\'') {
		w.at++
	}
	if w.at >= len(w.src) || w.src[w.at] != c {
		return false
	}
	w.at++
	return true
}

// blankEscape passes over the backslash of an escape that stands for white space, or that
// joins two lines.
func (w *walk) blankEscape() bool {
	if w.quote != '"' || w.at+1 >= len(w.src) || w.src[w.at] != '\\' || strings.IndexByte("ntr \n", w.src[w.at+1]) < 0 {
		return false
	}
	w.at++
	return true
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
