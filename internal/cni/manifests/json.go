// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxJSONDepth bounds nesting, as the YAML parser bounds its own.
const maxJSONDepth = 1000

// jsonDecoder reads JSON values as the nodes that the YAML parser makes, with
// lines. JSON is nearly YAML, but not quite: tabs, and escaped UTF-16 pairs.
type jsonDecoder struct {
	dec  *json.Decoder
	text []byte
	seen int // bytes whose lines are counted
	at   int // line of seen, from 1
}

// newJSONDecoder reads text, which begins after that many lines.
func newJSONDecoder(text []byte, lines int) *jsonDecoder {
	d := &jsonDecoder{dec: json.NewDecoder(bytes.NewReader(text)), text: text, at: lines + 1}
	d.dec.UseNumber()
	return d
}

// line is where the last token stands.
func (d *jsonDecoder) line() int {
	if end := int(d.dec.InputOffset()); end > d.seen {
		d.at += bytes.Count(d.text[d.seen:end], []byte("\n"))
		d.seen = end
	}
	return d.at
}

// next reads one value; io.EOF when there is none left.
func (d *jsonDecoder) next() (*yaml.Node, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, err
	}
	n, err := d.value(t, 0)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// value reads the value that begins with the token t.
func (d *jsonDecoder) value(t json.Token, depth int) (*yaml.Node, error) {
	if depth > maxJSONDepth {
		return nil, errors.New("values are nested too deeply")
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: d.line()}
	switch t := t.(type) {
	case string:
		n.Tag, n.Value = "!!str", t
	case json.Number:
		n.Tag, n.Value = "!!float", t.String()
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(t)
	case nil:
		n.Tag = "!!null"
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for d.dec.More() {
			// Of an object these are keys and values in turn, as in a YAML node.
			t, err := d.dec.Token()
			if err != nil {
				return nil, err
			}
			child, err := d.value(t, depth+1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		if _, err := d.dec.Token(); err != nil { // the closing bracket
			return nil, err
		}
	}
	return n, nil
}
