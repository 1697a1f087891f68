# What a guest does: bring its NICs up, start the agent, and then what it is told, a line at a time,
# through the serial port weft.orders. It answers with status and output, the latter in base64.
ip() { /usr/bin/ip "$@"; } # the shell would take its own
port() {
	for p in /sys/class/virtio-ports/*; do
		[ "$(cat "$p/name")" = "$1" ] && echo "/dev/${p##*/}"
	done
}
agent_start() {
	qemu-ga -m virtio-serial -p "$(port org.qemu.guest_agent.0)" -t /run -d -f /run/qemu-ga.pid
}
agent_stop() {
	kill "$(cat /run/qemu-ga.pid)"
	while [ -e /run/qemu-ga.pid ]; do sleep 0.1; done
}
n=15
for dev in /sys/class/net/eth*; do
	[ -e "$dev" ] || continue
	echo 0 >"/proc/sys/net/ipv6/conf/${dev##*/}/accept_ra" # QEMU offers one
	ip link set "${dev##*/}" up
	ip addr add "10.0.$n.15/24" dev "${dev##*/}"
	n=$((n + 1))
done
agent_start
exec 3<>"$(port weft.orders)"
while :; do
	read -r line <&3 || { sleep 0.2; continue; }
	eval "$line" >/run/out 2>&1
	echo "$? $(base64 -w0 /run/out)" >&3
done
