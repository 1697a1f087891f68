// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// Tokens of infoSource.
const (
	SourceDomain       = "domain"
	SourceGuestAgent   = "guest-agent"
	SourceMultusStatus = "multus-status"

	separator = ", "
)

// AddInfoSource appends a token that is not there yet.
func AddInfoSource(list, token string) string {
	switch {
	case list == "":
		return token
	case ContainsInfoSource(list, token):
		return list
	}
	return list + separator + token
}

// RemoveInfoSource takes a token out.
func RemoveInfoSource(list, token string) string {
	if !ContainsInfoSource(list, token) {
		return list
	}
	tokens := strings.Split(list, separator)
	return strings.Join(slices.DeleteFunc(tokens, func(t string) bool { return t == token }), separator)
}

// ContainsInfoSource says whether a token is there. Tokens are divided by comma and space.
func ContainsInfoSource(list, token string) bool {
	for more := true; more; {
		var t string
		if t, list, more = strings.Cut(list, separator); t == token {
			return true
		}
	}
	return false
}

// infoSource spells the tokens of a merge in their order.
func infoSource(domain, guest, multus bool) string {
	switch {
	case domain && guest && multus:
		return SourceDomain + separator + SourceGuestAgent + separator + SourceMultusStatus
	case domain && guest:
		return SourceDomain + separator + SourceGuestAgent
	case domain && multus:
		return SourceDomain + separator + SourceMultusStatus
	case guest && multus:
		return SourceGuestAgent + separator + SourceMultusStatus
	case domain:
		return SourceDomain
	case guest:
		return SourceGuestAgent
	case multus:
		return SourceMultusStatus
	}
	return ""
}

// LookupDefault is the primary network: the first that is the pod's or Multus' default; nil if
// there is none.
func LookupDefault(networks []v1.Network) *v1.Network {
	for i := range networks {
		n := &networks[i]
		if n.Pod != nil || n.Multus != nil && n.Multus.Default {
			return n
		}
	}
	return nil
}
