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

/// Checks in Python; each script says what it needs.
const CHECK_KILL: &str = include_str!("deployment/check_kill.py");
const RENDER_OVERRIDE: &str = include_str!("deployment/render_override.py");
const CHECK_CHART: &str = include_str!("deployment/check_chart.py");

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

/// The playbook in the guide, as a file.
fn guide_playbook() -> Result<PathBuf, TaskError> {
    let guide = std::fs::read_to_string(build::root().join("docs/guides/maintenance.md"))?;
    let block = guide.split_once("\n```yaml\n---\n").and_then(|(_, text)| text.split_once("```\n"));
    let (playbook, _) =
        block.ok_or_else(|| TaskError("the maintenance guide has no playbook".to_owned()))?;
    let path = empty_directory("guide")?.join("reboot.yml");
    build::write(&path, format!("---\n{playbook}").as_bytes())?;
    Ok(path)
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
            .arg(guide_playbook()?)
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
                    .args(["-c", CHECK_CHART])
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
