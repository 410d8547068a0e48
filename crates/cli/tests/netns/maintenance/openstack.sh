#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `openstack` of the lab, with the rules of Neutron's server and agent. `bindings/AGENT/ROUTER` says that the router is on
# the agent; a file `disabled/AGENT` says that the agent is disabled, and `down/ROUTER` that the router is.
# A file in `accidents` lets something happen once: `list`, `delete-ROUTER`, `refuse-remove-ROUTER`, `refuse-add-ROUTER`.
set -eu
cd "$MAINTENANCE_LAB/server"
echo "$*" >> calls

accident() {
    [ -e "accidents/$1" ] && rm "accidents/$1"
}

# The client ignores the answer to `add router` and `remove router`.
refuse() {
    echo "$1" >&2
    exit 0
}

on_host() {
    ssh -n "${1#agent-}" "router $2 $3"
}

# The server returns no routers for a disabled agent, and the agent stops those that it has. It does not run disabled routers.
synchronise() {
    for binding in "bindings/$1"/*; do
        [ -e "$binding" ] || continue
        router=${binding##*/}
        if [ -e "disabled/$1" ]; then on_host "$1" stop "$router"; continue; fi
        [ -e "down/$router" ] || on_host "$1" start "$router"
    done
}

# An agent that synchronises gets routers with fewer agents than max_l3_agents_per_router, except those that wait for `add`.
schedule() {
    while read -r router; do
        set -- "$1" bindings/*/"$router"
        [ ! -e "accidents/refuse-add-$router" ] || continue
        if [ ! -e "$2" ] || [ $# -lt 4 ]; then touch "bindings/$1/$router"; fi
    done < routers
}

# All agents stop a deleted router at the same time.
delete() {
    for binding in bindings/*/"$1"; do
        rm "$binding"
        agent=${binding%/*}
        on_host "${agent##*/}" stop "$1" &
    done
    wait
    grep -vFx "$1" routers > remaining
    mv remaining routers
}

check_exists() {
    grep -qFx "$1" routers || { echo "No Router found for $1" >&2; exit 1; }
}

# Prints the routers in standard input. The arguments are those after `router list`.
list() {
    while read -r router; do
        case "$*" in *"--enable "*) [ ! -e "down/$router" ] || continue ;; esac
        case "$*" in *"-c HA") echo "$router True" ;; *) echo "$router" ;; esac
    done
}

case "$*" in
"router list "*)
    if accident list; then
        echo "Unable to establish connection to the server" >&2
        exit 1
    fi
    ;;
esac

case "$*" in
"network agent list --agent-type l3 --host "*" -f value -c ID")
    if [ -d "bindings/agent-$7" ]; then echo "agent-$7"; fi
    ;;
"router list --agent agent-"*" -f value -c ID" | "router list --agent agent-"*" -f value -c ID -c HA")
    for binding in "bindings/$4"/*; do
        if [ -e "$binding" ]; then echo "${binding##*/}"; fi
    done | list "$@"
    ;;
"router list -f value -c ID" | "router list --enable -f value -c ID")
    list "$@" < routers
    ;;
"network agent remove router --l3 "*)
    if accident "delete-$7"; then delete "$7"; fi
    check_exists "$7"
    if accident "refuse-remove-$7"; then refuse "The server is busy."; fi
    [ -e "bindings/$6/$7" ] || refuse "The router $7 is not hosted by the L3 agent $6."
    rm "bindings/$6/$7"
    on_host "$6" stop "$7"
    ;;
"network agent add router --l3 "*)
    check_exists "$7"
    if accident "refuse-add-$7"; then refuse "The server is busy."; fi
    [ ! -e "disabled/$6" ] || refuse "Agent $6 is not a L3 Agent or has been disabled."
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
