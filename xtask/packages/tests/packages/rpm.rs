// SPDX-License-Identifier: Apache-2.0
//! The RPMs in a root of their own, that of vipwatch-neutron with a package like Neutron's. The spec files and the scripts are
//! those that are shipped; the programs come from the Debian packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use vipwatch_packages::{Root, directory, suite};
use vipwatch_testkit::run;

/// The name that the agent executes.
const PROGRAM: &str = "usr/bin/neutron-keepalived-state-change";

/// A root with a database of rpm, and the RPMs beside it.
struct RpmRoot {
    root: Root,
    work: PathBuf,
}

impl RpmRoot {
    fn new() -> Self {
        let root = Root::debian(&suite());
        let work = root.path().with_file_name("rpm");
        std::fs::create_dir(&work).unwrap();
        let result = Self { root, work };
        result.rpm(&["--initdb"]);
        result
    }

    /// Builds an RPM from a spec file; `tree` has its files.
    fn build(&self, spec: &Path, tree: &Path, version: &str) -> PathBuf {
        let files = self.work.join("files");
        let list = "cd \"$1\" && find . -type f | sed 's/^\\.\\(.*\\)/\"\\1\"/' > \"$2\"";
        run(Command::new("sh").args(["-ec", list, "sh"]).arg(tree).arg(&files));
        let out = self.work.join("out");
        let mut command = Command::new("rpmbuild");
        command.args(["-bb", "--quiet", "--target", "x86_64-linux"]);
        let name = format!("%%{{NAME}}-{version}.rpm");
        for (key, value) in [
            ("_topdir", self.work.join("build").display().to_string()),
            ("_rpmdir", out.display().to_string()),
            ("_rpmfilename", name),
            ("vipwatch_version", version.to_owned()),
            ("vipwatch_tree", tree.display().to_string()),
            ("vipwatch_files", files.display().to_string()),
            ("debug_package", "%{nil}".to_owned()),
            ("_build_id_links", "none".to_owned()),
            ("__os_install_post", "%{nil}".to_owned()),
        ] {
            command.arg("--define").arg(format!("{key} {value}"));
        }
        run(command.arg(spec));
        let name = spec.file_stem().unwrap().to_string_lossy().into_owned();
        out.join(format!("{name}-{version}.rpm"))
    }

    fn vipwatch(&self, version: &str) -> PathBuf {
        self.build_shipped("vipwatch-neutron", version)
    }

    /// Builds the RPM with this name from the spec file that is shipped.
    fn build_shipped(&self, name: &str, version: &str) -> PathBuf {
        let tree = self.work.join("vipwatch-tree");
        let unpack = "rm -rf \"$1\" && dpkg-deb -x \"$2\"/\"$3\"_*.deb \"$1\"";
        let packages = directory("VIPWATCH_PACKAGES");
        run(Command::new("sh").args(["-ec", unpack, "sh"]).arg(&tree).arg(packages).arg(name));
        let spec =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../packaging/rpm/{name}.spec"));
        self.build(&spec, &tree, version)
    }

    /// A package like Neutron's, with the real script of release 29 and the metadata of this version.
    fn neutron(&self, version: &str) -> PathBuf {
        let script = directory("VIPWATCH_NEUTRON_29").join("bin/neutron-keepalived-state-change");
        let tree = self.work.join(format!("neutron-{version}"));
        let make = "install -D -m 0755 \"$2\" \"$1/usr/bin/neutron-keepalived-state-change\"
            echo \"# $3\" >> \"$1/usr/bin/neutron-keepalived-state-change\"
            info=\"$1/usr/lib/python3.9/site-packages/neutron-$3.dist-info\"
            mkdir -p \"$info\" \"$1/usr/share/neutron/rootwrap\" \"$1/etc/neutron\"
            echo > \"$info/METADATA\"; echo > \"$1/usr/share/neutron/rootwrap/l3.filters\"
            echo > \"$1/etc/neutron/rootwrap.conf\"
            printf 'Name: openstack-neutron\\nVersion: %%{vipwatch_version}\\nRelease: 1\\nSummary: stand-in\\nLicense: x
AutoReqProv: no\\n%%description\\nstand-in\\n%%install\\nmkdir -p %%{buildroot}\\ncp -a %%{vipwatch_tree}/. %%{buildroot}/
%%files -f %%{vipwatch_files}\\n' > \"$4\"";
        let spec = self.work.join("openstack-neutron.spec");
        run(Command::new("sh")
            .args(["-ec", make, "sh"])
            .arg(&tree)
            .arg(script)
            .arg(version)
            .arg(&spec));
        self.build(&spec, &tree, version)
    }

    /// Runs rpm on the root. Debian's rpm knows no packages of the system, so there are no dependencies.
    #[track_caller]
    fn rpm(&self, words: &[&str]) {
        run(Command::new("rpm").arg("--root").arg(self.root.path()).args(words));
    }

    #[track_caller]
    fn change(&self, verb: &str, package: &Path) {
        self.rpm(&[verb, "--nodeps", "--oldpackage", &package.display().to_string()]);
    }

    #[track_caller]
    fn erase(&self, name: &str) {
        self.rpm(&["--erase", "--nodeps", name]);
    }

    /// Checks that vipwatch's program is in place and that Neutron's file of this version is kept.
    #[track_caller]
    fn expect_in_place(&self, version: &str, word: &str) {
        let root = self.root.path();
        let link = std::fs::read_link(root.join(PROGRAM)).unwrap();
        assert_eq!(link.to_str(), Some("/usr/lib/vipwatch/neutron-keepalived-state-change"));
        let theirs = std::fs::read_to_string(root.join(format!("{PROGRAM}.neutron"))).unwrap();
        assert_eq!(theirs.lines().last(), Some(&*format!("# {version}")));
        let conf = root.join("etc/neutron/neutron-keepalived-state-change.conf");
        let conf = std::fs::read_to_string(conf).unwrap();
        assert!(conf.contains(&format!("primary_word = {word}")), "{conf}");
    }

    /// Checks that Neutron's program is back, as its package has it.
    #[track_caller]
    fn expect_back(&self) {
        self.rpm(&["--verify", "--nodeps", "openstack-neutron"]);
        let root = self.root.path();
        for path in [
            "usr/bin/neutron-keepalived-state-change.neutron",
            "usr/share/neutron/rootwrap/vipwatch.filters",
            "etc/neutron/neutron-keepalived-state-change.conf",
            "var/lib/vipwatch-neutron",
            "usr/lib/vipwatch",
        ] {
            assert!(!root.join(path).exists(), "/{path} is left");
        }
    }
}

#[test]
fn the_rpm_follows_neutron_through_upgrades_and_its_removal() {
    let root = RpmRoot::new();
    let filters = root.root.path().join("usr/share/neutron/rootwrap/vipwatch.filters");
    root.change("--install", &root.neutron("16.4.2"));
    root.change("--install", &root.vipwatch("0.1.0"));
    root.expect_in_place("16.4.2", "master");
    assert!(filters.exists(), "the agent of Neutron 16 needs the filter");
    root.change("--upgrade", &root.neutron("21.0.0"));
    root.expect_in_place("21.0.0", "primary");
    assert!(!filters.exists());
    root.change("--upgrade", &root.neutron("16.4.3"));
    root.expect_in_place("16.4.3", "master");
    assert!(filters.exists(), "it comes back with a downgrade");
    root.change("--upgrade", &root.neutron("21.0.0"));
    root.change("--upgrade", &root.vipwatch("0.2.0"));
    root.expect_in_place("21.0.0", "primary");
    root.erase("vipwatch-neutron");
    root.expect_back();

    // Neutron is removed and installed again while the package stays.
    root.change("--install", &root.vipwatch("0.2.0"));
    root.erase("openstack-neutron");
    assert!(!root.root.path().join(format!("{PROGRAM}.neutron")).exists());
    root.change("--install", &root.neutron("29.0.0"));
    root.expect_in_place("29.0.0", "primary");
    root.erase("vipwatch-neutron");
    root.expect_back();
}

/// rpm replaces the link of a suspension by the new program, so the link alone does not tell that there was one.
#[test]
fn an_upgrade_of_neutron_by_rpm_keeps_the_suspension() {
    let root = RpmRoot::new();
    let path = root.root.path();
    let expect_suspended = |version: &str| {
        let link = std::fs::read_link(path.join(PROGRAM)).unwrap();
        assert_eq!(link.to_str(), Some("neutron-keepalived-state-change.neutron"));
        let program = std::fs::read_to_string(path.join(PROGRAM)).unwrap();
        assert_eq!(program.lines().last(), Some(&*format!("# {version}")));
    };
    let suspend = || assert!(root.root.run("/usr/lib/vipwatch/neutron-setup suspend").is_ok());
    root.change("--install", &root.neutron("16.4.2"));
    root.change("--install", &root.vipwatch("0.1.0"));
    suspend();
    root.change("--upgrade", &root.neutron("21.0.0"));
    expect_suspended("21.0.0");
    root.change("--upgrade", &root.neutron("16.4.2"));
    expect_suspended("16.4.2");
    root.erase("openstack-neutron");
    root.change("--install", &root.neutron("29.0.0"));
    expect_suspended("29.0.0");
    root.change("--upgrade", &root.vipwatch("0.2.0"));
    root.expect_in_place("29.0.0", "primary");
    suspend();
    root.erase("vipwatch-neutron");
    root.expect_back();
}

#[test]
fn the_rpm_refuses_a_foreign_file_with_the_second_name() {
    let root = RpmRoot::new();
    root.change("--install", &root.neutron("21.0.0"));
    let package = root.vipwatch("0.1.0");
    let mine = root.root.path().join(format!("{PROGRAM}.neutron"));
    let write = format!("printf mine > /{PROGRAM}.neutron");
    assert!(root.root.run(&write).is_ok());
    let mut command = Command::new("rpm");
    command.arg("--root").arg(root.root.path()).args(["--install", "--nodeps"]).arg(&package);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("hint: move the file"), "{text}");
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
    root.rpm(&["--verify", "--nodeps", "openstack-neutron"]);

    std::fs::remove_file(&mine).unwrap();
    root.change("--install", &package);
    root.expect_in_place("21.0.0", "primary");

    // Neutron's program is back, and another file has the second name: neither `configure` nor the removal touches it.
    let back = "/usr/lib/vipwatch/neutron-setup remove rpm 2>&1";
    assert!(root.root.run(back).is_ok());
    assert!(root.root.run(&write).is_ok());
    let outcome = root.root.run("/usr/lib/vipwatch/neutron-setup configure rpm 2>&1");
    assert!(!outcome.is_ok() && outcome.text().contains("hint: move"), "{}", outcome.text());
    root.erase("vipwatch-neutron");
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
    root.rpm(&["--verify", "--nodeps", "openstack-neutron"]);
}

/// rpm has no purge: the command that removes the rest is printed.
#[test]
fn the_rpm_leaves_the_filter_for_running_monitors_and_names_the_command_that_removes_it() {
    let root = RpmRoot::new();
    let path = root.root.path();
    root.change("--install", &root.neutron("16.4.2"));
    root.change("--install", &root.vipwatch("0.1.0"));
    run(Command::new("mount").args(["--rbind", "/proc"]).arg(path.join("proc")));
    // A process that has the program of the package.
    let program = "/usr/lib/vipwatch/neutron-keepalived-state-change";
    assert!(root.root.run(&format!("rm {program} && cp /bin/sleep {program}")).is_ok());
    let mut monitor = Command::new("chroot").arg(path).args([program, "infinity"]).spawn().unwrap();
    let executable = format!("/proc/{}/exe", monitor.id());
    vipwatch_testkit::wait_for("the program", || {
        std::fs::read_link(&executable).ok().filter(|link| link.ends_with(&program[1..]))
    });
    let mut command = Command::new("rpm");
    command.arg("--root").arg(path).args(["--erase", "--nodeps", "vipwatch-neutron"]);
    let output = command.output().unwrap();
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("purge"), "{text}");
    assert!(path.join("usr/share/neutron/rootwrap/vipwatch.filters").exists(), "{text}");
    let hint = "hint: when the monitors have ended, run: ";
    let command = text.lines().find_map(|line| line.trim().strip_prefix(hint));
    let outcome = root.root.run(command.unwrap_or_else(|| panic!("{text}")));
    assert!(outcome.is_ok(), "{}", outcome.text());
    root.expect_back();
}

/// Such a systemd would ignore directives of the units, and start the services with more rights.
#[test]
fn the_rpm_of_vipwatch_refuses_an_old_systemd() {
    let root = RpmRoot::new();
    let package = root.build_shipped("vipwatch", "0.1.0");
    // A package like systemd's, which also stands for the packages that Debian's rpm does not know.
    let systemd = |version: &str| {
        let (spec, tree) = (root.work.join("systemd.spec"), root.work.join("systemd-tree"));
        let make = "mkdir -p \"$2/usr/share/systemd\" && echo > \"$2/usr/share/systemd/stand-in\"
            printf 'Name: systemd\\nVersion: %%{vipwatch_version}\\nRelease: 1\\nSummary: stand-in\\nLicense: x
Provides: /bin/sh\\nAutoReqProv: no\\n%%description\\nstand-in\\n%%install\\nmkdir -p %%{buildroot}
cp -a %%{vipwatch_tree}/. %%{buildroot}/\\n%%files -f %%{vipwatch_files}\\n' > \"$1\"";
        run(Command::new("sh").args(["-ec", make, "sh"]).arg(&spec).arg(&tree));
        root.build(&spec, &tree, version)
    };
    root.change("--install", &systemd("246"));
    let mut command = Command::new("rpm");
    command.arg("--root").arg(root.root.path()).arg("--install").arg(&package);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("systemd < 247 conflicts with"), "{text}");
    root.change("--upgrade", &systemd("247"));
    run(&mut command);
}
