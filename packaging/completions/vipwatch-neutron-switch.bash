# SPDX-License-Identifier: Apache-2.0
# Completion of vipwatch-neutron-switch for bash.
# shellcheck shell=bash

_vipwatch_neutron_switch() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local commands='status to-vipwatch to-neutron'
    local options='--router --again --dry-run --json --without-agent --timeout --state-path --neutron-config --program
        --log --records --help --version'
    COMPREPLY=()
    case $before in
    --router)
        # The directories of the routers have their ids.
        mapfile -t COMPREPLY < <(compgen -W "$(ls /var/lib/neutron/ha_confs 2>/dev/null)" -- "$word")
        return
        ;;
    --timeout) return ;;
    --state-path | --neutron-config | --records)
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
        return
        ;;
    --program | --log)
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
    fi
}

complete -F _vipwatch_neutron_switch vipwatch-neutron-switch
