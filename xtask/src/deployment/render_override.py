# SPDX-License-Identifier: Apache-2.0
# Renders the override of Kolla's image on a template with the same block, runs its command below an empty directory, with
# and without the files for Neutron 16 and 17, and fails if it does not install them. The arguments are the override and the
# directory. It needs root, for the owners of the files.
import jinja2, os, subprocess, sys
parent = 'FROM base\n{% block neutron_l3_agent_footer %}{% endblock %}\nUSER neutron\n'
templates = jinja2.DictLoader({'parent': parent, 'override': open(sys.argv[1]).read()})
environment = jinja2.Environment(loader=templates, undefined=jinja2.StrictUndefined)
text = environment.get_template('override').render(parent_template='parent')
lines = text.replace('\\\n', ' ').splitlines()
if lines[-1] != 'USER neutron':
    sys.exit('the block ends another line than its own:\n' + text)
commands = [line.removeprefix('RUN ') for line in lines if line.startswith('RUN ')]
name, kill = 'neutron-keepalived-state-change', 'neutron-keepalived-state-change-monitor-kill'
program = {'var/lib/kolla/venv/bin/' + name: 0o755}
legacy = {
    'etc/neutron/rootwrap.d/vipwatch.filters': 0o644,
    'etc/neutron/' + name + '.conf': 0o644,
    'etc/neutron/kill_scripts/' + kill: 0o755,
}
for additions, wanted in [
    ([name], program),
    ([name, name + '.conf', kill, 'vipwatch.filters'], program | legacy),
]:
    root = os.path.join(sys.argv[2], str(len(additions)))
    for directory in ['additions', 'etc/neutron', 'var/lib/kolla/venv/bin']:
        os.makedirs(os.path.join(root, directory))
    for addition in additions:
        open(os.path.join(root, 'additions', addition), 'w').close()
    for command in commands:
        subprocess.run(['sh', '-ec', command.replace(' /', ' ' + root + '/')], check=True)
    found = {}
    for directory, _, files in os.walk(root):
        for path in [os.path.join(directory, file) for file in files]:
            if not os.path.islink(path):
                found[os.path.relpath(path, root)] = os.stat(path).st_mode & 0o777
    if found != wanted:
        sys.exit('the image has %s instead of %s' % (found, wanted))
    link = os.path.join(root, 'var/lib/kolla/venv/bin', kill)
    if os.path.isfile(link) != (kill in additions):
        sys.exit('the directory in exec_dirs has a wrong kill script: ' + link)
