// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/http"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/kube/rest"
)

// maxText bounds a fault's text, in bytes.
const maxText = 2 << 10

func oneLine(err error) string { return fault.Bound(err.Error(), maxText) }

// fault is what an error of the client means for the pod.
func (s *Source) fault(object, field string, err error) error {
	return &fault.Fault{Code: s.code(err), Object: object, Field: field, Text: oneLine(err), Err: err}
}

// code tells what somebody must change from what time may mend.
func (s *Source) code(err error) fault.Code {
	for _, wrong := range []error{rest.ErrRedirect, rest.ErrName, rest.ErrTooLarge} {
		if errors.Is(err, wrong) {
			return fault.Config
		}
	}
	if rest.Untrusted(err) {
		return fault.Config
	}
	switch rest.Code(err) {
	case http.StatusUnauthorized:
		if s.cfg.TokenFile != "" { // whoever writes the file writes a new token
			return fault.TryLater
		}
		return fault.Config
	case http.StatusNotFound:
		if !rest.NotFound(err) { // no API server, or the resource's definition is not installed
			return fault.Config
		}
		return fault.TryLater
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return fault.Config
	}
	return fault.TryLater
}
