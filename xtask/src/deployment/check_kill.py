# SPDX-License-Identifier: Apache-2.0
# Starts a program under the path of the drop-in, and fails if rootwrap does not let the agent end it, or lets it end a
# program with another name. The arguments are a filter or a file with values for OpenStack-Helm, the path, and an empty
# directory, which becomes the root directory for the check. It needs a mount namespace of its own.
import os, shutil, subprocess, sys, yaml
from oslo_rootwrap import wrapper
source, program, root = sys.argv[1:]
text = open(source).read()
if source.endswith('.yaml'):
    text = yaml.safe_load(text)['conf']['rootwrap_filters']['vipwatch']['content']
os.mkdir(root + '/filters')
with open(root + '/filters/vipwatch.filters', 'w') as file:
    file.write(text)
filters = wrapper.load_filters([root + '/filters'])
def start(path):
    os.makedirs(root + os.path.dirname(path), exist_ok=True)
    shutil.copy('/bin/sleep', root + path)
    return subprocess.Popen([root + path, 'infinity'])
processes = [start(program), start(program + '-other')]
try:
    os.mkdir(root + '/proc')
    subprocess.run(['mount', '--rbind', '/proc', root + '/proc'], check=True)
    # From now on, the links in /proc have the paths that the agent sees.
    os.chroot(root)
    def is_allowed(process, signal):
        return any(item.match(['kill', signal, str(process.pid)]) for item in filters)
    for signal in ['-15', '-9']:
        if not is_allowed(processes[0], signal):
            sys.exit('%s does not let the agent send %s to %s' % (source, signal, program))
    if is_allowed(processes[0], '-1') or is_allowed(processes[1], '-15'):
        sys.exit(source + ' lets the agent end other programs, or send other signals')
finally:
    for process in processes:
        process.kill()
        process.wait()
