// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

func runtimeConfig(a plan.Attachment) string {
	b, _ := json.Marshal(a.RuntimeConfig)
	return string(b)
}

// B18: cni-args are merged into every plugin, and what the NAD wrote stays.
func TestCNIArgs(t *testing.T) {
	w := world{
		nads: map[string]string{"default/list": `{"cniVersion":"1.0.0","plugins":[
			{"big": 9007199254740993, "type":"pa","args":{"cni":{"a":9,"z":8},"other":1},"float":1.0e2},{"type":"pb"},{"type":"pc","args":null}]}`},
		networks: `[{"name":"list","cni-args":{"a":1,"b":2}},{"name":"list"}]`,
	}
	p := mustPlan(t, w)
	want := []string{
		`{"big": 9007199254740993, "type":"pa","args":{"cni":{"a":1,"b":2,"z":8},"other":1},"float":1.0e2}`,
		`{"type":"pb","args":{"cni":{"a":1,"b":2}}}`,
		`{"type":"pc","args":{"cni":{"a":1,"b":2}}}`,
	}
	for i, plugin := range p.Attachments[1].Conf.Plugins {
		sameJSON(t, plugin.Type, plugin.Conf, want[i])
	}
	first := string(p.Attachments[1].Conf.Plugins[0].Conf)
	if !strings.HasPrefix(first, `{"big":9007199254740993,"type":"pa",`) || !strings.HasSuffix(first, `,"float":1.0e2}`) {
		t.Errorf("values or their order changed: %s", first)
	}
	untouched := string(p.Attachments[2].Conf.Plugins[0].Conf)
	if untouched != `{"big": 9007199254740993, "type":"pa","args":{"cni":{"a":9,"z":8},"other":1},"float":1.0e2}` {
		t.Errorf("the neighbour's configuration changed: %s", untouched)
	}
}

// B19, and the name: what a NAD leaves out comes from around it.
func TestInheritedNameAndVersion(t *testing.T) {
	w := world{
		nads: map[string]string{
			"default/bare":  `{"type":"pb"}`,
			"default/named": `{"type":"pb","name":"own","cniVersion":"0.3.1"}`,
			"default/list":  `{"cniVersions":["0.4.0","1.0.0","9.0.0"],"plugins":[{"type":"pb"}],"disableCheck":"true","disableGC":true}`,
		},
		networks: "bare,named,list", conf: `"delegates":[{"type":"pa"}]`,
	}
	p := mustPlan(t, w)
	var got [][2]string
	for _, a := range p.Attachments {
		got = append(got, [2]string{a.Conf.Name, a.Conf.CNIVersion})
	}
	want := [][2]string{{"m", "1.0.0"}, {"bare", "1.0.0"}, {"own", "0.3.1"}, {"list", "1.0.0"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("name and version (-want +got):\n%s", diff)
	}
	if list := p.Attachments[3].Conf; !list.DisableCheck || !list.DisableGC {
		t.Error("disableCheck or disableGC is lost")
	}
	if p.Attachments[2].Network != "default/named" {
		t.Errorf("shown as %s", p.Attachments[2].Network)
	}
}

// B24, B27 and rule 7: the kubelet's arguments go to the default network, each request to its own.
func TestCapabilities(t *testing.T) {
	w := world{
		conf: `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"dns":{"servers":["10.0.0.1"]},"mac":"02:00:00:00:00:01"},
			"delegates":[{"name":"d","type":"pa","capabilities":{"portMappings":true,"mac":true,"bandwidth":false}}]`,
		nads: map[string]string{
			"kube-system/netk": `{"type":"pk","capabilities":{"mac":true,"ips":true}}`,
			"default/caps": `{"plugins":[{"type":"pb","capabilities":{"portMappings":true,"infinibandGUID":true}},
				{"type":"pc","capabilities":{"bandwidth":true,"ips":true,"mac":true,"deviceID":true}}]}`,
		},
		networks: `[{"name":"caps"},{"name":"caps","mac":"02:00:00:00:00:07","ips":["10.1.1.5/24","fd00::5"],"infiniband-guid":"00:11:22:33:44:55:66:77",
			"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"UDP","hostIP":"1.2.3.4"},{"hostPort":81,"containerPort":81}],
			"bandwidth":{"ingressRate":1000,"ingressBurst":18446744073709551615},"deviceID":"0000:01:00.0"}]`,
	}
	p := mustPlan(t, w)
	sameJSON(t, "default network", []byte(runtimeConfig(p.Attachments[0])),
		`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"mac":"02:00:00:00:00:01"}`)
	if p.Attachments[1].RuntimeConfig != nil {
		t.Errorf("B27: a network that asks for nothing gets %s", runtimeConfig(p.Attachments[1]))
	}
	sameJSON(t, "requests", []byte(runtimeConfig(p.Attachments[2])), `{"mac":"02:00:00:00:00:07","ips":["10.1.1.5/24","fd00::5"],
		"infinibandGUID":"00:11:22:33:44:55:66:77","deviceID":"0000:01:00.0","bandwidth":{"ingressRate":1000,"ingressBurst":18446744073709551615},
		"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"udp","hostIP":"1.2.3.4"},{"hostPort":81,"containerPort":81,"protocol":"tcp"}]}`)

	w.networks, w.def = "", `[{"name":"netk","mac":"02:00:00:00:00:09","ips":["10.1.1.1/24"]}]`
	p = mustPlan(t, w)
	sameJSON(t, "B24", []byte(runtimeConfig(p.Attachments[0])), `{"mac":"02:00:00:00:00:09","ips":["10.1.1.1/24"]}`)
}

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a;K8S_POD_INFRA_CONTAINER_ID=cid1;K8S_POD_UID=uid-1"

// B28 and the legacy pairs.
func TestArgs(t *testing.T) {
	cases := []struct {
		name, args, networks, want string
		noPod                      bool
	}{
		{name: "extra", args: podArgs + ";FOO=bar", want: podArgs + ";FOO=bar"},
		{name: "value with =, trailing semicolon", args: "FOO=a=b;" + podArgs + ";", want: podArgs + ";FOO=a=b"},
		{name: "twice", args: podArgs + ";FOO=a;FOO=b", want: podArgs + ";FOO=b"},
		{name: "none given", args: "K8S_POD_UID=", want: strings.Replace(podArgs, "IgnoreUnknown=1", "IgnoreUnknown=true", 1)},
		{name: "empty value", args: podArgs + ";FOO=", want: podArgs + ";FOO="},
		{name: "legacy", args: podArgs + ";MAC=x", networks: `[{"name":"neta","mac":"02:00:00:00:00:07","ips":["10.0.0.1/24","fd00::1"]}]`, want: podArgs + ";MAC=02:00:00:00:00:07;IP=10.0.0.1/24,fd00::1"},
		{name: "legacy, two addresses by capability", networks: `[{"name":"both","ips":["10.0.0.1/24","fd00::1"]}]`, want: podArgs},
		{name: "legacy, one address by capability", networks: `[{"name":"both","ips":["10.0.0.1/24"]}]`, want: podArgs + ";IP=10.0.0.1/24"},
		{name: "no pod", args: "A=b;C=d;A=e;", noPod: true, want: "A=e;C=d"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := mustPlan(t, world{
				args: c.args, networks: c.networks, noPod: c.noPod,
				nads: map[string]string{"default/both": `{"cniVersion":"1.0.0","type":"pb","capabilities":{"ips":true}}`},
			})
			if got := p.Attachments[len(p.Attachments)-1].Args; got != c.want {
				t.Errorf("CNI_ARGS\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// The kernel starts no plugin with a longer variable, not even for a DEL.
func TestArgsFitIntoTheEnvironment(t *testing.T) {
	pair := "X=" + strings.Repeat("x", 131062-len(podArgs+";X="))
	w := world{args: podArgs + ";" + pair, networks: "neta"}
	if got := mustPlan(t, w).Attachments[1].Args; len(got) != 131062 {
		t.Errorf("CNI_ARGS of %d bytes", len(got))
	}
	w.networks = `[{"name":"neta"},{"name":"neta","mac":"02:00:00:00:00:07"}]`
	_, err := w.make(t)
	wantFault(t, err, fault.Config, "networks[1]", "131084 bytes", "131062")
	w.args += "x"
	_, err = w.make(t)
	wantFault(t, err, fault.Environment, "CNI_ARGS", "131063 bytes")
	w = world{networks: `[{"name":"neta","ips":["10.0.0.1"` + strings.Repeat(`,"10.0.0.1"`, 20000) + "]}]"}
	_, err = w.make(t)
	wantFault(t, err, fault.Config, "networks[0].ips", "131062")
}

func TestDelegateWithoutName(t *testing.T) {
	in := (&world{conf: `"delegates":[{"type":"pa"}]`, noPod: true}).input(t)
	in.Conf.Name = ""
	_, err := plan.Make(in)
	wantFault(t, err, fault.Config, "configuration: delegates[0].name: is missing")
}

func TestEnvironment(t *testing.T) {
	w := world{args: "K8S_POD_NAME"}
	_, err := w.make(t)
	wantFault(t, err, fault.Environment, "CNI_ARGS", `"K8S_POD_NAME"`)
	in := (&world{}).input(t)
	in.Sandbox.ContainerID, in.Sandbox.IfName = "../x", "a/b"
	_, err = plan.Make(in)
	all := fault.All(err)
	if len(all) != 2 || all[0].Field != "CNI_CONTAINERID" || all[1].Field != "CNI_IFNAME" || all[0].Code != fault.Environment {
		t.Errorf("faults %v", err)
	}
}

// B29, B30 and what a device changes in its network.
func TestDevices(t *testing.T) {
	w := world{
		nads: map[string]string{
			"default/vf":       `{"plugins":[{"type":"sriov","capabilities":{"deviceID":true}},{"type":"tuning"}]}`,
			"kube-system/boot": `{"type":"sriov"}`,
		},
		resources: map[string]string{"default/vf": "ex.com/vf", "kube-system/boot": "ex.com/vf"},
		devices:   map[string][]string{"ex.com/vf": {"0000:03:02.1", "0000:03:02.0"}},
		networks:  "vf,vf",
	}
	p := mustPlan(t, w)
	for i, id := range []string{"0000:03:02.0", "0000:03:02.1"} {
		a := p.Attachments[i+1]
		if a.DeviceID != id || a.ResourceName != "ex.com/vf" {
			t.Errorf("net%d has device %q of %q, want %q", i+1, a.DeviceID, a.ResourceName, id)
		}
		sameJSON(t, "capability", []byte(runtimeConfig(a)), `{"deviceID":"`+id+`"}`)
		sameJSON(t, "first plugin", a.Conf.Plugins[0].Conf, `{"type":"sriov","capabilities":{"deviceID":true},"deviceID":"`+id+`","pciBusID":"`+id+`"}`)
		sameJSON(t, "second plugin", a.Conf.Plugins[1].Conf, `{"type":"tuning","deviceID":"`+id+`","pciBusID":"`+id+`"}`)
	}

	w.networks = "vf,vf,vf"
	_, err := w.make(t)
	wantFault(t, err, fault.Config, networks+"[2]", `"ex.com/vf"`, "has 2 for 3")

	w.networks, w.def = "vf", "boot" // the default network draws from the same devices, first
	p = mustPlan(t, w)
	if p.Attachments[0].DeviceID != "0000:03:02.0" || p.Attachments[1].DeviceID != "0000:03:02.1" {
		t.Errorf("devices %q and %q", p.Attachments[0].DeviceID, p.Attachments[1].DeviceID)
	}

	w.def, w.networks = "", `[{"name":"vf","deviceID":"mine"}]`
	p = mustPlan(t, w)
	if p.Attachments[1].DeviceID != "0000:03:02.0" || !strings.Contains(texts(p.Warnings), networks+"[0].deviceID: is ignored") {
		t.Errorf("device %q, warnings %q", p.Attachments[1].DeviceID, texts(p.Warnings))
	}
}

// A device that only the annotation names is a capability argument and nothing else.
func TestAskedDevice(t *testing.T) {
	w := world{
		nads:     map[string]string{"default/dev": `{"type":"pb","capabilities":{"deviceID":true}}`},
		networks: `[{"name":"dev","deviceID":"0000:01:00.0"}]`,
	}
	p, err := w.make(t)
	if err != nil {
		t.Fatal(err)
	}
	a := p.Attachments[1]
	sameJSON(t, "capability", []byte(runtimeConfig(a)), `{"deviceID":"0000:01:00.0"}`)
	sameJSON(t, "configuration", a.Conf.Plugins[0].Conf, `{"type":"pb","capabilities":{"deviceID":true}}`)
	if w.rounds != 2 {
		t.Errorf("%d rounds: devices of the pod are none of its business", w.rounds)
	}
	w.networks = `[{"name":"dev","deviceID":"x"},{"name":"dev","deviceID":"x"}]`
	_, err = w.make(t)
	wantFault(t, err, fault.Config, networks+"[1]", `"x"`, networks+"[0]")
}

func TestDeviceInfoFile(t *testing.T) {
	nad := `{"plugins":[{"type":"pa"},{"type":"userspace","capabilities":{"CNIDeviceInfoFile":true}}]}`
	long := strings.Repeat("n", 245)
	w := world{nads: map[string]string{"default/usr": nad, "default/" + long: nad}, networks: "usr@u0"}
	sameJSON(t, "path", []byte(runtimeConfig(mustPlan(t, w).Attachments[1])),
		`{"CNIDeviceInfoFile":"/var/run/k8s.cni.cncf.io/devinfo/cni/default-usr-cid1_u0"}`)
	w.networks, w.conf = long, `"deviceInfoDir":"/d",`+delegatesPA
	_, err := w.make(t)
	wantFault(t, err, fault.Config, networks+"[0]", "255")
}

// B41.
func TestPodUID(t *testing.T) {
	w := world{uid: "uid-2"}
	_, err := w.make(t)
	wantFault(t, err, fault.TryLater, "pod default/pod-a", `"uid-2"`, `"uid-1"`)
	w.notes = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "uid-1"}
	p := mustPlan(t, w)
	if p.PodUID != "uid-2" || !strings.Contains(p.Attachments[0].Args, "K8S_POD_UID=uid-1") {
		t.Errorf("UID %q, CNI_ARGS %q: the mirror's is for the API, the static pod's for plugins", p.PodUID, p.Attachments[0].Args)
	}
	for _, notes := range []map[string]string{
		{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "uid-3"},
		{"kubernetes.io/config.source": "api", "kubernetes.io/config.hash": "uid-1"},
		{"kubernetes.io/config.source": "file"},
	} {
		w.notes = notes
		_, err = w.make(t)
		wantFault(t, err, fault.TryLater, "metadata.uid")
	}
}

func TestGateways(t *testing.T) {
	w := world{networks: `[{"name":"neta","default-route":["10.2.0.1","fe80::1"]},{"name":"neta","default-route":[]},{"name":"neta"}]`}
	p := mustPlan(t, w)
	want := []netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fe80::1")}
	if got := p.Attachments[1].Gateways; !reflect.DeepEqual(got, want) {
		t.Errorf("gateways %v", got)
	}
	if len(p.Attachments[0].Gateways)+len(p.Attachments[2].Gateways)+len(p.Attachments[3].Gateways) != 0 {
		t.Error("a network that asks for no gateway has one")
	}
	w = world{conf: `"strict":true,` + delegatesPA, networks: `[{"name":"neta","default-route":[]},{"name":"neta","default-route":["10.2.0.1"]}]`}
	_, err := w.make(t)
	wantFault(t, err, fault.Config, networks+"[1].default-route", networks+"[0]")
}

func TestClusterNetwork(t *testing.T) {
	list := `{"cniVersion":"1.0.0","name":"cn","plugins":[{"type":"pa"}]%s}`
	file := func(path, extra string) plan.File {
		return plan.File{
			Found: true, Path: path, Data: []byte(strings.Replace(list, "%s", extra, 1)),
			Chained: [][]byte{[]byte(`{"type":"p1"}`), []byte(`{"type":"p2"}`)},
		}
	}
	plugins := func(p *plan.Plan) string {
		var all []string
		for _, plugin := range p.Attachments[0].Conf.Plugins {
			all = append(all, plugin.Type)
		}
		return strings.Join(all, " ")
	}
	cases := []struct {
		name    string
		value   string
		w       world
		network string
		plugins string
		fault   []string
	}{
		{name: "NAD", value: "cn", w: world{nads: map[string]string{"kube-system/cn": `{"type":"pn"}`}}, network: "kube-system/cn", plugins: "pn"},
		{name: "confDir", value: "cn", w: world{files: map[plan.Need]plan.File{"confDir/cn": file("/c/x.conflist", "")}}, network: "cn", plugins: "pa p1 p2"},
		{name: "no Kubernetes", value: "cn", w: world{noPod: true, nads: map[string]string{"kube-system/cn": `{"type":"pn"}`}, files: map[plan.Need]plan.File{"confDir/cn": file("/c/x.conflist", "")}}, network: "cn", plugins: "pa p1 p2"},
		{name: "path", value: "/c/x.conflist", w: world{files: map[plan.Need]plan.File{"path//c/x.conflist": file("/c/x.conflist", "")}}, network: "cn", plugins: "pa p1 p2"},
		{name: "only inlined", value: "/c", w: world{files: map[plan.Need]plan.File{"path//c": file("/c/x.conflist", `,"loadOnlyInlinedPlugins":true`)}}, network: "cn", plugins: "pa"},
		{name: "only a sub-directory", value: "/c", w: world{files: map[plan.Need]plan.File{"path//c": {Found: true, Path: "/c/x.conflist", Data: []byte(`{"name":"cn"}`), Chained: [][]byte{[]byte(`{"type":"p1"}`)}}}}, network: "cn", plugins: "p1"},
		{name: "no plugins at all", value: "/c", w: world{files: map[plan.Need]plan.File{"path//c": {Found: true, Path: "/c/x.conflist", Data: []byte(`{"name":"cn"}`)}}}, fault: []string{"file /c/x.conflist", "neither type nor plugins"}},
		{name: "broken sub-directory", value: "/c", w: world{files: map[plan.Need]plan.File{"path//c": {Found: true, Path: "/c/x.conflist", Data: []byte(strings.Replace(list, "%s", "", 1)), Chained: [][]byte{[]byte(`{bad`)}}}}, fault: []string{"file /c/x.conflist", "chained plugins[0]", "is not JSON"}},
		{name: "conf has no sub-directory", value: "/c/x.conf", w: world{files: map[plan.Need]plan.File{"path//c/x.conf": {Found: true, Path: "/c/x.conf", Data: []byte(`{"name":"cn","type":"pa"}`), Chained: [][]byte{[]byte(`{"type":"p1"}`)}}}}, network: "cn", plugins: "pa"},
		{name: "nothing", value: "cn", fault: []string{"configuration m", "clusterNetwork", `"cn"`, `"kube-system"`, "/etc/cni/multus/net.d"}},
		{name: "no such path", value: "/c", fault: []string{"configuration m", "clusterNetwork", `"/c"`}},
		{name: "relative path", value: "c/d", fault: []string{"configuration m", "clusterNetwork", "absolute"}},
		{name: "no name", value: "/c", w: world{files: map[plan.Need]plan.File{"path//c": {Found: true, Path: "/c/x.conf", Data: []byte(`{"type":"pa"}`)}}}, fault: []string{"file /c/x.conf", "name", "is missing"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.w.conf = `"clusterNetwork":"` + c.value + `"`
			p, err := c.w.make(t)
			if c.fault != nil {
				wantFault(t, err, fault.Config, c.fault...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Attachments[0].Network; got != c.network {
				t.Errorf("network %q, want %q", got, c.network)
			}
			if got := plugins(p); got != c.plugins {
				t.Errorf("plugins %q, want %q", got, c.plugins)
			}
		})
	}
}

func TestAuxiliaryChain(t *testing.T) {
	w := world{
		conf:     `"clusterNetwork":"/c/x.conf","auxiliaryCNIChainName":"aux"`,
		networks: "neta",
		files: map[plan.Need]plan.File{
			"path//c/x.conf": {Found: true, Path: "/c/x.conf", Data: []byte(`{"name":"cn","type":"pa"}`)},
			"chain/aux":      {Found: true, Chained: [][]byte{[]byte(`{"type":"pz"}`)}},
		},
	}
	p := mustPlan(t, w)
	if diff := cmp.Diff([]string{"eth0 cn", "net1 default/neta", "net2 aux"}, show(p)); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
	aux := p.Attachments[2]
	if !aux.Auxiliary || aux.Conf.Name != "aux" || aux.Conf.CNIVersion != "1.0.0" || len(aux.Conf.Plugins) != 1 || aux.Conf.Plugins[0].Type != "pz" {
		t.Errorf("auxiliary chain %+v", aux)
	}
	if p.Attachments[1].Auxiliary || p.Attachments[0].Auxiliary {
		t.Error("another network passes for the auxiliary chain")
	}
	w.files["chain/aux"] = plan.File{}
	if p := mustPlan(t, w); len(p.Attachments) != 2 {
		t.Errorf("%d attachments from an empty directory", len(p.Attachments))
	}
	w.conf = `"clusterNetwork":"cn","auxiliaryCNIChainName":"aux"`
	w.nads = map[string]string{"kube-system/cn": `{"type":"pn"}`}
	_, err := w.make(t)
	wantFault(t, err, fault.Config, "configuration m", "auxiliaryCNIChainName", "names no file")
}

// A published conf has the pod network as a delegate that was taken from a file: it is the
// cluster network, for the keys that want one.
func TestDelegateOfPrimaryConfIsTheClusterNetwork(t *testing.T) {
	w := world{
		conf:     delegatesPA + `,"primaryConf":"/c/x.conf","defaultNetworks":["third"],"auxiliaryCNIChainName":"aux"`,
		networks: "neta",
		nads:     map[string]string{"kube-system/third": `{"type":"pd"}`},
		files:    map[plan.Need]plan.File{"chain/aux": {Found: true, Chained: [][]byte{[]byte(`{"type":"pz"}`)}}},
	}
	want := []string{"eth0 defnet", "net1 kube-system/third", "net2 default/neta", "net3 aux"}
	if diff := cmp.Diff(want, show(mustPlan(t, w))); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
	w.conf = delegatesPA + `,"auxiliaryCNIChainName":"aux"`
	_, err := w.make(t)
	wantFault(t, err, fault.Config, "configuration m", "auxiliaryCNIChainName", "names no file")
	w.conf = delegatesPA + `,"defaultNetworks":["third"]`
	if got := show(mustPlan(t, w)); len(got) != 2 {
		t.Errorf("defaultNetworks hold beside plain delegates: %q", got)
	}
}

// Plain pods need nobody: what lets the hands plan alone.
func TestPlainPodNeedsNothing(t *testing.T) {
	w := world{}
	if _, err := w.make(t); err != nil || w.rounds != 1 {
		t.Errorf("%d rounds, error %v", w.rounds, err)
	}
}

func TestWarningsAreBounded(t *testing.T) {
	var b strings.Builder
	for range 5000 {
		b.WriteString(`"k":1,`)
	}
	p := mustPlan(t, world{networks: `[{` + b.String() + `"name":"neta"}]`})
	if n := len(p.Warnings); n != 65 || !strings.Contains(p.Warnings[64].Text, "4936 more") {
		t.Errorf("%d warnings, the last %q", n, p.Warnings[n-1].Text)
	}
}

func TestPlanRoundTrip(t *testing.T) {
	p := mustPlan(t, world{networks: `[{"name":"neta","default-route":["10.2.0.1"],"mac":"02:00:00:00:00:07"}]`})
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back plan.Plan
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p, &back) {
		t.Errorf("the plan changed on the wire: %s", b)
	}
}

// STATUS and GC look the cluster network up as ADD does, without a pod.
func TestLookUpWithoutPod(t *testing.T) {
	in := (&world{conf: `"clusterNetwork":"cn"`, noPod: true}).input(t)
	in.LookUp = true
	out, err := plan.Make(in)
	want := []plan.NADRef{{Namespace: "kube-system", Name: "cn"}}
	if diff := cmp.Diff(want, out.NeedNADs); err != nil || diff != "" {
		t.Fatalf("error %v, NADs (-want +got):\n%s", err, diff)
	}
	in.NADs[want[0]] = plan.NAD{Found: true, Config: `{"type":"pn"}`}
	out, err = plan.Make(in)
	if err != nil || out.Plan == nil || out.Plan.Attachments[0].Network != "kube-system/cn" {
		t.Errorf("plan %+v, error %v", out.Plan, err)
	}
}
