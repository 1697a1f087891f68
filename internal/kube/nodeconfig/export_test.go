// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import "time"

// Hurry has a Follower wait little.
func (f *Follower) Hurry(answer time.Duration) {
	f.waits = waits{first: 5 * time.Millisecond, last: 20 * time.Millisecond, absent: 10 * time.Millisecond, answer: answer, steady: time.Minute}
}
