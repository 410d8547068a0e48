// SPDX-License-Identifier: Apache-2.0
//! The units under a real systemd: rights, status text, reload, signals, watchdog, and namespaces that appear later.

use std::time::Instant;

use vipwatch_packages::{Machine, Root, suite};

/// The capabilities of vipwatch-node.service as the kernel shows them: `CHOWN`, `DAC_OVERRIDE`, `NET_BROADCAST`,
/// `NET_ADMIN`, `NET_RAW`, `SYS_PTRACE`, `SYS_ADMIN`.
const NODE_CAPABILITIES: &str = "0000000000283803";

const UNITS: [&str; 6] = [
    "vipwatch-node.service",
    "vipwatch-receiver.service",
    "vipwatch-receiver.socket",
    "vipwatch-drain.service",
    "vipwatch-hook-runner.service",
    "vipwatch-hook-runner.socket",
];

fn installed() -> Machine {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine
}

fn configure(machine: &Machine, text: &str) {
    machine.write("/etc/vipwatch/vipwatch.toml", text);
}

fn main_pid(machine: &Machine, unit: &str) -> String {
    machine.succeed(&format!("systemctl show --property MainPID --value {unit}"))
}

#[test]
fn systemd_accepts_every_line_of_the_units_and_calls_them_little_exposed() {
    let machine = installed();
    for unit in UNITS {
        let output = machine.run(&format!("systemd-analyze verify --man=no {unit} 2>&1"));
        let of_unit: Vec<&str> =
            output.stdout.lines().filter(|line| line.contains("vipwatch")).collect();
        assert!(output.is_ok() && of_unit.is_empty(), "{unit}: {}", output.text());
    }
    // Before the units had a user and filters of their own, the node had 6.8.
    for (unit, limit) in [
        ("vipwatch-node", 3.3),
        ("vipwatch-receiver", 2.6),
        ("vipwatch-drain", 0.7),
        // Hooks are programs of the operator: the unit must not refuse what they do.
        ("vipwatch-hook-runner", 6.8),
    ] {
        let text = machine.succeed(&format!("systemd-analyze security --no-pager {unit}.service"));
        let last = text.lines().last().unwrap_or_default();
        let mut words = last.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let score = words.next_back().unwrap_or_else(|| panic!("no score: {last}"));
        assert!(score <= limit, "{last}");
    }
}

#[test]
fn the_node_runs_as_its_own_user_with_the_capabilities_of_the_unit_and_no_more() {
    let machine = installed();
    let pid = main_pid(&machine, "vipwatch-node");
    let status = machine.succeed(&format!("cat /proc/{pid}/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let user = machine.succeed("id --user vipwatch");
    assert_eq!(field("Uid"), [user.as_str(); 4].join("\t"));
    assert_eq!(field("CapEff"), NODE_CAPABILITIES);
    assert_eq!(field("CapBnd"), NODE_CAPABILITIES);
    assert_eq!(field("CapAmb"), "0000000000000000", "a program that the node starts inherits none");
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    machine.succeed("vipwatch status && setpriv --reuid vipwatch --clear-groups vipwatch version");
    let refused = machine.run("setpriv --reuid 65534 --regid 65534 --clear-groups vipwatch status");
    assert_eq!(refused.code, Some(3), "{refused:?}");
}

#[test]
fn a_node_that_only_observes_runs_with_the_fewer_rights_of_the_example() {
    let machine = installed();
    configure(
        &machine,
        "[find]\nprocesses = false\n[[instance]]\nid = \"database\"\nnetns = \"blue\"\nlink = \"eth0\"\n\
         addresses = [\"192.0.2.10/24\"]\n",
    );
    machine.succeed(
        "ip netns add blue && ip -n blue link add eth0 type veth peer name other
         mkdir -p /etc/systemd/system/vipwatch-node.service.d
         cp /usr/share/doc/vipwatch/examples/fewer-rights.conf /etc/systemd/system/vipwatch-node.service.d/
         systemctl daemon-reload && systemctl restart vipwatch-node.service
         ip -n blue address add 192.0.2.10/24 dev eth0",
    );
    machine.wait_until("the role", "vipwatch status --role primary -o name | grep database");
    let pid = main_pid(&machine, "vipwatch-node");
    let capabilities = machine.succeed(&format!("grep CapEff /proc/{pid}/status"));
    assert!(capabilities.ends_with("0000000000203804"), "{capabilities}");
}

#[test]
fn a_reload_by_systemctl_succeeds_or_fails_with_the_errors_of_the_configuration() {
    let machine = installed();
    configure(&machine, "[node]\naudit_every = \"1h\"\n");
    machine.succeed("systemctl reload vipwatch-node.service");
    let setting = || machine.succeed("vipwatch config show -o json | grep audit_every");
    assert!(setting().contains("1h"));
    configure(&machine, "[node]\nsokcet = 1\n");
    let failed = machine.run("systemctl reload vipwatch-node.service");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let log = machine.succeed("journalctl --unit vipwatch-node.service --output cat");
    assert!(log.contains("vipwatch.toml:2: there is no key sokcet in node"), "{log}");
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    assert!(setting().contains("1h"), "the earlier settings stay in force");
    configure(&machine, "");
    machine.succeed("systemctl reload vipwatch-node.service");
}

#[test]
fn systemctl_status_has_counts_and_the_signals_write_to_the_journal() {
    let machine = installed();
    machine.succeed(
        "ip netns add blue && ip -n blue link add eth0 type veth peer name other
         ip -n blue address add 192.0.2.10/24 dev eth0",
    );
    let instance = "[[instance]]\nid = \"database\"\nnetns = \"blue\"\nlink = \"eth0\"\naddresses = [\"192.0.2.10/24\"]\n";
    configure(&machine, instance);
    machine.succeed("systemctl reload vipwatch-node.service");
    machine.wait_until(
        "the status text",
        "systemctl show --property StatusText --value vipwatch-node.service | grep '^1 instance: primary; '",
    );
    machine.succeed("systemctl kill --kill-who main --signal SIGUSR1 vipwatch-node.service");
    machine.wait_until(
        "the state in the journal",
        "journalctl --unit vipwatch-node.service --output cat | grep 'state: instance database: primary since'",
    );
    machine.succeed("systemctl kill --kill-who main --signal SIGUSR2 vipwatch-node.service");
    machine.wait_until(
        "debug messages",
        "journalctl --unit vipwatch-node.service --output cat | grep 'debug messages are logged'",
    );
}

#[test]
fn the_node_serves_a_router_of_another_user_with_state_file_agent_and_announcement() {
    let machine = installed();
    machine.succeed(
        "useradd --system neutron
         id=11111111-2222-3333-4444-555555555555
         mkdir -p /var/lib/neutron/ha_confs/$id
         ip netns add qrouter-$id && ip netns add other
         ip link add ha-1 netns qrouter-$id type veth peer name ha-1 netns other
         for name in qrouter-$id other; do ip -n $name link set lo up; ip -n $name link set ha-1 up; done
         ip -n qrouter-$id address add 169.254.192.1/18 dev ha-1
         ip -n other address add 169.254.192.2/18 dev ha-1
         for priority in 50 100; do
             printf 'vrrp_instance VR_1 {\\n state BACKUP\\n interface ha-1\\n virtual_router_id 1\\n priority %s\\n advert_int 0.1\\n virtual_ipaddress {\\n 169.254.0.1/24 dev ha-1\\n }\\n}\\n' $priority > /srv/$priority.conf
         done
         install --mode 600 /srv/50.conf /var/lib/neutron/ha_confs/$id/keepalived.conf
         chown --recursive neutron: /var/lib/neutron && chown root: /var/lib/neutron/ha_confs/$id/keepalived.conf",
    );
    configure(
        &machine,
        "[[notify]]\norigin = [\"neutron\"]\nstate_file = \"/var/lib/neutron/ha_confs/{id}\"\n\
         agent = \"/var/lib/neutron/keepalived-state-change\"\nannounce = true\n",
    );
    machine.succeed(
        "systemd-run --quiet --unit agent --uid neutron --property StandardError=file:/run/agent.log \
         --property StandardOutput=file:/run/agent.log /usr/bin/vipwatch simulate-agent threaded --state-path /var/lib/neutron",
    );
    // The unit makes /var/lib/neutron writable only if it exists when the node starts.
    machine.succeed("systemctl restart vipwatch-node.service");
    let state = "/var/lib/neutron/ha_confs/11111111-2222-3333-4444-555555555555/state";
    let becomes = |role: &str| {
        machine.wait_until(role, &format!("grep -x {role} {state}"));
        machine.wait_until("the agent", &format!("tail -n 1 /run/agent.log | grep {role}"));
    };
    machine.succeed(
        "ip netns exec qrouter-11111111-2222-3333-4444-555555555555 keepalived --vrrp --pid /run/k1 --vrrp_pid /run/k1v \
         --use-file /var/lib/neutron/ha_confs/11111111-2222-3333-4444-555555555555/keepalived.conf",
    );
    becomes("primary");
    machine.succeed("ip netns exec other keepalived --vrrp --pid /run/k2 --vrrp_pid /run/k2v --use-file /srv/100.conf");
    becomes("backup");
    assert_eq!(machine.succeed(&format!("stat --format %U:%G:%a {state}")), "neutron:neutron:644");
    let refused = "journalctl --unit vipwatch-node.service --output cat | grep -i -e 'not permitted' -e 'denied'";
    assert_eq!(machine.run(refused).stdout, "", "the unit refuses nothing that the node does");
}

/// Stops one thread with ptrace, as a thread that hangs in the kernel, until the thread ends. The kernel reports the end of
/// a traced thread to this process first.
const STOP_THREAD: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
thread = int(sys.argv[1])
assert libc.ptrace(0x4206, thread, 0, 0) == 0, ctypes.get_errno()
assert libc.ptrace(0x4207, thread, 0, 0) == 0, ctypes.get_errno()
while os.WIFSTOPPED(os.waitpid(thread, 0x40000000)[1]):
    pass
";

#[test]
fn systemd_restarts_a_node_whose_main_loop_or_a_thread_is_stuck() {
    let machine = installed();
    machine.write("/srv/stop.py", STOP_THREAD);
    machine.write(
        "/etc/systemd/system/vipwatch-node.service.d/watchdog.conf",
        "[Service]\nWatchdogSec=5\nLimitCORE=0\n",
    );
    machine.succeed("systemctl daemon-reload && systemctl restart vipwatch-node.service");
    for thread in ["vipwatch", "audit"] {
        let pid = main_pid(&machine, "vipwatch-node");
        let id = machine.succeed(&format!(
            "grep --files-with-matches --line-regexp {thread} /proc/{pid}/task/*/comm | head -n 1 | cut -d/ -f5"
        ));
        machine.succeed(&format!("systemd-run --quiet --collect python3 /srv/stop.py {id}"));
        machine.wait_until(
            "the restart by the watchdog",
            &format!(
                "systemctl is-active --quiet vipwatch-node.service
                 test $(systemctl show --property MainPID --value vipwatch-node.service) -ne {pid}"
            ),
        );
    }
    let log = machine.succeed("journalctl --unit vipwatch-node.service --output cat");
    // A machine that is busy for seconds adds further ones.
    assert!(log.matches("Watchdog timeout").count() >= 2, "{log}");
    assert!(log.contains("a thread makes no progress"), "{log}");
}

#[test]
fn the_node_sees_a_thousand_namespaces_that_are_created_after_its_start() {
    let machine = installed();
    let pid = main_pid(&machine, "vipwatch-node");
    machine.succeed(
        "for i in $(seq 1000); do
             printf '[[instance]]\\nid = \"i%s\"\\nnetns = \"n%s\"\\nlink = \"lo\"\\naddresses = [\"192.0.2.1/24\"]\\n' $i $i
         done > /etc/vipwatch/vipwatch.toml
         systemctl reload vipwatch-node.service",
    );
    machine.succeed(
        "for i in $(seq 1000); do echo netns add n$i; done | ip -batch -
         for i in $(seq 1000); do ip -n n$i link set lo up; ip -n n$i address add 192.0.2.1/24 dev lo; done",
    );
    let begin = Instant::now();
    machine.wait_until(
        "a thousand primaries",
        "test $(vipwatch status --role primary -o name | wc -l) -eq 1000",
    );
    println!("seen {:?} after the last namespace was ready", begin.elapsed());
    assert_eq!(main_pid(&machine, "vipwatch-node"), pid, "the same process");
    let mounts = machine.succeed(&format!("grep -c ' /run/netns/n' /proc/{pid}/mountinfo"));
    assert!(
        mounts.parse::<u32>().unwrap() >= 1000,
        "the private view of the file system has them: {mounts}"
    );
    let begin = Instant::now();
    machine.succeed("systemctl reload vipwatch-node.service");
    println!("reload in {:?}", begin.elapsed());
    let begin = Instant::now();
    machine.succeed("systemctl restart vipwatch-node.service");
    println!("restart in {:?}", begin.elapsed());
}

#[test]
fn the_receiver_runs_with_few_rights_and_sets_ipv6_parameters_of_a_router() {
    let machine = installed();
    machine.succeed(
        "useradd --system neutron && mkdir -p /var/lib/neutron/ha_confs && chown --recursive neutron: /var/lib/neutron
         ip netns add qrouter-r1 && ip -n qrouter-r1 link add qg-1 type veth peer name other
         ip -n qrouter-r1 link set qg-1 up",
    );
    let settings = "[receiver]\nowner = \"neutron\"\ngroup = \"neutron\"\nallow = [\"neutron\"]\ninterval = \"0s\"\nipv6_params = true\n";
    configure(&machine, settings);
    machine.succeed(
        "systemctl stop vipwatch-node.service && systemctl start vipwatch-receiver.service",
    );
    let report = "import http.client, socket
connection = http.client.HTTPConnection('localhost')
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect('/var/lib/neutron/keepalived-state-change')
connection.request('POST', '/', headers={'X-Neutron-Router-Id': 'r1', 'X-Neutron-State': 'primary', 'Content-Length': '0'})
assert connection.getresponse().status == 200
";
    machine.write("/srv/report.py", report);
    let report = "setpriv --reuid neutron --regid neutron --clear-groups python3 /srv/report.py";
    machine.succeed(report);
    machine.wait_until(
        "forwarding in the namespace",
        "ip netns exec qrouter-r1 grep 1 /proc/sys/net/ipv6/conf/all/forwarding",
    );
    machine.succeed("systemctl reload vipwatch-receiver.service");
    // With the socket unit, systemd gives the socket its owner.
    machine.succeed(
        "systemctl stop vipwatch-receiver.service
         mkdir -p /etc/systemd/system/vipwatch-receiver.socket.d
         printf '[Socket]\\nSocketUser=neutron\\nSocketMode=0600\\n' > /etc/systemd/system/vipwatch-receiver.socket.d/neutron.conf
         systemctl daemon-reload && systemctl start vipwatch-receiver.socket
         systemctl start vipwatch-receiver.service",
    );
    machine.succeed(report);
    let log = machine.succeed("journalctl --unit vipwatch-receiver.service --output cat");
    assert!(log.contains("the socket of the service manager is not as in [receiver]"), "{log}");
    assert!(log.contains("mode 600 and not 660"), "{log}");
    configure(&machine, "[receiver]\nintervall = \"0s\"\n");
    assert_eq!(machine.run("systemctl reload vipwatch-receiver.service").code, Some(1));
    let text =
        machine.succeed("systemctl show --property StatusText --value vipwatch-receiver.service");
    assert!(text.contains("router"), "{text}");
}

#[test]
fn the_drain_unit_prints_its_answer_at_shutdown_without_rights() {
    let machine = installed();
    machine
        .succeed("systemctl start vipwatch-drain.service && systemctl stop vipwatch-drain.service");
    let log = machine.succeed("journalctl --unit vipwatch-drain.service --output cat");
    assert!(log.contains(": drained"), "{log}");
}
