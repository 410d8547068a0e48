// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test deployment`: checks the examples for deployment tools, each with the linter of its tool.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{TaskError, TaskResult, build, provision};

/// Directories below `examples` that ansible-lint checks.
const ANSIBLE: &[&str] = &["ansible", "kolla-ansible", "openstack-ansible"];

/// Files with values for the chart. Together they render every part of it.
const CHART_VALUES: &[&str] = &["ci/lint-values.yaml", "ci/all-values.yaml"];

/// The rendered chart is checked with the schemas of these releases of Kubernetes. From 1.30 on, it has another field
/// for `AppArmor`.
const KUBERNETES: &[&str] = &["1.29", "1.37"];

/// Renders the override of Kolla's image on a template with the same block, and fails if the drop-in is not installed.
const RENDER_OVERRIDE: &str = "
import jinja2, sys
parent = 'FROM base\\n{% block neutron_l3_agent_footer %}{% endblock %}\\nUSER neutron\\n'
templates = jinja2.DictLoader({'parent': parent, 'override': open(sys.argv[1]).read()})
environment = jinja2.Environment(loader=templates, undefined=jinja2.StrictUndefined)
text = environment.get_template('override').render(parent_template='parent')
lines = text.replace('\\\\\\n', ' ').splitlines()
target = '/var/lib/kolla/venv/bin/neutron-keepalived-state-change'
if not any(line.startswith('RUN install ') and target in line for line in lines):
    sys.exit('the rendered Dockerfile does not install the drop-in:\\n' + text)
if lines[-1] != 'USER neutron':
    sys.exit('the block ends another line than its own:\\n' + text)
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

/// Fails with the output of the linter that has found something.
pub fn check() -> TaskResult {
    let examples = build::root().join("examples");
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
            .env("ANSIBLE_HOME", build::target_directory().join("peers/ansible-home"))
            .current_dir(examples),
    )?;
    succeed(
        Command::new(environment.join("python"))
            .args(["-c", RENDER_OVERRIDE])
            .arg(examples.join("kolla-ansible/template-overrides.j2")),
    )
}

/// Lints and renders the chart, and compares the result with the schemas of Kubernetes.
fn helm(chart: &Path) -> TaskResult {
    let program = provision::helm()?;
    let environment = provision::kubernetes_validate()?.join("bin");
    let start_limit = start_limit_seconds()?.to_string();
    let rendered = build::target_directory().join("peers/vipwatch-chart.yaml");
    for values in CHART_VALUES {
        succeed(
            helm_command(&program)
                .args(["lint", "--strict", ".", "--values", values])
                .current_dir(chart),
        )?;
        for version in KUBERNETES {
            let output = helm_command(&program)
                .args(["template", "test", ".", "--values", values, "--kube-version", version])
                .current_dir(chart)
                .output()?;
            if !output.status.success() {
                return Err(failure("helm template", &output));
            }
            build::write(&rendered, &output.stdout)?;
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
    command.arg(format!("HOME={}", build::target_directory().join("peers/helm-home").display()));
    command.arg(program);
    command
}

/// Runs a linter; an error has its whole output.
fn succeed(command: &mut Command) -> TaskResult {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(failure(&format!("{command:?}"), &output))
}

fn failure(act: &str, output: &std::process::Output) -> TaskError {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    TaskError(format!("{act} failed:\n{}", String::from_utf8_lossy(&text).trim_end()))
}
