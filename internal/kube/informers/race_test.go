// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package informers

const raceDetector = true
