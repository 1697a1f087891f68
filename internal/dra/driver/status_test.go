// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/internal/dra/kubelet"
)

// What the kubelet has not been asked yet is unknown; what it refused is wrong.
func TestReadyBeforeRegistration(t *testing.T) {
	for _, c := range []struct {
		registration kubelet.Status
		status       metav1.ConditionStatus
		reason       string
	}{
		{kubelet.Status{}, metav1.ConditionUnknown, ReasonNotRegistered},
		{kubelet.Status{Attempts: 2, Err: errors.New("refused")}, metav1.ConditionFalse, ReasonNotRegistered},
		{kubelet.Status{Registered: true}, metav1.ConditionTrue, ReasonReady},
	} {
		got := conditions(view{registration: c.registration})[1]
		if got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%+v: %s %s, want %s %s", c.registration, got.Status, got.Reason, c.status, c.reason)
		}
	}
}
