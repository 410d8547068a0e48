# SPDX-License-Identifier: Apache-2.0
# Fails if the startup probe of the rendered chart ends the node earlier than systemd would, if the configuration is readable
# for every user of the cluster, or if a container may use every system call. The arguments are the rendered chart and
# the time in seconds.
import sys, yaml
chart, wanted = sys.argv[1], int(sys.argv[2])
items = [item for item in yaml.safe_load_all(open(chart)) if item]
if any(item['kind'] == 'ConfigMap' for item in items):
    sys.exit('the configuration may contain credentials: it must be in a Secret, not in a ConfigMap')
sets = [item for item in items if item['kind'] == 'DaemonSet']
if len(sets) != 1:
    sys.exit('the chart has %d DaemonSets instead of one' % len(sets))
for container in sets[0]['spec']['template']['spec']['containers']:
    if container['securityContext'].get('seccompProfile') != {'type': 'RuntimeDefault'}:
        sys.exit('the container %s has not the seccomp profile RuntimeDefault' % container['name'])
    probe = container.get('startupProbe')
    if probe is None:
        sys.exit('the container %s has no startupProbe' % container['name'])
    seconds = probe['periodSeconds'] * probe['failureThreshold']
    if seconds < wanted:
        sys.exit('the startupProbe ends the node after %d s, systemd after %d s' % (seconds, wanted))
    if probe['exec'] != container['livenessProbe']['exec']:
        sys.exit('the startupProbe and the livenessProbe run different commands')
