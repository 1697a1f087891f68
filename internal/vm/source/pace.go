// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import "time"

// Pace spaces what others cause: a burst of it may be done at once, and then one each interval.
type Pace struct {
	Every time.Duration
	Burst int
	next  time.Time // when the next one would be due, had there been no burst
}

// Wait is how long to wait before it may be done again.
func (p *Pace) Wait(now time.Time) time.Duration {
	return max(0, p.next.Add(-time.Duration(p.Burst-1)*p.Every).Sub(now))
}

// Done notes that it was done.
func (p *Pace) Done(now time.Time) {
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.Every)
}
