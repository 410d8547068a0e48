#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ssh of the lab: runs the command in the namespaces of the host. $MAINTENANCE_LAB is the directory of the lab.
set -eu
while [ $# -gt 0 ]; do
    case $1 in
    -[oFilp]) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || exit 0
export LAB_HOST="$MAINTENANCE_LAB/$1"
pid=$(cat "$LAB_HOST/pid")
shift
exec nsenter --target "$pid" --net --mount --pid -- /bin/sh -c "$*"
