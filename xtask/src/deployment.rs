// SPDX-License-Identifier: Apache-2.0
//! The suite `deployment`: checks the examples for deployment tools, each with the linter of its tool.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{TaskError, TaskResult, build, process, provision};

/// Directories below `examples` that ansible-lint checks.
const ANSIBLE: &[&str] = &["ansible", "kolla-ansible", "openstack-ansible"];

/// Files with values for the chart. Together they render every part of it.
const CHART_VALUES: &[&str] = &["ci/lint-values.yaml", "ci/all-values.yaml"];

/// The rendered chart is checked with the schemas of these releases of Kubernetes. From 1.30 on, it has another field
/// for `AppArmor`.
const KUBERNETES: &[&str] = &["1.29", "1.37"];

/// Files of the role and the files below `packaging` of which they are copies, so that the role can be copied alone.
const COPIES: &[(&str, &str)] = &[
    ("vipwatch.filters", "rootwrap/vipwatch.filters"),
    (KILL_SCRIPT, "kill-scripts/neutron-keepalived-state-change-monitor-kill"),
];

const KILL_SCRIPT: &str = "neutron-keepalived-state-change-monitor-kill";

/// The drop-in as the agents of Neutron 16 and 17 see it, for each example: the file with the filter, below `examples`, and the
/// path of the program.
const KILLED: &[(&str, &str)] = &[
    (
        "ansible/roles/vipwatch/files/vipwatch.filters",
        "/usr/lib/vipwatch/neutron-keepalived-state-change",
    ),
    (
        "ansible/roles/vipwatch/files/vipwatch.filters",
        "/var/lib/kolla/venv/bin/neutron-keepalived-state-change",
    ),
    ("helm/openstack-helm-neutron-16-17.yaml", "/usr/sbin/neutron-keepalived-state-change"),
];

/// Starts a program under the path of the drop-in, and fails if rootwrap does not let the agent end it, or lets it end a
/// program with another name. The arguments are a filter or a file with values for OpenStack-Helm, the path, and an empty
/// directory, which becomes the root directory for the check. It needs a mount namespace of its own.
const CHECK_KILL: &str = "
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
";

/// Renders the override of Kolla's image on a template with the same block, runs its command below an empty directory, with
/// and without the files for Neutron 16 and 17, and fails if it does not install them. The arguments are the override and the
/// directory. It needs root, for the owners of the files.
const RENDER_OVERRIDE: &str = "
import jinja2, os, subprocess, sys
parent = 'FROM base\\n{% block neutron_l3_agent_footer %}{% endblock %}\\nUSER neutron\\n'
templates = jinja2.DictLoader({'parent': parent, 'override': open(sys.argv[1]).read()})
environment = jinja2.Environment(loader=templates, undefined=jinja2.StrictUndefined)
text = environment.get_template('override').render(parent_template='parent')
lines = text.replace('\\\\\\n', ' ').splitlines()
if lines[-1] != 'USER neutron':
    sys.exit('the block ends another line than its own:\\n' + text)
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
";

/// Fails if the startup probe of the rendered chart ends the node earlier than systemd would. The arguments are the rendered
/// chart and the time in seconds.
const CHECK_STARTUP: &str = "
import sys, yaml
chart, wanted = sys.argv[1], int(sys.argv[2])
sets = [item for item in yaml.safe_load_all(open(chart)) if item and item['kind'] == 'DaemonSet']
if len(sets) != 1:
    sys.exit('the chart has %d DaemonSets instead of one' % len(sets))
for container in sets[0]['spec']['template']['spec']['containers']:
    probe = container.get('startupProbe')
    if probe is None:
        sys.exit('the container %s has no startupProbe' % container['name'])
    seconds = probe['periodSeconds'] * probe['failureThreshold']
    if seconds < wanted:
        sys.exit('the startupProbe ends the node after %d s, systemd after %d s' % (seconds, wanted))
    if probe['exec'] != container['livenessProbe']['exec']:
        sys.exit('the startupProbe and the livenessProbe run different commands')
";

/// Fetches all linters.
pub fn fetch() -> TaskResult {
    provision::ansible_lint()?;
    provision::neutron("29.0.0")?;
    provision::helm()?;
    provision::kubernetes_validate()?;
    Ok(())
}

/// The directory for the files of the linters.
fn scratch() -> PathBuf {
    build::target_directory().join("deployment")
}

/// Fails with the output of the linter that has found something.
pub fn check() -> TaskResult {
    let examples = build::root().join("examples");
    std::fs::create_dir_all(scratch())?;
    ansible(&examples)?;
    helm(&examples.join("helm/vipwatch"))?;
    println!(
        "deployment: the examples for Ansible, Kolla-Ansible, OpenStack-Ansible and Helm are valid"
    );
    Ok(())
}

/// Checks the role and the playbooks with ansible-lint, and the override of Kolla's image.
fn ansible(examples: &Path) -> TaskResult {
    let environment = provision::ansible_lint()?.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(environment.clone()).chain(std::env::split_paths(&path)),
    )?;
    succeed(
        Command::new(environment.join("ansible-lint"))
            .args(["--nocolor", "--strict", "--offline", "-c", ".ansible-lint"])
            .args(ANSIBLE)
            .env("PATH", path)
            .env("ANSIBLE_ROLES_PATH", examples.join("ansible/roles"))
            .env("ANSIBLE_HOME", scratch().join("ansible-home"))
            .current_dir(examples),
    )?;
    succeed(
        Command::new("unshare")
            .arg("--map-root-user")
            .arg(environment.join("python"))
            .args(["-c", RENDER_OVERRIDE])
            .arg(examples.join("kolla-ansible/template-overrides.j2"))
            .arg(empty_directory("kolla-image")?),
    )?;
    rootwrap(examples)
}

/// Checks the files for Neutron 16 and 17: the role has copies of those in `packaging`, and the filters fit the paths of the
/// drop-in.
fn rootwrap(examples: &Path) -> TaskResult {
    for (copy, original) in COPIES {
        let copy = examples.join("ansible/roles/vipwatch/files").join(copy);
        let original = build::root().join("packaging").join(original);
        if std::fs::read(&copy)? != std::fs::read(&original)? {
            return Err(TaskError(format!(
                "{} differs from {}\n  hint: copy the second file over the first one",
                copy.display(),
                original.display()
            )));
        }
    }
    let python = provision::neutron("29.0.0")?.join("bin/python");
    for (filter, program) in KILLED {
        succeed(
            Command::new("unshare")
                .args(["--map-root-user", "--mount"])
                .arg(&python)
                .args(["-c", CHECK_KILL])
                .arg(examples.join(filter))
                .arg(program)
                .arg(empty_directory("rootwrap-check")?),
        )?;
    }
    Ok(())
}

/// An empty directory for one check.
fn empty_directory(name: &str) -> Result<PathBuf, TaskError> {
    let path = std::path::absolute(scratch())?.join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path)?;
    }
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

/// Lints and renders the chart, and compares the result with the schemas of Kubernetes.
fn helm(chart: &Path) -> TaskResult {
    let program = provision::helm()?;
    let environment = provision::kubernetes_validate()?.join("bin");
    let start_limit = start_limit_seconds()?.to_string();
    let rendered = scratch().join("vipwatch-chart.yaml");
    for values in CHART_VALUES {
        succeed(
            helm_command(&program)
                .args(["lint", "--strict", ".", "--values", values])
                .current_dir(chart),
        )?;
        for version in KUBERNETES {
            let options = ["template", "test", ".", "--values", values, "--kube-version", version];
            let text = process::output(helm_command(&program).args(options).current_dir(chart))?;
            build::write(&rendered, &text)?;
            succeed(
                Command::new(environment.join("kubernetes-validate"))
                    .args(["--strict", "--kubernetes-version", version])
                    .arg(&rendered),
            )?;
            succeed(
                Command::new(environment.join("python"))
                    .args(["-c", CHECK_STARTUP])
                    .arg(&rendered)
                    .arg(&start_limit),
            )?;
        }
    }
    let without_image = helm_command(&program)
        .args(["template", "test", "."])
        .args(["--kube-version", KUBERNETES[0]])
        .current_dir(chart)
        .output()?;
    if without_image.status.success() {
        return Err(TaskError(
            "the chart renders without image.repository; it must refuse".to_owned(),
        ));
    }
    Ok(())
}

/// The time after which systemd ends a node that is not ready, in seconds: `TimeoutStartSec=` of the unit, in minutes there.
fn start_limit_seconds() -> Result<u64, TaskError> {
    let unit = build::root().join("packaging/systemd/vipwatch-node.service");
    let text = std::fs::read_to_string(&unit)?;
    let value = text.lines().find_map(|line| line.strip_prefix("TimeoutStartSec="));
    let minutes = value.and_then(|value| value.strip_suffix("min")?.parse::<u64>().ok());
    minutes
        .map(|minutes| minutes * 60)
        .ok_or_else(|| TaskError(format!("{} has no TimeoutStartSec= in minutes", unit.display())))
}

/// Helm in a network namespace of its own, without the environment of the caller: it needs neither a network nor secrets.
fn helm_command(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "env", "--ignore-environment"]);
    command.arg(format!("HOME={}", scratch().join("helm-home").display()));
    command.arg(program);
    command
}

/// Runs a linter; an error has its whole output.
fn succeed(command: &mut Command) -> TaskResult {
    process::output(command.stdin(Stdio::null())).map(drop)
}
