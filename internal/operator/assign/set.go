// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"iter"
	"math/bits"
)

// set is a set of nodes by their places: fifty configurations that select thousands of nodes each are
// too much for maps.
type set []uint64

const word = 64

func (s set) has(place int) bool {
	return place/word < len(s) && s[place/word]&(1<<(place%word)) != 0
}

func (s *set) put(place int, yes bool) {
	for place/word >= len(*s) {
		*s = append(*s, 0)
	}
	if yes {
		(*s)[place/word] |= 1 << (place % word)
	} else {
		(*s)[place/word] &^= 1 << (place % word)
	}
}

// places are the nodes by their numbers, of which those of forgotten nodes are given again.
type places struct {
	nodes []*node
	free  []int
}

func (p *places) add(n *node) {
	if last := len(p.free) - 1; last >= 0 {
		n.place, p.free = p.free[last], p.free[:last]
		p.nodes[n.place] = n
		return
	}
	n.place = len(p.nodes)
	p.nodes = append(p.nodes, n)
}

// remove forgets a node that no set has.
func (p *places) remove(n *node) {
	p.nodes[n.place] = nil
	p.free = append(p.free, n.place)
}

// of gives the nodes of a set, which may lose each as it is given.
func (p *places) of(s set) iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for i, w := range s {
			for ; w != 0; w &= w - 1 {
				if !yield(p.nodes[i*word+bits.TrailingZeros64(w)]) {
					return
				}
			}
		}
	}
}
