#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# systemctl of the lab: starts, stops and shows the keepalived of this host, whose directory is $LAB_HOST.
set -eu
host=$LAB_HOST

runs() {
    [ -s "$host/keepalived.pid" ] && kill -0 "$(cat "$host/keepalived.pid")" 2> /dev/null
}

case $1 in
start)
    runs && exit
    setsid keepalived --dont-fork --log-console --log-detail --use-file="$host/keepalived.conf" \
        --pid="$host/keepalived.pid" --vrrp_pid="$host/vrrp.pid" >> "$host/keepalived.log" 2>&1 < /dev/null &
    until runs; do sleep 0.05; done
    ;;
stop)
    runs || exit 0
    kill "$(cat "$host/keepalived.pid")"
    while runs; do sleep 0.05; done
    ;;
show)
    if runs; then state=active; else state=inactive; fi
    printf '%s\n' Id=keepalived.service LoadState=loaded "ActiveState=$state" UnitFileState=enabled
    ;;
*)
    echo "systemctl: not in the lab: $*" >&2
    exit 1
    ;;
esac
