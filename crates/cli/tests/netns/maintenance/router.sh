#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What Neutron's L3 agent does with an HA router of this host: `router start ID` and `router stop ID`.
set -eu
host=$LAB_HOST
id=$2
netns=qrouter-$id
number=$((0x${id##*-}))
directory=$host/neutron/ha_confs
pid_file=$directory/$id.pid

case $1 in
start)
    [ ! -e "/run/netns/$netns" ] || exit 0
    mkdir -p "$directory/$id"
    {
        echo "vrrp_instance VR_$number {"
        echo "    state BACKUP"
        echo "    interface ha-$number"
        echo "    virtual_router_id $number"
        echo "    priority 50"
        echo "    nopreempt"
        echo "    advert_int 1"
        echo "    virtual_ipaddress {"
        echo "        169.254.0.$number/24 dev ha-$number"
        echo "    }"
        echo "}"
    } > "$directory/$id/keepalived.conf"
    ip netns add "$netns"
    ip link add link eth0 name "ha-$number" netns "$netns" type macvlan mode bridge
    ip -n "$netns" address add "169.254.20$(cat "$host/number").$number/18" dev "ha-$number"
    ip -n "$netns" link set lo up
    ip -n "$netns" link set "ha-$number" up
    setsid ip netns exec "$netns" keepalived --dont-fork --vrrp --log-console --log-detail \
        --use-file="$directory/$id/keepalived.conf" --pid="$pid_file" --vrrp_pid="$pid_file-vrrp" \
        >> "$host/keepalived.log" 2>&1 < /dev/null &
    until [ -s "$pid_file-vrrp" ]; do sleep 0.05; done
    ;;
stop)
    [ -e "/run/netns/$netns" ] || exit 0
    kill "$(cat "$pid_file")"
    while [ -e "$pid_file" ]; do sleep 0.05; done
    ip netns del "$netns"
    rm -rf "${directory:?}/$id"
    ;;
esac
