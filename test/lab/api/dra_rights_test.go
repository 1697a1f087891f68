// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/test/lab"
)

// trial is a node's configuration with VFs, a class of them, and a template.
const trialConfig = `{deviceManagerConfigs: {sriov: {enabled: true, ifaces: [{ifName: ens1f0, vfCount: 4}]}}, pools: [{name: trial, filter: {deviceManagers: [sr-iov]}}]}`

// trialClass makes a class of the devices of pool trial; its name is the namespace's, which is unused.
func trialClass(t *testing.T, kube kubernetes.Interface, namespace, config string) {
	t.Helper()
	lab.Apply(t, fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %s}
spec:
  selectors: [{cel: {expression: 'device.driver == "networkdriver.cilium.io" && device.attributes["networkdriver.cilium.io"].pool == "trial"'}}]
  config: %s
`, namespace, config))
	n := &draNode{t: t, kube: kube}
	n.atEnd("the class", n.deleteClass(namespace))
}

// trialPods makes pods that have a claim each, of a template of the namespace's class.
func trialPods(t *testing.T, namespace string, names ...string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: net}
spec: {spec: {devices: {requests: [{name: net, exactly: {deviceClassName: %s}}]}}}
`, namespace)
	for _, name := range names {
		fmt.Fprintf(&b, `
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {resourceClaims: [{name: net, resourceClaimTemplateName: net}], containers: [{name: app, image: app}]}
`, name)
	}
	lab.Apply(t, b.String(), "--namespace="+namespace)
}

// granular says whether the API server asks for a right to a driver's entries of a claim's status.
func granular(t *testing.T, kube kubernetes.Interface) bool {
	t.Helper()
	info, err := kube.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	got, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		t.Fatal(err)
	}
	return got.AtLeast(version.MustParseGeneric("1.36"))
}

// Since 1.36 a driver needs a right of its own for entries of a claim's status. Without it the device
// is prepared all the same, the claim's event says what is missing, and the status is written once the
// right is there. With it an agent writes to claims of its own node alone.
func TestDRAGranularStatus(t *testing.T) {
	kube := draCluster(t)
	if !granular(t, kube) {
		t.Skip("this Kubernetes does not ask for it")
	}
	n := startNode(t, kube, "worker-node-1")
	n.configure(trialConfig)
	ns := lab.Namespace(t)
	trialClass(t, kube, ns, "[]")
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	trialPods(t, ns, "one")
	claim, _ := bound(t, kube, ns, "one")

	n.mayWrite(true)
	giveBack := n.withoutRule("resourceclaims/driver")
	n.mayWrite(false)
	if err := n.prepare(claim); err != nil {
		t.Fatalf("prepare without the right to say so: %v", err)
	}
	n.event(claim, "StatusNotWritten", "Forbidden", "associated-node:update and :patch on resourceclaims/driver")
	if got := claimOf(t, kube, ns, claim.Name); len(got.Status.Devices) != 0 {
		t.Errorf("status is %+v", got.Status.Devices)
	}
	giveBack()
	n.mayWrite(true)
	eventually(t, "the status", func() error {
		if got := claimOf(t, kube, ns, claim.Name); len(got.Status.Devices) != 1 {
			return fmt.Errorf("it is %+v", got.Status)
		}
		return nil
	})
	n.unprepare(claim)
}

// mayWrite waits until the API server says that the agent may, or may not, write its entries.
func (n *draNode) mayWrite(want bool) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("the right to write entries to be %t", want), func() error {
		review, err := n.kube.AuthorizationV1().SubjectAccessReviews().Create(n.t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + agentNamespace + ":" + agentAccount,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: resourceapi.GroupName, Resource: "resourceclaims", Subresource: "driver", Verb: "associated-node:update", Name: draDriver,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if review.Status.Allowed != want {
			return fmt.Errorf("it is %+v", review.Status)
		}
		return nil
	})
}

// withoutRule takes a rule away from the driver's role, and gives what gives it back.
func (n *draNode) withoutRule(resource string) (giveBack func()) {
	n.t.Helper()
	roles := n.kube.RbacV1().ClusterRoles()
	role, err := roles.Get(n.t.Context(), driverRole, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	all := slices.Clone(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
	if len(role.Rules) != len(all)-1 {
		n.t.Fatalf("%d rules are about %s", len(all)-len(role.Rules), resource)
	}
	back := func(ctx context.Context) error {
		role.Rules = all
		role.ResourceVersion = ""
		_, err := roles.Update(ctx, role, metav1.UpdateOptions{})
		return err
	}
	n.atEnd("what a rule is missing for", back)
	if _, err := roles.Update(n.t.Context(), role.DeepCopy(), metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		n.t.Helper()
		if err := back(n.t.Context()); err != nil {
			n.t.Fatal(err)
		}
	}
}

// event waits for an event on a claim whose message has all the parts.
func (n *draNode) event(claim *resourceapi.ResourceClaim, reason string, parts ...string) {
	n.t.Helper()
	eventually(n.t, "event "+reason, func() error {
		list, err := n.kube.CoreV1().Events(claim.Namespace).List(n.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(claim.UID)})
		if err != nil {
			return err
		}
		var told []string
		for _, e := range list.Items {
			told = append(told, e.Reason+": "+e.Message)
			missing := func(part string) bool { return !strings.Contains(e.Message, part) }
			if e.Reason == reason && e.Type == corev1.EventTypeWarning && !slices.ContainsFunc(parts, missing) {
				return nil
			}
		}
		return fmt.Errorf("told were %q", told)
	})
}

// T-13: two nodes with the same pools and the same PCI addresses share nothing: all devices of both are
// allocated at once. Neither agent's token is of use for claims of the other's node.
func TestDRATwoNodes(t *testing.T) {
	kube := draCluster(t)
	nodes := map[string]*draNode{"n1": startNode(t, kube, "n1"), "n2": startNode(t, kube, "n2")}
	ns := lab.Namespace(t)
	trialClass(t, kube, ns, "[]")
	for _, n := range nodes {
		n.configure(trialConfig)
		n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	}
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	trialPods(t, ns, names...)
	allocated := map[string]*resourceapi.ResourceClaim{}
	for _, name := range names {
		claim, node := bound(t, kube, ns, name)
		result := claim.Status.Allocation.Devices.Results[0]
		if result.Pool != node+"/trial" || allocated[node+" "+result.Device] != nil {
			t.Errorf("pod %s has %s of %s on %s, which is nobody else's: %t", name, result.Device, result.Pool, node, allocated[node+" "+result.Device] == nil)
		}
		allocated[node+" "+result.Device] = claim
	}
	if len(allocated) != len(names) {
		t.Fatalf("%d devices for %d claims", len(allocated), len(names))
	}
	for _, n := range nodes {
		if err := n.prepare(allocated[n.name+" 0000-03-10-2"]); err != nil {
			t.Error(err)
		}
	}
	foreign(t, nodes["n1"], allocated["n1 0000-03-10-2"], allocated["n2 0000-03-10-2"])
	for _, n := range nodes {
		n.unprepare(allocated[n.name+" 0000-03-10-2"])
	}
}

// foreign has a node's agent write to a claim of its own node, and to one of another.
func foreign(t *testing.T, n *draNode, own, others *resourceapi.ResourceClaim) {
	t.Helper()
	if !granular(t, n.kube) {
		return
	}
	conn := rest.AnonymousClientConfig(lab.Cluster(t).Config())
	conn.BearerToken = n.token
	client, err := kubernetes.NewForConfig(conn)
	if err != nil {
		t.Fatal(err)
	}
	write := func(c *resourceapi.ResourceClaim) error {
		c = claimOf(t, n.kube, c.Namespace, c.Name)
		if len(c.Status.Devices) != 1 {
			t.Fatalf("claim %s has status %+v", c.Name, c.Status)
		}
		c.Status.Devices[0].Conditions[0].Message = "changed"
		_, err := client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
		return err
	}
	if err := write(own); err != nil {
		t.Errorf("a claim of the own node: %v", err)
	}
	if err := write(others); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "cannot arbitrary-node:update") {
		t.Errorf("a claim of another node: %v, want it refused", err)
	}
}
