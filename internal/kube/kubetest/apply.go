// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"fmt"
	"net/http"
	"reflect"
)

// apply is a server-side apply of the status of an object that is there: conditions are merged by
// their types, everything else is replaced. Who owns what is not kept. A status that stays as it
// is makes no new version. The lock is held.
func (s *Server) apply(req Request, o map[string]any) (int, any) {
	applied, err := decode([]byte(req.Body))
	if err != nil {
		return statusObject(http.StatusBadRequest, err.Error())
	}
	meta, _ := applied["metadata"].(map[string]any)
	if have := o["metadata"].(map[string]any)["uid"]; meta["uid"] != nil && meta["uid"] != have {
		return statusObject(http.StatusConflict, fmt.Sprintf("uid %v does not match %v", meta["uid"], have))
	}
	status, ok := applied["status"].(map[string]any)
	if req.Subresource != "status" || !ok {
		return statusObject(http.StatusMethodNotAllowed, "only a status can be applied here")
	}
	changed := clone(o)
	into, _ := changed["status"].(map[string]any)
	if into == nil {
		into = map[string]any{}
		changed["status"] = into
	}
	for name, value := range status {
		if name == "conditions" {
			value = mergeConditions(into[name], value)
		}
		into[name] = value
	}
	if reflect.DeepEqual(changed, o) {
		return http.StatusOK, o
	}
	return http.StatusOK, s.objects[s.store(req.Resource, changed)]
}

func mergeConditions(old, applied any) any {
	merged, _ := old.([]any)
	for _, a := range applied.([]any) {
		at := -1
		for i, m := range merged {
			if m.(map[string]any)["type"] == a.(map[string]any)["type"] {
				at = i
			}
		}
		if at < 0 {
			merged = append(merged, a)
		} else {
			merged[at] = a
		}
	}
	return merged
}
