// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// lineMap turns the line numbers of YAML, for which a lone carriage return, NEL, LS and PS
// end a line as well, into those of everybody else's tools, for which only a line feed does.
type lineMap struct {
	feeds []int // the line of the document, from 1, on which each YAML line starts
	other bool  // the two differ
}

func yamlLines(doc []byte) lineMap {
	m := lineMap{feeds: []int{1}}
	line := 1
	for i := 0; i < len(doc); i++ {
		switch rest := doc[i:]; {
		case rest[0] == '\n':
			line++
		case rest[0] == '\r' && (len(rest) == 1 || rest[1] != '\n'):
			m.other = true
		case bytes.HasPrefix(rest, []byte("\u0085")):
			m.other, i = true, i+1
		case bytes.HasPrefix(rest, []byte("\u2028")), bytes.HasPrefix(rest, []byte("\u2029")):
			m.other, i = true, i+2
		default:
			continue
		}
		m.feeds = append(m.feeds, line)
	}
	return m
}

// line is never one that the document does not have: the parser counts some of its
// complaints from the line after the last.
func (m lineMap) line(yamlLine int) int {
	return m.feeds[min(max(yamlLine, 1), len(m.feeds))-1]
}

func (m lineMap) renumber(n *yaml.Node) {
	n.Line = m.line(n.Line)
	for _, c := range n.Content {
		m.renumber(c)
	}
}
