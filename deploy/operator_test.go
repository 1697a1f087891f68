// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/operator"
	"github.com/weftnet/weft/internal/operator/webhook"
)

// operatorParts is all that operator/ brings.
type operatorParts struct {
	account    *corev1.ServiceAccount
	role       *rbacv1.ClusterRole
	local      *rbacv1.Role
	binding    *rbacv1.ClusterRoleBinding
	localBound *rbacv1.RoleBinding
	webhooks   *admissionv1.ValidatingWebhookConfiguration
	service    *corev1.Service
	deployment *appsv1.Deployment
	budget     *policyv1.PodDisruptionBudget
}

func loadOperator(t *testing.T) operatorParts {
	t.Helper()
	var p operatorParts
	k := strict[kustomization](t, "operator", read(t, "operator/kustomization.yaml"))
	for _, name := range k.Resources {
		name = "operator/" + name
		for _, doc := range documents(t, name) {
			var head metav1.TypeMeta
			if err := yaml.Unmarshal(doc, &head); err != nil {
				t.Fatal(err)
			}
			switch head.Kind {
			case "ServiceAccount":
				p.account = strict[corev1.ServiceAccount](t, name, doc)
			case "ClusterRole":
				p.role = strict[rbacv1.ClusterRole](t, name, doc)
			case "Role":
				p.local = strict[rbacv1.Role](t, name, doc)
			case "ClusterRoleBinding":
				p.binding = strict[rbacv1.ClusterRoleBinding](t, name, doc)
			case "RoleBinding":
				p.localBound = strict[rbacv1.RoleBinding](t, name, doc)
			case "ValidatingWebhookConfiguration":
				p.webhooks = strict[admissionv1.ValidatingWebhookConfiguration](t, name, doc)
			case "Service":
				p.service = strict[corev1.Service](t, name, doc)
			case "Deployment":
				p.deployment = strict[appsv1.Deployment](t, name, doc)
			case "PodDisruptionBudget":
				p.budget = strict[policyv1.PodDisruptionBudget](t, name, doc)
			default:
				t.Errorf("%s holds a %s, which no test looks at", name, head.Kind)
			}
		}
	}
	return p
}

// TestOperatorFiles: the kustomization lists every file, with the image that is built.
func TestOperatorFiles(t *testing.T) {
	k := strict[kustomization](t, "operator", read(t, "operator/kustomization.yaml"))
	files, err := filepath.Glob("operator/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("operator/pods/*.yaml")
	if err != nil || len(more) != 3 {
		t.Errorf("operator/pods: %q, %v", more, err)
	}
	var listed []string
	for _, name := range append(k.Resources, "kustomization.yaml") {
		listed = append(listed, "operator/"+name)
	}
	slices.Sort(listed)
	if d := cmp.Diff(files, listed); d != "" {
		t.Errorf("resources (-files +listed):\n%s", d)
	}
	for _, name := range slices.Concat(files, more) {
		if !bytes.HasPrefix(read(t, name), []byte("# Copyright The Weft Authors.\n# SPDX-License-Identifier: Apache-2.0\n")) {
			t.Errorf("%s does not start with the licence header", name)
		}
	}
	if d := cmp.Diff(kustomized(t).Images, k.Images); d != "" {
		t.Errorf("images (-deploy +operator):\n%s", d)
	}
	c := loadOperator(t).deployment.Spec.Template.Spec.Containers[0]
	if c.Image != k.Images[0].Name+":"+k.Images[0].NewTag {
		t.Errorf("image %s", c.Image)
	}
}

// TestOperatorObjects: names and labels fit each other and the operator's defaults.
func TestOperatorObjects(t *testing.T) {
	p, d := loadOperator(t), operator.Defaults()
	labels := p.deployment.Spec.Template.Labels
	for what, got := range map[string]map[string]string{
		"deployment": p.deployment.Spec.Selector.MatchLabels, "service": p.service.Spec.Selector, "budget": p.budget.Spec.Selector.MatchLabels,
	} {
		if diff := cmp.Diff(labels, got); diff != "" {
			t.Errorf("%s selects (-pods' labels):\n%s", what, diff)
		}
	}
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: p.account.Name, Namespace: p.account.Namespace}}
	for what, got := range map[string][]rbacv1.Subject{"cluster": p.binding.Subjects, "namespace": p.localBound.Subjects} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: subjects (-want +got):\n%s", what, diff)
		}
	}
	if p.binding.RoleRef.Name != p.role.Name || p.localBound.RoleRef.Name != p.local.Name || p.deployment.Spec.Template.Spec.ServiceAccountName != p.account.Name {
		t.Error("roles and account do not fit")
	}
	for _, name := range []string{p.account.Namespace, p.local.Namespace, p.localBound.Namespace, p.service.Namespace, p.deployment.Namespace, p.budget.Namespace} {
		if name != d.Namespace {
			t.Errorf("namespace %q, the default is %q", name, d.Namespace)
		}
	}
	if p.service.Name != d.Webhook.Service || p.webhooks.Name != d.Webhook.Configuration {
		t.Errorf("Service %s, configuration %s", p.service.Name, p.webhooks.Name)
	}
	if *p.deployment.Spec.Replicas != 2 || p.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("not two replicas, of which one may go")
	}
}

// TestOperatorRights: no wildcard, no right beside those of the page; Secrets, leases and the
// webhook's configuration by name alone.
func TestOperatorRights(t *testing.T) {
	p, d := loadOperator(t), operator.Defaults()
	named := map[string][]string{
		"/secrets": {d.Webhook.Secret}, "coordination.k8s.io/leases": {"weft-operator"},
		"admissionregistration.k8s.io/validatingwebhookconfigurations": {d.Webhook.Configuration},
	}
	got := map[string][]string{}
	for _, rule := range slices.Concat(p.role.Rules, p.local.Rules) {
		for _, text := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames) {
			if strings.Contains(text, "*") {
				t.Errorf("rule %+v has a wildcard", rule)
			}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				name := group + "/" + resource
				creates := slices.Equal(rule.Verbs, []string{"create"})
				if want, ok := named[name]; ok && !creates && !slices.Equal(rule.ResourceNames, want) {
					t.Errorf("%s may be %v by the names %v", name, rule.Verbs, rule.ResourceNames)
				}
				got[name] = slices.Sorted(slices.Values(slices.Concat(got[name], rule.Verbs)))
			}
		}
	}
	told := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `([a-z/-]+)`(?: of `([a-z0-9.]+)`)? \\| ((?:`[a-z:-]+`(?:, )?)+) \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(string(read(t, "../docs/operator.md")), -1) {
		told[m[2]+"/"+m[1]] = slices.Sorted(strings.SplitSeq(strings.ReplaceAll(m[3], "`", ""), ", "))
	}
	if diff := cmp.Diff(got, told); diff != "" {
		t.Errorf("rights (-granted +docs/operator.md):\n%s", diff)
	}
}

// TestOperatorPrivileges: none.
func TestOperatorPrivileges(t *testing.T) {
	pod := loadOperator(t).deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if len(pod.Volumes) > 0 || pod.HostNetwork || pod.HostPID || !*pod.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation ||
		!*c.SecurityContext.ReadOnlyRootFilesystem || !slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("pod %+v", pod)
	}
	if !slices.Equal(c.Command, []string{"/weft-operator", "--enable-network-driver", "--webhook"}) {
		t.Errorf("command %q", c.Command)
	}
}

// checkWebhook: nobody is ever kept from writing by an operator that is away.
func checkWebhook(t *testing.T, w admissionv1.ValidatingWebhook, p operatorParts) {
	t.Helper()
	s := w.ClientConfig.Service
	if *w.FailurePolicy != admissionv1.Ignore || *w.SideEffects != admissionv1.SideEffectClassNone || *w.TimeoutSeconds > 5 || len(w.ClientConfig.CABundle) > 0 ||
		s == nil || s.Name != p.service.Name || s.Namespace != p.service.Namespace || *s.Port != p.service.Spec.Ports[0].Port || *s.Path != webhook.Path {
		t.Errorf("webhook %+v", w)
	}
	for _, rule := range w.Rules {
		if slices.Contains(rule.Operations, admissionv1.Delete) || slices.Contains(rule.Operations, admissionv1.Connect) {
			t.Errorf("%s is asked about %v", w.Name, rule.Operations)
		}
		for _, text := range slices.Concat(rule.APIGroups, rule.APIVersions, rule.Resources) {
			if strings.Contains(text, "*") || strings.Contains(text, "/") {
				t.Errorf("%s: %+v", w.Name, rule)
			}
		}
	}
}

func TestOperatorWebhooks(t *testing.T) {
	p := loadOperator(t)
	if len(p.webhooks.Webhooks) != 2 {
		t.Errorf("%d webhooks", len(p.webhooks.Webhooks))
	}
	for _, w := range p.webhooks.Webhooks {
		checkWebhook(t, w, p)
	}
	c := p.deployment.Spec.Template.Spec.Containers[0]
	port := slices.IndexFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == p.service.Spec.Ports[0].TargetPort.StrVal })
	if port < 0 || !strings.HasSuffix(operator.Defaults().Webhook.Address, ":9443") || c.Ports[port].ContainerPort != 9443 {
		t.Errorf("ports %+v", c.Ports)
	}
}

// TestOperatorPods: the component adds a flag and a webhook for the annotations that a plan reads.
func TestOperatorPods(t *testing.T) {
	type patch struct {
		Op, Path string
		Value    admissionv1.ValidatingWebhook
	}
	p := *strict[[]patch](t, "operator/pods/webhook.yaml", read(t, "operator/pods/webhook.yaml"))
	if len(p) != 1 || p[0].Op != "add" || path.Dir(p[0].Path) != "/webhooks" {
		t.Fatalf("patch %+v", p)
	}
	checkWebhook(t, p[0].Value, loadOperator(t))
	condition := p[0].Value.MatchConditions[0].Expression
	for _, key := range []string{plan.NetworksAnnotation, plan.DefaultNetworkAnnotation} {
		if !strings.Contains(condition, "'"+key+"'") {
			t.Errorf("%s is not in %s", key, condition)
		}
	}
	if !bytes.Contains(read(t, "operator/pods/flag.yaml"), []byte("value: --webhook-pods\n")) {
		t.Error("the flag is missing")
	}
}
