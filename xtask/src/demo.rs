//! `cargo xtask demo`: three machines in throw-away namespaces, real keepalived on each, and
//! `vipwatch node` beside it. A keepalived is stopped or a cable is cut every few seconds; the lines
//! are those of `vipwatch watch`, one for each machine.

mod screen;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns};

use self::screen::Screen;
use crate::{Stop, Task, build, enclosure, provision};

/// How long there is peace.
const REIGN: Duration = Duration::from_secs(6);

/// How often everybody is asked where he stands.
const GLANCE: Duration = Duration::from_millis(500);

/// The machines.
const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// What moves between them: each is at home on another machine.
pub const SERVICES: [(&str, &str, u8); 3] =
    [("web", "192.0.2.80/24", 80), ("db", "192.0.2.54/24", 54), ("mail", "192.0.2.25/24", 25)];

/// Builds, installs keepalived, and goes inside.
pub fn outside(words: &[&str]) -> Task {
    // Ctrl-C is for the inside, which then cleans up; we wait for it.
    let _held = Signals::hold()?;
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    enclosure::probe()?;
    let program = build::vipwatch("demo")?.display().to_string();
    let seconds = match words {
        [] => "",
        ["--seconds", seconds] => seconds,
        other => return Err(Stop(format!("unknown words {other:?}; there is --seconds N"))),
    };
    enclosure::enter(&["demo", &program, seconds], &[])
}

/// One machine.
pub struct DemoNode {
    pub name: &'static str,
    port: String,
    place: NodeFixture,
    keepalived: Option<Keepalived>,
    config: String,
    _node: NodeProcess,
    watcher: Child,
    /// The role of each service here, by what its node says.
    pub roles: Vec<String>,
    pub is_cut: bool,
    netns: TestNetns,
    lab: Lab,
}

/// A line of `vipwatch watch`, and whose.
type Line = (usize, String);

/// Shows it until Ctrl-C, or for as many seconds as asked.
pub fn inside(words: &[&str]) -> Task {
    let [program, seconds] = words else {
        return Err(Stop("the demo is started from outside".to_owned()));
    };
    // ORDER: before any thread starts, so that all of them leave the signals to us.
    let signals = Signals::hold()?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let limit = match (seconds.parse::<u64>(), is_terminal) {
        (Ok(seconds), _) => Some(Duration::from_secs(seconds)),
        // Nobody is there to press Ctrl-C.
        (Err(_), false) => Some(Duration::from_secs(25)),
        (Err(_), true) => None,
    };
    let (sender, lines) = sync_channel(256);
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let machines = (0..NAMES.len())
        .map(|number| DemoNode::start(number, std::path::Path::new(program), &switch, &sender));
    let mut machines: Vec<DemoNode> = machines.collect::<Result<_, Stop>>()?;
    let mut screen = Screen::new(is_terminal);
    show(&mut machines, &switch, &mut screen, &lines, &signals, limit);
    screen.end(&machines);
    Ok(())
}

impl DemoNode {
    fn start(
        number: usize,
        program: &std::path::Path,
        switch: &BridgeSwitch,
        lines: &SyncSender<Line>,
    ) -> Result<Self, Stop> {
        let (lab, name) = (Lab::new(), NAMES[number]);
        let netns = lab.netns(name);
        let port = format!("port-{number}");
        switch.plug(&netns, "eth0", &port);
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", number + 1));
        let config = config(number);
        let place = NodeFixture::new(program, lab.path()).on(&netns);
        let states = lab.path().join("states");
        place.configure(&format!(
            "[[outlet]]\nstate_file = \"{}/{{id}}\"\nannounce = {{ count = 1 }}\n",
            states.display()
        ));
        let keepalived = Some(Keepalived::start_with(&netns, lab.path(), &config));
        let node = place.start();
        let mut watcher = place
            .command()
            .args(["watch", "--socket"])
            .arg(place.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = watcher.stdout.take().ok_or_else(|| Stop("no output".to_owned()))?;
        let sender = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((number, line)).is_err() {
                    return;
                }
            }
        });
        let roles = vec![String::new(); SERVICES.len()];
        Ok(Self {
            name,
            port,
            place,
            keepalived,
            config,
            _node: node,
            watcher,
            roles,
            is_cut: false,
            netns,
            lab,
        })
    }

    /// Asks its node where everything stands.
    fn glance(&mut self) {
        let answer = self.place.ask(&["status", "--format", "json"]);
        let Ok(answer) = serde_json::from_slice::<Value>(&answer.stdout) else { return };
        let instances = answer["instances"].as_array();
        for ((name, _, _), role) in SERVICES.iter().zip(&mut self.roles) {
            let found = instances.into_iter().flatten().find(|one| one["id"] == *name);
            let found = found.and_then(|one| one["role"].as_str());
            found.unwrap_or_default().clone_into(role);
        }
    }

    /// Whether keepalived runs.
    pub fn is_working(&self) -> bool {
        self.keepalived.is_some()
    }
}

impl Drop for DemoNode {
    fn drop(&mut self) {
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
    }
}

/// keepalived's configuration on one machine: each service prefers another one.
fn config(number: usize) -> String {
    let instances = SERVICES.iter().enumerate().map(|(at, (name, vip, vrid))| {
        let priority = if at == number { 150 } else { 100 + number };
        format!(
            "vrrp_instance {name} {{\n  state BACKUP\n  interface eth0\n  virtual_router_id {vrid}\n  \
             priority {priority}\n  advert_int 1\n  track_interface {{\n    eth0\n  }}\n  \
             virtual_ipaddress {{\n    {vip} dev eth0\n  }}\n}}\n"
        )
    });
    format!("global_defs {{\n  router_id {}\n}}\n{}", NAMES[number], instances.collect::<String>())
}

fn show(
    machines: &mut [DemoNode],
    switch: &BridgeSwitch,
    screen: &mut Screen,
    lines: &Receiver<Line>,
    signals: &Signals,
    limit: Option<Duration>,
) {
    let end = limit.map(|limit| Instant::now() + limit);
    let mut next_blow = Instant::now() + REIGN;
    let mut next_glance = Instant::now();
    let mut blows = 0;
    while end.is_none_or(|end| Instant::now() < end) {
        let mut waiting = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
        if signals.read() == Some(Signal::Stop) {
            break;
        }
        for (number, line) in lines.try_iter() {
            screen.add(machines[number].name, &line);
        }
        let now = Instant::now();
        if now >= next_blow {
            next_blow = now + REIGN;
            strike(machines, switch, blows, screen);
            blows += 1;
        }
        if screen.is_terminal() && now >= next_glance {
            next_glance = now + GLANCE;
            machines.iter_mut().for_each(DemoNode::glance);
        }
        screen.draw(machines);
    }
    machines.iter_mut().for_each(DemoNode::glance);
}

/// Something fails, in turns a keepalived and a cable, on one machine after the other; what failed
/// last time is mended first.
fn strike(machines: &mut [DemoNode], switch: &BridgeSwitch, blows: usize, screen: &mut Screen) {
    for machine in machines.iter_mut() {
        if machine.keepalived.is_none() {
            screen.say(machine.name, "keepalived is started again");
            let keepalived =
                Keepalived::start_with(&machine.netns, machine.lab.path(), &machine.config);
            machine.keepalived = Some(keepalived);
        }
        if std::mem::take(&mut machine.is_cut) {
            screen.say(machine.name, "the cable is plugged in again");
            switch.mend(&machine.port);
        }
    }
    let machine = &mut machines[blows / 2 % NAMES.len()];
    if blows.is_multiple_of(2) {
        screen.say(machine.name, "keepalived is stopped");
        if let Some(keepalived) = machine.keepalived.take() {
            keepalived.stop();
        }
    } else {
        screen.say(machine.name, "the cable is cut");
        switch.cut(&machine.port);
        machine.is_cut = true;
    }
}
