// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import "time"

// Pass is one look at the disk, at a time of the test's choice.
func (p *Publisher) Pass(now time.Time) time.Duration { return p.pass(now) }

// Quick makes Run look again so often and wait for nothing else.
func (p *Publisher) Quick(rescan time.Duration) {
	p.times.rescan, p.times.quiet, p.times.settle = rescan, 0, 0
	p.times.restore, p.times.restoreMost = time.Nanosecond, time.Nanosecond
}
