module github.com/weftnet/weft

go 1.26.0

require (
	github.com/containernetworking/cni v1.3.1 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.23.0 // indirect
)
