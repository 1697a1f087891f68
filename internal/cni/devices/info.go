// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/host/brief"
)

// InfoCapability is the capability by which a plugin is told the path of its
// attachment's device-info file.
const InfoCapability = "CNIDeviceInfoFile"

// MaxInfo is the largest device-info file, in bytes. It ends up in an annotation.
const MaxInfo = 1 << 20

// CheckInfo says whether the device plugin's file about an attachment's device is fit
// to be handed on: none, or a valid one. Errors: *fault.Fault, 7 for what it holds, 101
// for what the file system says.
func CheckInfo(conf *netconf.Conf, a plan.Attachment) error {
	_, err := pluginInfo(conf, a)
	return err
}

// CopyInfo makes the device-info file of an attachment whose plugins declare the
// capability, before they run: a copy of the device plugin's file about the attachment's
// device, or none when there is none, whatever was there before; the directory is made.
// For any other attachment it does nothing. Errors: those of CheckInfo.
func CopyInfo(conf *netconf.Conf, a plan.Attachment) error {
	name, ok := infoFile(conf, a)
	if !ok {
		return nil
	}
	info, err := pluginInfo(conf, a)
	if err != nil {
		return err
	}
	return infoFault(conf, "cni", name, writeInfo(conf, name, info))
}

// ReadInfo gives what is to be reported about the device of an attachment that was made:
// its device-info file as the plugins left it, else the device plugin's; nil when there
// is neither. Errors: those of CheckInfo, but 102 for what a CNI plugin wrote.
func ReadInfo(conf *netconf.Conf, a plan.Attachment) (json.RawMessage, error) {
	if name, ok := infoFile(conf, a); ok {
		info, err := readInfo(conf, "cni", name, fault.Result)
		if err != nil || info != nil {
			return info, err
		}
	}
	return pluginInfo(conf, a)
}

// RemoveInfo removes the device-info file of an attachment that is undone, and what an
// interrupted CopyInfo left. One that is gone is no error. A path below another
// deviceInfoDir than the configuration's is left alone.
func RemoveInfo(conf *netconf.Conf, a plan.Attachment) error {
	name, ok := infoFile(conf, a)
	if !ok {
		return nil
	}
	root, err := openSub(conf, "cni")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return infoFault(conf, "cni", name, err)
	}
	defer root.Close() //nolint:errcheck // removing is done
	return infoFault(conf, "cni", name, errors.Join(remove(root, name), remove(root, unfinished(name))))
}

// infoFile is the name in <deviceInfoDir>/cni of an attachment's file. The path is the
// plan's; one that leads elsewhere (a runtime's own, or that of another time's
// configuration) is not this package's to touch.
func infoFile(conf *netconf.Conf, a plan.Attachment) (string, bool) {
	var path string
	if raw, ok := a.RuntimeConfig[InfoCapability]; !ok || json.Unmarshal(raw, &path) != nil {
		return "", false
	}
	name, ok := strings.CutPrefix(path, strings.TrimSuffix(conf.DeviceInfoDir, "/")+"/cni/")
	return name, ok && name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// pluginInfo is the device plugin's file about the device that was drawn; nil: none.
func pluginInfo(conf *netconf.Conf, a plan.Attachment) (json.RawMessage, error) {
	if a.ResourceName == "" || a.DeviceID == "" {
		return nil, nil
	}
	name := strings.ReplaceAll(a.ResourceName+"-"+a.DeviceID, "/", "-") + "-device.json"
	return readInfo(conf, "dp", name, fault.Config)
}

// readInfo reads and checks a device-info file; nil: there is none. invalid is the code
// for one that is broken.
func readInfo(conf *netconf.Conf, sub, name string, invalid fault.Code) (json.RawMessage, error) {
	root, err := openSub(conf, sub)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, infoFault(conf, sub, name, err)
	}
	defer root.Close() //nolint:errcheck // nothing was written
	info, err := readRegular(root, name, MaxInfo)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errLink), errors.Is(err, hostfiles.ErrNotRegular), errors.Is(err, hostfiles.ErrTooLarge):
		return nil, fault.New(invalid, infoObject(conf, sub, name), "", "%w", err)
	case err != nil:
		return nil, infoFault(conf, sub, name, err)
	}
	if field, text := checkInfo(info); text != "" {
		return nil, fault.New(invalid, infoObject(conf, sub, name), field, "%s", text)
	}
	return info, nil
}

// checkInfo says which field of a device-info is wrong and how, "" for none. A type that
// the specification does not name may have any fields. Source: device-info spec 1.1, 3.1.
func checkInfo(b []byte) (field, text string) {
	info, err := netconf.ParseObject(b)
	if err != nil {
		return "", err.Error()
	}
	value := map[string]string{}
	for _, field := range []string{"type", "version"} {
		raw, ok := info.Get(field)
		if !ok {
			return field, "is missing"
		}
		s, err := netconf.Decode[string](raw, "a string")
		if err != nil {
			return field, err.Error()
		}
		if value[field] = s; s == "" {
			return field, "is empty"
		}
	}
	switch kind := value["type"]; kind {
	case "pci", "vdpa", "vhost-user", "memif":
		raw, ok := info.Get(kind)
		if !ok {
			return kind, "is missing, and the type says that it is there"
		}
		if _, err := netconf.Inner(raw); err != nil {
			return kind, err.Error()
		}
	}
	return "", ""
}

// openSub opens the directory sub of deviceInfoDir, which must not be a link.
func openSub(conf *netconf.Conf, sub string) (*os.Root, error) {
	root, err := os.OpenRoot(conf.DeviceInfoDir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // its directory is opened, or is not
	if info, err := root.Lstat(sub); err != nil {
		return nil, err
	} else if info.Mode()&fs.ModeSymlink != 0 {
		return nil, errLink
	}
	return root.OpenRoot(sub)
}

// writeInfo puts info in the place of the file, nil: removes it.
func writeInfo(conf *netconf.Conf, name string, info []byte) error {
	if err := os.MkdirAll(filepath.Join(conf.DeviceInfoDir, "cni"), 0o755); err != nil {
		return err
	}
	root, err := openSub(conf, "cni")
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // the file is closed by itself
	if info == nil {
		return remove(root, name)
	}
	temp := unfinished(name)
	if err := remove(root, temp); err != nil {
		return err
	}
	if err := writeNew(root, temp, info); err != nil {
		return errors.Join(err, remove(root, temp))
	}
	if err := root.Rename(temp, name); err != nil {
		return errors.Join(err, remove(root, temp))
	}
	return nil
}

func writeNew(root *os.Root, name string, b []byte) error {
	f, err := brief.OpenIn(root, name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// unfinished is the name under which a file is written before it takes its place. The
// record's lock keeps two calls from writing one file, so it needs no random part and
// can be cleaned up. The name itself may be as long as a file name can be: hence a hash.
func unfinished(name string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(name)) // a hash takes everything
	return fmt.Sprintf(".weft-%x", h.Sum(nil))
}

func remove(root *os.Root, name string) error {
	if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func infoObject(conf *netconf.Conf, sub, name string) string {
	return "device-info file " + filepath.Join(conf.DeviceInfoDir, sub, name)
}

// infoFault is what the file system said, nil for nil.
func infoFault(conf *netconf.Conf, sub, name string, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.State, infoObject(conf, sub, name), "", "%w", hostfiles.Cause(err))
}
