// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/sandbox"
	"github.com/weftnet/weft/test/binaries"
)

const nobody = 65534

// command prepares a run of the real weft, as an ordinary user when user is set.
func command(t *testing.T, user bool, args ...string) *exec.Cmd {
	t.Helper()
	dirs := bins(t, user)
	if args[0] == "sandbox" && args[1] == "run" {
		args = append(args, "--bin-dir", strings.Join(dirs, ":"))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dirs[0], "weft"), args...)
	cmd.WaitDelay = time.Minute
	if user && os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// bins are the directories of the binaries. An ordinary user may not be let into the
// repository, so gets a copy.
func bins(t *testing.T, user bool) []string {
	t.Helper()
	weft, plugins := binaries.Weft(t), binaries.Plugins(t)
	if !user || os.Geteuid() != 0 {
		return []string{weft, plugins}
	}
	dir := openDir(t)
	for from, names := range map[string][]string{
		weft:    {"weft", "weft-cni", "weft-planner"},
		plugins: {"bridge", "macvlan", "host-local", "loopback"},
	} {
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(from, name))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
		}
	}
	return []string{dir}
}

// openDir is a temporary directory that every user may look into.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return dir
}

// manifestDir writes a directory of manifests.
func manifestDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := openDir(t)
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// needNamespaces skips where the system does not let this user make namespaces.
func needNamespaces(t *testing.T, user bool) {
	t.Helper()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS}
	if user || os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	if err := cmd.Run(); err != nil {
		if os.Getenv("WEFT_CI") != "" {
			t.Fatalf("no namespaces: %v", err)
		}
		t.Skipf("no namespaces: %v", err)
	}
}

// untouched checks at the end of the test that the machine's own links are what they were.
func untouched(t *testing.T) {
	t.Helper()
	before := links(t)
	t.Cleanup(func() {
		if after := links(t); !slices.Equal(after, before) {
			t.Errorf("the machine's links changed: before %q, after %q", before, after)
		}
	})
}

func links(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	must(t, err)
	for _, l := range all {
		names = append(names, fmt.Sprintf("%d %s %s %s", l.Index, l.Name, l.HardwareAddr, l.Flags))
	}
	return names
}

// run runs to the end and returns what was printed and the exit code.
func run(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	t.Logf("%v: exit %d, stderr:\n%s", cmd.Args, cmd.ProcessState.ExitCode(), errs.String())
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// report runs "sandbox run -o json".
func report(t *testing.T, user bool, wantCode int, args ...string) *sandbox.Report {
	t.Helper()
	stdout, _, code := run(t, command(t, user, append([]string{"sandbox", "run", "-o", "json"}, args...)...))
	r := &sandbox.Report{}
	if err := json.Unmarshal([]byte(stdout), r); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if code != wantCode {
		t.Errorf("exit code %d, want %d: %s", code, wantCode, stdout)
	}
	if !r.TakenDown || len(r.Left) > 0 {
		t.Errorf("taken down: %t, left: %q", r.TakenDown, r.Left)
	}
	return r
}

// rows shows pods as "namespace/name interface network addresses".
func rows(r *sandbox.Report) (all []string) {
	for _, p := range r.Pods {
		for _, i := range p.Interfaces {
			all = append(all, fmt.Sprintf("%s/%s %s %s %v", p.Namespace, p.Name, i.Name, i.Network, i.Addresses))
		}
	}
	return all
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDemo(t *testing.T) {
	for name, user := range map[string]bool{"as is": false, "ordinary user": true} {
		t.Run(name, func(t *testing.T) {
			needNamespaces(t, user)
			untouched(t)
			files := map[string]string{}
			found, err := filepath.Glob("../../examples/demo/*.yaml")
			must(t, err)
			for _, f := range found {
				data, err := os.ReadFile(f)
				must(t, err)
				files[filepath.Base(f)] = string(data)
			}
			checkDemo(t, report(t, user, 0, "-f", manifestDir(t, files)))
		})
	}
}

func checkDemo(t *testing.T, r *sandbox.Report) {
	t.Helper()
	equal(t, rows(r), []string{
		"default/client eth0 pods [10.244.0.2/24 fd00:10:244::2/64]",
		"default/client net1 default/blue [10.10.0.2/24 fd00:10:10::2/64]",
		"default/client net2 default/green [10.20.0.2/24]",
		"default/server eth0 pods [10.244.0.3/24 fd00:10:244::3/64]",
		"default/server data0 default/blue [10.10.0.3/24 fd00:10:10::3/64]",
		"default/server net2 default/green [10.20.0.3/24]",
		"default/by-name eth0 pods [10.244.0.4/24 fd00:10:244::4/64]",
		"default/by-name net1 default/macvlan-conf [192.168.1.2/24]",
		"default/by-list eth0 pods [10.244.0.5/24 fd00:10:244::5/64]",
		"default/by-list net1 default/macvlan-conf [192.168.1.3/24]",
		"default/by-list net2 default/sriov-net [10.56.217.2/24]",
		"default/by-json eth0 pods [10.244.0.6/24 fd00:10:244::6/64]",
		"default/by-json net1 default/macvlan-conf [192.168.1.100/24]",
		"default/by-json net2 kube-system/sriov-net [10.56.218.2/24]",
	})
	var probes []string
	for _, p := range r.Probes {
		if p.Error != "" || p.Milliseconds < 0 {
			t.Errorf("%+v", p)
		}
		probes = append(probes, fmt.Sprintf("%s %s>%s", p.Network, p.From.Address, p.To.Address))
	}
	equal(t, probes, []string{
		"default/blue 10.10.0.2>10.10.0.3", "default/blue fd00:10:10::2>fd00:10:10::3",
		"default/blue 10.10.0.3>10.10.0.2", "default/blue fd00:10:10::3>fd00:10:10::2",
		"default/green 10.20.0.2>10.20.0.3", "default/green 10.20.0.3>10.20.0.2",
		"default/macvlan-conf 192.168.1.2>192.168.1.3", "default/macvlan-conf 192.168.1.3>192.168.1.100",
		"default/macvlan-conf 192.168.1.100>192.168.1.2",
	})
	byJSON := r.Pods[4]
	if got := byJSON.Interfaces[1].MAC; got != "c2:b0:57:49:47:f1" {
		t.Errorf("the asked MAC is %s", got)
	}
	for _, p := range r.Pods {
		if p.Interfaces[1].PluginMilliseconds <= 0 {
			t.Errorf("pod %s: no plugin time", p.Name)
		}
	}
	status := byJSON.NetworkStatus
	if len(status) != 3 || status[0].Name != "pods" || !status[0].Default || status[1].Default ||
		status[1].Name != "default/macvlan-conf" || status[1].MAC != "c2:b0:57:49:47:f1" ||
		!slices.Equal(status[1].IPs, []string{"192.168.1.100"}) || !slices.Equal(status[1].Gateway, []string{"192.168.1.1"}) {
		t.Errorf("network-status %+v", status)
	}
}

func TestCut(t *testing.T) {
	needNamespaces(t, false)
	untouched(t)
	r := report(t, false, 1, "-f", "../../examples/demo", "--cut", "br-blue")
	for _, p := range r.Probes {
		if failed := p.Error != ""; failed != (p.Network == "default/blue") {
			t.Errorf("%+v", p)
		}
	}
	r = report(t, false, 1, "-f", "../../examples/demo", "--cut", "nolink")
	if len(r.Faults) != 1 || !strings.Contains(r.Faults[0], "lo, eth0, eth1, cni0, br-blue") {
		t.Errorf("got %q", r.Faults)
	}
}

const bridgeNAD = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: net}
spec:
  config: '{"cniVersion":"1.0.0","name":"net","type":"bridge","bridge":"br0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}'
`

func podYAML(name, networks string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, annotations: {k8s.v1.cni.cncf.io/networks: '%s'}}\n", name, networks)
}

func TestFailingPodStopsNoOther(t *testing.T) {
	needNamespaces(t, false)
	untouched(t)
	nad := func(name, conf string) string {
		return fmt.Sprintf("---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: %s}\nspec: {config: '%s'}\n", name, conf)
	}
	dir := manifestDir(t, map[string]string{
		"a.yaml": bridgeNAD + podYAML("missing", "nosuch") + podYAML("good", "net") + podYAML("late", "net") +
			nad("vlan", `{"cniVersion":"1.0.0","name":"v","type":"vlan","master":"eth5","vlanId":7}`) + podYAML("vlan", "vlan"),
		"b.yaml": "kind: Pod\nmetadata: [\n",
	})
	r := report(t, false, 1, "-f", dir)
	got := rows(r)
	for _, want := range []string{"default/good net1 default/net [10.9.0.2/24]", "default/late net1 default/net [10.9.0.3/24]"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	for _, p := range r.Pods {
		switch p.Name {
		case "missing":
			if !strings.Contains(p.Error, "default/nosuch") || !strings.Contains(p.Error, "code 7") {
				t.Errorf("missing NAD: %q", p.Error)
			}
		case "vlan":
			kernelLacks := strings.Contains(p.Error, "network default/vlan needs links of kind vlan, which the running kernel does not have")
			if p.Error != "" && !kernelLacks {
				t.Errorf("vlan: %q", p.Error)
			}
		default:
			if p.Error != "" {
				t.Errorf("pod %s: %s", p.Name, p.Error)
			}
		}
	}
	if len(r.Faults) != 1 || !strings.Contains(r.Faults[0], "b.yaml:") {
		t.Errorf("broken file: got %q", r.Faults)
	}
}

// TestMachineIsReadOnly: a plugin that is told to write to the machine's own files cannot, and
// what it then leaves of its record is said.
func TestMachineIsReadOnly(t *testing.T) {
	needNamespaces(t, false)
	untouched(t)
	const outside = "/var/weft-sandbox-test"
	dir := manifestDir(t, map[string]string{
		"a.yaml": strings.Replace(bridgeNAD, `"type":"host-local"`, `"type":"host-local","dataDir":"`+outside+`"`, 1) + podYAML("a", "net"),
	})
	stdout, _, code := run(t, command(t, false, "sandbox", "run", "-f", dir))
	for _, want := range []string{"pod default/a FAILED: ", "read-only file system", "LEFT BEHIND:\n  record /var/lib/weft/attachments/"} {
		if code != 1 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, %q is missing in %s", code, want, stdout)
		}
	}
	if _, err := os.Lstat(outside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the machine's files were touched: %v", err)
	}
}

func TestOwnPodNetwork(t *testing.T) {
	needNamespaces(t, false)
	dir := manifestDir(t, map[string]string{
		"a.yaml":      podYAML("a", "") + podYAML("b", ""),
		"20-b.conf":   "{",
		"10-pod.conf": `{"cniVersion":"1.0.0","name":"mine","type":"macvlan","mode":"bridge","ipam":{"type":"host-local","subnet":"10.7.0.0/24"}}`,
	})
	equal(t, rows(report(t, false, 0, "-f", dir)), []string{"default/a eth0 mine [10.7.0.2/24]", "default/b eth0 mine [10.7.0.3/24]"})
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"sandbox", "run"},
		{"sandbox", "run", "-f", "/nonexistent"},
		{"sandbox", "run", "-f", ".", "-o", "xml"},
		{"sandbox", "run", "-f", ".", "--timeout", "0s"},
		{"sandbox", "run", "-f", ".", "--bogus"},
		{"sandbox", "run", "-f", ".", "extra"},
		{"bogus", "x"},
		{"sandbox", "bogus"},
		{"sandbox", "inside"},
	} {
		if stdout, stderr, code := run(t, command(t, false, args...)); code != 2 || stderr == "" || stdout != "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	for args, want := range map[string]string{
		"--version": "weft ", "sandbox run --help": "weft sandbox run -f examples/demo --keep", "sandbox down --help": "weft sandbox down",
	} {
		if stdout, _, code := run(t, exec.Command(filepath.Join(binaries.Weft(t), "weft"), strings.Fields(args)...)); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit code %d, stdout %q", args, code, stdout)
		}
	}
}

// TestForbidden runs where the kernel lets nobody make a user namespace: inside one whose
// limit of further ones is zero, as a user without rights in it.
func TestForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can map two users into a user namespace")
	}
	needNamespaces(t, true)
	weft := command(t, true, "sandbox", "run", "-f", openDir(t))
	script := `echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", script, "sh"}, weft.Args...)...)
	both := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: nobody, HostID: nobody, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: both, GidMappings: both, GidMappingsEnableSetgroups: true}
	_, stderr, code := run(t, cmd)
	if code != 1 || !strings.Contains(stderr, "make namespaces:") || !strings.Contains(stderr, "sudo") ||
		!strings.Contains(stderr, "sysctl -w user.max_user_namespaces=10000") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

// slowDir has a pod whose plugin sleeps in ADD, and writes a line to its log when it begins.
func slowDir(t *testing.T) (dir, bin string) {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"slow","type":"slow","log":"/tmp/calls","sleep":{"ADD":"60s"}}`
	return manifestDir(t, map[string]string{
		"a.yaml": podYAML("slow", "slow") + "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n" +
			"metadata: {name: slow}\nspec: {config: '" + conf + "'}\n",
	}), binaries.Delegate(t, "slow")
}

// startSlow starts a run and waits until the slow plugin sleeps; it returns the process inside.
func startSlow(t *testing.T, out io.Writer) (cmd *exec.Cmd, inside int) {
	t.Helper()
	dir, bin := slowDir(t)
	cmd = command(t, false, "sandbox", "run", "-f", dir)
	cmd.Args[len(cmd.Args)-1] += ":" + bin
	cmd.Stdout, cmd.Stderr = out, t.Output()
	must(t, cmd.Start())
	poll(t, "the plugin runs", func() bool {
		for _, pid := range children(cmd.Process.Pid) {
			// Seen through the root of the process inside, where /tmp is the sandbox's own.
			if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/tmp/calls", pid)); err == nil && bytes.Contains(data, []byte(`"ADD"`)) {
				inside = pid
			}
		}
		return inside != 0
	})
	return cmd, inside
}

func children(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		for f := range strings.FieldsSeq(string(data)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// descendants are the processes below pid, which are those of the sandbox.
func descendants(pid int) []int {
	all := children(pid)
	for _, c := range children(pid) {
		all = append(all, descendants(c)...)
	}
	return all
}

func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); <-tick.C {
		if done() {
			return
		}
	}
	t.Fatalf("waited in vain until %s", what)
}

func gone(pids []int) func() bool {
	return func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && !bytes.Contains(stat, []byte(") Z "))
		})
	}
}

func TestKilledLeavesNothing(t *testing.T) {
	needNamespaces(t, false)
	for _, victim := range []string{"outside", "inside"} {
		t.Run(victim, func(t *testing.T) {
			untouched(t)
			var out bytes.Buffer
			cmd, inside := startSlow(t, &out)
			all := append(descendants(inside), inside)
			if len(all) < 3 { // it, weft-cni and the plugin
				t.Errorf("got processes %v", all)
			}
			pid := cmd.Process.Pid
			if victim == "inside" {
				pid = inside
			}
			must(t, syscall.Kill(pid, syscall.SIGKILL))
			if err := cmd.Wait(); err == nil {
				t.Error("it ended well")
			}
			if victim == "inside" && cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
			}
			poll(t, "all processes are gone", gone(all))
		})
	}
}

func TestInterruptTakesDown(t *testing.T) {
	needNamespaces(t, false)
	untouched(t)
	var out bytes.Buffer
	cmd, inside := startSlow(t, &out)
	all := append(descendants(inside), inside)
	must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "Taken down: no interface, address, record, namespace or process is left.") {
		t.Errorf("got %s", out.String())
	}
	poll(t, "all processes are gone", gone(all))
}

func TestKeepAndDown(t *testing.T) {
	for name, user := range map[string]bool{"as is": false, "ordinary user": true} {
		t.Run(name, func(t *testing.T) {
			needNamespaces(t, user)
			untouched(t)
			state := filepath.Join(openDir(t), "state")
			if user && os.Geteuid() == 0 {
				must(t, os.Mkdir(state, 0o700))
				must(t, errors.Join(os.Chown(state, nobody, nobody), os.Chown(filepath.Dir(state), nobody, nobody)))
			}
			checkKeep(t, user, state)
		})
	}
}

func checkKeep(t *testing.T, user bool, state string) {
	t.Helper()
	dir := manifestDir(t, map[string]string{"a.yaml": bridgeNAD + podYAML("a", "net") + podYAML("b", "net")})
	keep := []string{"sandbox", "run", "-f", dir, "--keep", "--state-dir", state}
	stdout, _, code := run(t, command(t, user, keep...))
	if code != 0 || !strings.Contains(stdout, "weft sandbox down --state-dir "+state) {
		t.Fatalf("exit code %d, stdout %s", code, stdout)
	}
	var holder sandbox.Holder
	data, err := os.ReadFile(filepath.Join(state, "holder.json"))
	must(t, err)
	must(t, json.Unmarshal(data, &holder))
	all := append(descendants(holder.PID), holder.PID)
	t.Cleanup(func() { _ = syscall.Kill(holder.PID, syscall.SIGKILL) })
	if gone([]int{holder.PID})() {
		t.Fatal("nobody keeps it")
	}
	checkEnter(t, user, stdout)

	if _, stderr, code := run(t, command(t, user, keep...)); code != 1 || !strings.Contains(stderr, "is kept already") {
		t.Errorf("a second one: exit code %d, stderr %s", code, stderr)
	}
	down := []string{"sandbox", "down", "--state-dir", state}
	stdout, _, code = run(t, command(t, user, down...))
	if code != 0 || stdout != "Taken down: no interface, address, record, namespace or process is left.\n" {
		t.Errorf("down: exit code %d, stdout %s", code, stdout)
	}
	if !gone(all)() {
		t.Error("processes are left")
	}
	if _, stderr, code := run(t, command(t, user, down...)); code != 1 || !strings.Contains(stderr, "no sandbox is kept") {
		t.Errorf("down again: exit code %d, stderr %s", code, stderr)
	}
}

// checkEnter runs the command that the run printed.
func checkEnter(t *testing.T, user bool, stdout string) {
	t.Helper()
	for line := range strings.Lines(stdout) {
		enter, pod, ok := strings.Cut(strings.TrimSpace(line), "    # ")
		if !ok || pod != "default/b" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", enter)
		cmd.Stdin = strings.NewReader("cat /proc/net/fib_trie\n")
		if user && os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("10.9.0.3")) {
			t.Errorf("%s: %v: %s", enter, err, out)
		}
		return
	}
	t.Errorf("no way to enter in %s", stdout)
}

// TestDownEndsOnlyItsOwn: a process that has the holder's number, but not its start time, is
// somebody else's.
func TestDownEndsOnlyItsOwn(t *testing.T) {
	other := exec.Command("sleep", "600")
	must(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	state := filepath.Join(openDir(t), "state")
	must(t, os.Mkdir(state, 0o700))
	must(t, os.WriteFile(filepath.Join(state, "holder.json"), fmt.Appendf(nil, `{"pid":%d,"start":1}`, other.Process.Pid), 0o600))
	_, stderr, code := run(t, command(t, false, "sandbox", "down", "--state-dir", state))
	if code != 1 || !strings.Contains(stderr, "ended by itself") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
	if gone([]int{other.Process.Pid})() {
		t.Error("it ended another process")
	}
}
