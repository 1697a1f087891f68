// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"slices"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Attributes under which a DRA driver publishes that a device is a network's: what CNI
// plugins call it, and the resource name that a NAD draws it by.
const (
	DeviceIDAttribute     = "k8s.cni.cncf.io/deviceID"
	ResourceNameAttribute = "k8s.cni.cncf.io/resourceName"
)

// Pod is what the devices of a pod's claims depend on, of a core/v1 Pod.
type Pod struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		NodeName       string     `json:"nodeName"`
		ResourceClaims []PodClaim `json:"resourceClaims"`
	} `json:"spec"`
	Status struct {
		ResourceClaimStatuses []PodClaimStatus `json:"resourceClaimStatuses"`
		Extended              *ExtendedClaim   `json:"extendedResourceClaimStatus"`
	} `json:"status"`
}

// Metadata names an object.
type Metadata struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// PodClaim is an element of spec.resourceClaims: a claim by its name, or a template for one.
type PodClaim struct {
	Name                      string  `json:"name"`
	ResourceClaimName         *string `json:"resourceClaimName"`
	ResourceClaimTemplateName *string `json:"resourceClaimTemplateName"`
}

// PodClaimStatus says which claim was made from a template; nil: none was needed.
type PodClaimStatus struct {
	Name              string  `json:"name"`
	ResourceClaimName *string `json:"resourceClaimName"`
}

// ExtendedClaim is the claim that the scheduler made for the pod's extended resources.
type ExtendedClaim struct {
	ResourceClaimName string           `json:"resourceClaimName"`
	RequestMappings   []RequestMapping `json:"requestMappings"`
}

// RequestMapping says which request of the claim stands for which extended resource.
type RequestMapping struct {
	ContainerName string `json:"containerName"`
	ResourceName  string `json:"resourceName"`
	RequestName   string `json:"requestName"`
}

// Claim is what is read of a resource.k8s.io/v1 ResourceClaim.
type Claim struct {
	Metadata Metadata `json:"metadata"`
	Status   struct {
		Allocation *struct {
			Devices struct {
				Results []Result `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
	} `json:"status"`
}

// Result is one device of an allocation.
type Result struct {
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// AdminAccess: to look after a device that others use; it is not the pod's.
	AdminAccess bool `json:"adminAccess"`
}

// Slice is what is read of a resource.k8s.io/v1 ResourceSlice.
type Slice struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		Driver  string   `json:"driver"`
		Pool    Pool     `json:"pool"`
		Devices []Device `json:"devices"`
	} `json:"spec"`
}

// Pool is which pool a slice is of, in which generation, and how many slices that has.
type Pool struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	SliceCount int64  `json:"resourceSliceCount"`
}

// Device is one device of a slice.
type Device struct {
	Name       string               `json:"name"`
	Attributes map[string]Attribute `json:"attributes"`
}

// Attribute is an attribute's value; String is nil for one of another type.
type Attribute struct {
	String *string `json:"string"`
}

// Claims names the pod's ResourceClaims, each once. A claim that is still to be made
// from its template is a fault of code 11.
func Claims(pod *Pod) ([]string, error) {
	made := map[string]*string{}
	for _, s := range pod.Status.ResourceClaimStatuses {
		made[s.Name] = s.ResourceClaimName
	}
	var names []string
	for i, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
			continue
		}
		switch name, known := made[c.Name]; {
		case !known:
			return nil, fault.New(fault.TryLater, podObject(pod), fmt.Sprintf("spec.resourceClaims[%d]", i),
				"the claim %s is not made yet", fault.Quote(c.Name))
		case name != nil:
			names = append(names, *name)
		}
	}
	if e := pod.Status.Extended; e != nil {
		names = append(names, e.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// SliceNeed is one list of ResourceSlices to get, by the field selectors spec.nodeName
// and spec.driver.
type SliceNeed struct {
	Node   string
	Driver string // "": those of every driver
}

// Slices says which ResourceSlices FromClaims needs with these claims: none, or one
// list. Devices that belong to no node are not among them, nor are they networks'.
func Slices(pod *Pod, claims []Claim) []SliceNeed {
	var drivers []string
	for _, c := range claims {
		for _, r := range results(&c) {
			if !slices.Contains(drivers, r.Driver) {
				drivers = append(drivers, r.Driver)
			}
		}
	}
	switch len(drivers) {
	case 0:
		return nil
	case 1:
		return []SliceNeed{{Node: pod.Spec.NodeName, Driver: drivers[0]}}
	default: // one request with more in it is faster than several
		return []SliceNeed{{Node: pod.Spec.NodeName}}
	}
}

// results are the devices that a claim gives to its pods.
func results(c *Claim) []Result {
	if c.Status.Allocation == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Status.Allocation.Devices.Results), func(r Result) bool { return r.AdminAccess })
}

// FromClaims maps resource names to the IDs of the devices that the pod's claims were
// allocated; claims are those that Claims names, slices those that Slices asks for, in
// any order. Never nil without an error.
//
// A device without both attributes is no network's (a GPU) and is left out, as is one
// of a pool that the slices do not show. A device of an extended resource that names
// another resource, or only one of the two, is a fault of code 7. What drivers and
// scheduler have yet to write is one of code 11: a claim without allocation, a pool
// whose newest generation is not complete or lacks the device.
func FromClaims(pod *Pod, claims []Claim, published []Slice) (map[string][]string, error) {
	names, err := Claims(pod)
	if err != nil {
		return nil, err
	}
	pools := newest(published)
	found := map[string][]string{}
	for _, name := range names {
		i := slices.IndexFunc(claims, func(c Claim) bool {
			return c.Metadata.Name == name && c.Metadata.Namespace == pod.Metadata.Namespace
		})
		if i < 0 || claims[i].Status.Allocation == nil {
			return nil, fault.New(fault.TryLater, claimObject(pod, name), "status.allocation", "has no devices yet")
		}
		extended, err := extendedBy(pod, &claims[i])
		if err != nil {
			return nil, err
		}
		for _, r := range results(&claims[i]) {
			resource, id, err := pools.network(r)
			if want, is := extended[r.Request]; is && err == nil {
				err = checkExtended(r, want, resource, id)
			}
			if err != nil {
				return nil, err
			}
			if resource != "" && id != "" {
				found[resource] = append(found[resource], id)
			}
		}
	}
	return Merge(found), nil
}

// extendedBy maps the requests of a claim to the extended resources that they stand
// for; nil for a claim that the pod names itself.
func extendedBy(pod *Pod, c *Claim) (map[string]string, error) {
	e := pod.Status.Extended
	if e == nil || e.ResourceClaimName != c.Metadata.Name {
		return nil, nil
	}
	by := map[string]string{}
	for i, m := range e.RequestMappings {
		if !slices.ContainsFunc(results(c), func(r Result) bool { return r.Request == m.RequestName }) {
			return nil, fault.New(fault.TryLater, podObject(pod), fmt.Sprintf("status.extendedResourceClaimStatus.requestMappings[%d]", i),
				"names the request %s, for which the claim %s has no device", fault.Quote(m.RequestName), fault.Quote(c.Metadata.Name))
		}
		by[m.RequestName] = m.ResourceName
	}
	return by, nil
}

// checkExtended compares what a device of an extended resource says of itself with what
// the pod asks for; one that says nothing is no network's.
func checkExtended(r Result, want, resource, id string) error {
	switch {
	case resource == "" && id == "":
		return nil
	case resource != want:
		return fault.New(fault.Config, deviceObject(r), ResourceNameAttribute,
			"is %s, but the pod's extended resource is %s", fault.Quote(resource), fault.Quote(want))
	case id == "":
		return fault.New(fault.Config, deviceObject(r), DeviceIDAttribute,
			"is missing, and the pod's extended resource %s needs it", fault.Quote(want))
	}
	return nil
}

// poolKey names a pool; pools of several drivers may share a name.
type poolKey struct{ driver, name string }

// pool is the newest generation of a pool, as far as it is published.
type pool struct {
	Pool

	slices  int64
	devices map[string]map[string]Attribute
}

type pools map[poolKey]*pool

// newest collects the devices by pool. A driver replaces a pool's slices one by one;
// those of older generations are on their way out and count for nothing.
func newest(published []Slice) pools {
	all := pools{}
	for _, s := range published {
		key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
		p := all[key]
		if p == nil || p.Generation < s.Spec.Pool.Generation {
			p = &pool{Pool: s.Spec.Pool, devices: map[string]map[string]Attribute{}}
			all[key] = p
		}
		if p.Generation > s.Spec.Pool.Generation {
			continue
		}
		p.slices++
		for _, d := range s.Spec.Devices {
			p.devices[d.Name] = d.Attributes
		}
	}
	return all
}

// network gives the two attributes of an allocated device, "" for those it has not.
func (all pools) network(r Result) (resource, id string, err error) {
	p := all[poolKey{r.Driver, r.Pool}]
	if p == nil {
		return "", "", nil
	}
	if p.slices < p.SliceCount {
		return "", "", fault.New(fault.TryLater, deviceObject(r), "",
			"the driver has published %d of %d ResourceSlices of its pool", p.slices, p.SliceCount)
	}
	attributes, ok := p.devices[r.Device]
	if !ok {
		return "", "", fault.New(fault.TryLater, deviceObject(r), "", "is allocated, but no ResourceSlice of its pool's generation %d has it", p.Generation)
	}
	if resource, err = text(r, attributes, ResourceNameAttribute); err != nil {
		return "", "", err
	}
	id, err = text(r, attributes, DeviceIDAttribute)
	return resource, id, err
}

func text(r Result, attributes map[string]Attribute, name string) (string, error) {
	a, ok := attributes[name]
	switch {
	case !ok:
		return "", nil
	case a.String == nil:
		return "", fault.New(fault.Config, deviceObject(r), name, "is no string")
	}
	return *a.String, nil
}

func podObject(pod *Pod) string { return "pod " + pod.Metadata.Namespace + "/" + pod.Metadata.Name }

func claimObject(pod *Pod, name string) string {
	return "ResourceClaim " + pod.Metadata.Namespace + "/" + name
}

func deviceObject(r Result) string { return "device " + r.Driver + "/" + r.Pool + "/" + r.Device }
