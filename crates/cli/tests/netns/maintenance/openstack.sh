#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `openstack` of the lab, with the rules of Neutron's server and agent. `bindings/AGENT/ROUTER` says that the router is on
# the agent; a file `disabled/AGENT` says that the agent is disabled.
set -eu
cd "$MAINTENANCE_LAB/server"
echo "$*" >> calls

on_host() {
    ssh -n "${1#agent-}" "router $2 $3"
}

# The server returns no routers for a disabled agent, and the agent stops those that it has.
synchronise() {
    for router in $(ls "bindings/$1"); do
        if [ -e "disabled/$1" ]; then on_host "$1" stop "$router"; else on_host "$1" start "$router"; fi
    done
}

# An agent that synchronises gets routers with fewer agents than max_l3_agents_per_router.
schedule() {
    while read -r router; do
        set -- "$1" bindings/*/"$router"
        if [ ! -e "$2" ] || [ $# -lt 4 ]; then touch "bindings/$1/$router"; fi
    done < routers
}

case "$*" in
"network agent list --agent-type l3 --host "*" -f value -c ID")
    echo "agent-$7"
    ;;
"router list --agent "*" -f value -c ID -c HA")
    for router in $(ls "bindings/$4"); do echo "$router True"; done
    ;;
"network agent remove router --l3 "*)
    [ -e "bindings/$6/$7" ] || { echo "The router $7 is not hosted by the L3 agent $6." >&2; exit 1; }
    rm "bindings/$6/$7"
    on_host "$6" stop "$7"
    ;;
"network agent add router --l3 "*)
    [ ! -e "disabled/$6" ] || { echo "Agent $6 is not a L3 Agent or has been disabled." >&2; exit 1; }
    touch "bindings/$6/$7"
    on_host "$6" start "$7"
    ;;
"network agent set --disable "*)
    touch "disabled/$5"
    synchronise "$5"
    ;;
"network agent set --enable "*)
    rm -f "disabled/$5"
    schedule "$5"
    synchronise "$5"
    ;;
*)
    echo "openstack: not in the lab: $*" >&2
    exit 1
    ;;
esac
