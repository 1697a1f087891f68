// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const bondType, bondEnv = "bond", "WEFT_TEST_BOND"

// bondDir gives a directory with the plugin bond: this test binary. The plugins of CNI have none; this
// one takes the keys that users of the NPWG's write, and as theirs it needs interfaces that earlier
// networks of the same pod made.
func bondDir(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nGOCOVERDIR=%s %s=1 exec %s\n", t.TempDir(), bondEnv, self)
	must(t, os.WriteFile(filepath.Join(dir, bondType), []byte(script), 0o700)) //nolint:gosec // it is a program
	return dir
}

type bondConf struct {
	types.NetConf
	Mode             string `json:"mode"`
	LinksInContainer bool   `json:"linksInContainer"`
	FailOverMac      int    `json:"failOverMac"`
	Miimon           string `json:"miimon"`
	Links            []struct {
		Name string `json:"name"`
	} `json:"links"`
}

func bondPlugin() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: bondAdd, Check: bondCheck, Del: bondDel}, version.All, "bond of Weft's tests")
}

// bondCall is what each call needs: the conf, and the pod's links (nil without a namespace).
func bondCall(args *skel.CmdArgs) (conf bondConf, pod *netlink.Handle, err error) {
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return conf, nil, err
	}
	if !conf.LinksInContainer {
		return conf, nil, errors.New("linksInContainer: must be true")
	}
	if args.Netns == "" {
		return conf, nil, nil
	}
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return conf, nil, err
	}
	defer ns.Close()
	pod, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	return conf, pod, err
}

func bondAdd(args *skel.CmdArgs) error {
	conf, pod, err := bondCall(args)
	if err != nil {
		return err
	}
	bond, err := makeBond(conf, pod, args.IfName)
	if err != nil {
		return err
	}
	answer, err := invoke.DelegateAdd(context.Background(), conf.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return err
	}
	result, err := types100.NewResultFromResult(answer)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		ip.Interface = new(0)
		if err := pod.AddrAdd(bond, &netlink.Addr{IPNet: &ip.Address}); err != nil {
			return err
		}
	}
	result.Interfaces = []*types100.Interface{{Name: args.IfName, Mac: bond.Attrs().HardwareAddr.String(), Sandbox: args.Netns}}
	return types.PrintResult(result, conf.CNIVersion)
}

func makeBond(conf bondConf, pod *netlink.Handle, name string) (netlink.Link, error) {
	bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: name})
	bond.Mode = netlink.StringToBondMode(conf.Mode)
	bond.FailOverMac = netlink.BondFailOverMac(conf.FailOverMac)
	var err error
	if bond.Miimon, err = strconv.Atoi(conf.Miimon); err != nil {
		return nil, fmt.Errorf("miimon: %w", err)
	}
	for _, l := range conf.Links { // before anything is made
		if _, err := pod.LinkByName(l.Name); err != nil {
			return nil, fmt.Errorf("links: %s: %w", l.Name, err)
		}
	}
	if err := pod.LinkAdd(bond); err != nil {
		return nil, err
	}
	for _, l := range conf.Links {
		link, err := pod.LinkByName(l.Name)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(pod.LinkSetDown(link), pod.LinkSetMaster(link, bond), pod.LinkSetUp(link)); err != nil {
			return nil, fmt.Errorf("put %s into bond %s: %w", l.Name, name, err)
		}
	}
	if err := pod.LinkSetUp(bond); err != nil {
		return nil, err
	}
	return pod.LinkByName(name) // with the address of its first link
}

func bondCheck(args *skel.CmdArgs) error {
	conf, pod, err := bondCall(args)
	if err != nil {
		return err
	}
	bond, err := pod.LinkByName(args.IfName)
	if err != nil {
		return err
	}
	addrs, err := pod.AddrList(bond, netlink.FAMILY_V4)
	if err != nil || len(addrs) == 0 {
		return fmt.Errorf("bond %s has no address (%w)", args.IfName, err)
	}
	for _, l := range conf.Links {
		link, err := pod.LinkByName(l.Name)
		if err != nil {
			return err
		}
		if link.Attrs().MasterIndex != bond.Attrs().Index {
			return fmt.Errorf("%s is not in bond %s", l.Name, args.IfName)
		}
	}
	return nil
}

func bondDel(args *skel.CmdArgs) error {
	conf, pod, err := bondCall(args)
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), conf.IPAM.Type, args.StdinData, nil); err != nil || pod == nil {
		return err
	}
	bond, err := pod.LinkByName(args.IfName)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err != nil {
		return err
	}
	return pod.LinkDel(bond)
}
