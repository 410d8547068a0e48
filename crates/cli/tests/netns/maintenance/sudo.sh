#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sudo of the lab, whose user is root already: skips the options of Ansible, and runs the command.
set -eu
while [ $# -gt 0 ]; do
    case $1 in
    -[pu]) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
exec "$@"
