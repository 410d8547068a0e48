// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask screenshots`: makes the pictures of the README and the documents from a live lab: the dashboard in
//! Chromium, and `vipwatch top` on a pseudo-terminal.

mod lab;
mod svg;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::json;
use vipwatch_testkit::{Browser, ColorScheme, PtyProcess, wait_showing};

use self::lab::{INSTANCE, PictureLab};
use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build, provision, sandbox};

pub const HELP: &str = "\
Make the pictures in docs/images from a live lab with real keepalived.

Usage: cargo xtask screenshots [--terminal] [--out DIR]

  --terminal  Make only the pictures of `vipwatch top`
  --out DIR   Write the pictures to DIR instead of docs/images

Two nodes follow two real keepalived with 24 instances. Each keepalived is stopped and started again, and one link
loses its carrier, so that the pictures show failovers and a finding. Debian's Chromium makes the pictures of the dashboard.
Everything runs in its own namespaces and is removed at the end.
";

/// A picture of the dashboard.
struct DashboardPicture {
    /// The name of the file, without its ending.
    file: &'static str,
    /// The path and the fragment of the URL.
    path: &'static str,
    /// A text that the complete page has.
    text: &'static str,
    /// Width and height in CSS pixels.
    size: (u32, u32),
    scheme: ColorScheme,
}

/// The pictures of the dashboard. All URLs of its views are here.
fn dashboard_pictures() -> [DashboardPicture; 6] {
    use ColorScheme::{Dark, Light};
    let wide = (1280, 800);
    [
        ("dashboard-light", "/#/", INSTANCE, wide, Light),
        ("dashboard-dark", "/#/", INSTANCE, wide, Dark),
        ("dashboard-phone", "/#/", INSTANCE, (390, 844), Light),
        ("dashboard-instance", "/#/instance/web-1", "Stopwatch", (1280, 1000), Light),
        ("dashboard-history", "/#/history", INSTANCE, wide, Dark),
        ("dashboard-findings", "/#/findings", "eth1 has no carrier", wide, Light),
    ]
    .map(|(file, path, text, size, scheme)| DashboardPicture {
        file,
        path,
        text,
        size,
        scheme,
    })
}

/// A picture of the terminal.
struct TerminalPicture {
    file: &'static str,
    /// The keys that lead to it.
    keys: &'static str,
    /// A text that the complete screen has.
    text: &'static str,
}

/// The size of the terminal in columns and rows.
const TERMINAL_SIZE: (u16, u16) = (112, 34);

const TERMINAL_PICTURES: [TerminalPicture; 2] = [
    TerminalPicture { file: "top", keys: "", text: "storage" },
    TerminalPicture { file: "top-detail", keys: "/web-1\r\r", text: "keepalived      runs" },
];

/// The options of the command.
struct PictureOptions {
    only_terminal: bool,
    directory: PathBuf,
}

fn parse(args: &[&str]) -> Result<PictureOptions, TaskError> {
    let mut args = Arguments::new(args);
    let only_terminal = args.flag("--terminal");
    let directory = args.path("--out")?.unwrap_or_else(|| build::root().join("docs/images"));
    args.finish()?;
    Ok(PictureOptions { only_terminal, directory })
}

/// Builds `vipwatch`, installs keepalived and Chromium, and makes the pictures in the sandbox.
pub fn prepare(args: &[&str]) -> TaskResult {
    let options = parse(args)?;
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    if !options.only_terminal {
        provision::programs(&[provision::CHROMIUM])?;
    }
    sandbox::check_namespaces()?;
    let program = build::debug_programs(&["vipwatch"])?.join("vipwatch").display().to_string();
    std::fs::create_dir_all(&options.directory)?;
    let directory = options.directory.display().to_string();
    let mut line = vec!["screenshots", &program, "--out", &directory];
    line.extend(options.only_terminal.then_some("--terminal"));
    sandbox::enter(&line, &[])
}

/// In the sandbox: starts the lab and makes the pictures.
pub fn run(args: &[&str]) -> TaskResult {
    let (program, options) = args.split_first().ok_or("the program is missing")?;
    let options = parse(options)?;
    // The sandbox has a host name of its own, which the pictures show.
    rustix::system::sethostname(b"net-1")?;
    let lab = PictureLab::start(Path::new(program));
    for picture in &TERMINAL_PICTURES {
        let path = options.directory.join(picture.file).with_extension("svg");
        take_terminal(&lab, picture, &path)?;
        eprintln!("xtask: {}", path.display());
    }
    if options.only_terminal {
        return Ok(());
    }
    // The browser, its driver and the requests to it are in the namespace of the node.
    lab.netns().visit(|| take_dashboard(&options.directory))
}

/// Opens each view of the dashboard in a browser, and writes its picture.
fn take_dashboard(directory: &Path) -> TaskResult {
    let browser = Browser::start();
    for page in dashboard_pictures() {
        let path = directory.join(page.file).with_extension("png");
        let (width, height) = page.size;
        // Two pixels for each CSS pixel: the pictures are sharp on the screens of today.
        browser.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600 }),
        );
        browser.set_color_scheme(page.scheme);
        // Another page first: a new fragment alone does not load the page again.
        browser.open("about:blank");
        browser.open(&format!("http://{}{}", lab::ADDRESS, page.path));
        let text = || browser.text("body");
        let what = format!("{} on the page {}", page.text, page.path);
        wait_showing(&what, text, || text().contains(page.text).then_some(()));
        let picture = base64::engine::general_purpose::STANDARD.decode(browser.screenshot());
        build::write(&path, &picture?)?;
        eprintln!("xtask: {}", path.display());
    }
    Ok(())
}

/// Runs `vipwatch top` on a pseudo-terminal, presses the keys, and draws its screen.
fn take_terminal(lab: &PictureLab, picture: &TerminalPicture, path: &Path) -> TaskResult {
    let (columns, rows) = TERMINAL_SIZE;
    let mut top = PtyProcess::start(&lab.top_command(), columns, rows);
    top.wait_for(INSTANCE);
    top.press(picture.keys);
    top.wait_for(picture.text);
    build::write(path, svg::picture(top.screen()).as_bytes())
}
