// SPDX-License-Identifier: Apache-2.0
//! The bills of materials: `CycloneDX` documents, made by cargo-cyclonedx.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::DistInputs;
use super::files::PACKAGES;
use crate::{TaskError, TaskResult, build, process, provision};

/// The name that cargo-cyclonedx gives to its documents, which it writes beside each manifest.
const NAME: &str = "bill";

/// Writes one document for each package; returns their names.
pub fn make(inputs: &DistInputs) -> Result<Vec<String>, TaskError> {
    let copy = inputs.work.join("sbom");
    copy_sources(&copy)?;
    process::output(
        Command::new(provision::cargo_cyclonedx()?)
            .args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"])
            .args(["--target", super::X86_64, "--override-filename", NAME])
            .env("SOURCE_DATE_EPOCH", inputs.release.epoch.to_string())
            .current_dir(&copy),
    )?;
    let mut made = Vec::new();
    for package in &PACKAGES {
        let mut value = Value::Null;
        for directory in package.crate_directories {
            let document = read(&copy, directory)?;
            if value.is_null() { value = document } else { merge(&mut value, document) }
        }
        let name = format!("{}-{}.cdx.json", package.name, inputs.release.version);
        build::write(&inputs.out.join(&name), &serde_json::to_vec_pretty(&value)?)?;
        made.push(name);
    }
    Ok(made)
}

/// The document of one crate, the same for every build.
fn read(copy: &Path, crate_directory: &str) -> Result<Value, TaskError> {
    let document = copy.join("crates").join(crate_directory).join(NAME);
    let text = fs::read_to_string(document.with_extension("json"))?;
    // The identifiers of the project's own crates have the directory of this build.
    let text = text.replace(&copy.display().to_string(), "/vipwatch");
    let mut value: Value = serde_json::from_str(&text)?;
    if let Some(object) = value.as_object_mut() {
        // A random number, which the format does not require.
        object.remove("serialNumber");
    }
    Ok(value)
}

/// Adds a further program of the package to the document of its main program.
fn merge(value: &mut Value, mut other: Value) {
    let program = other["metadata"]["component"].take();
    append(&mut value["components"], vec![program], "bom-ref");
    for (list, key) in [("components", "bom-ref"), ("dependencies", "ref")] {
        if let Value::Array(items) = other[list].take() {
            append(&mut value[list], items, key);
        }
    }
}

/// Adds the items with a new `key` to a list, and keeps the list sorted by it.
fn append(list: &mut Value, items: Vec<Value>, key: &str) {
    let Some(list) = list.as_array_mut() else { return };
    for item in items {
        if list.iter().all(|known| known[key] != item[key]) {
            list.push(item);
        }
    }
    list.sort_by(|a, b| a[key].as_str().cmp(&b[key].as_str()));
}

/// Copies the tracked files to a directory: cargo-cyclonedx writes beside them.
pub fn copy_sources(copy: &Path) -> TaskResult {
    fs::create_dir_all(copy)?;
    let script =
        "git ls-files -z | tar --null --files-from=- --create | tar --extract --directory \"$0\"";
    let mut shell = Command::new("sh");
    process::run(shell.args(["-ec", script]).arg(copy).current_dir(build::root()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::merge;

    #[test]
    fn a_further_program_adds_itself_and_its_crates_once() {
        let document = |name: &str, own: &str| {
            json!({
                "metadata": { "component": { "bom-ref": name } },
                "components": [{ "bom-ref": "libc" }, { "bom-ref": own }],
                "dependencies": [{ "ref": name, "dependsOn": ["libc", own] }, { "ref": "libc" }],
            })
        };
        let mut merged = document("dropin", "a");
        merge(&mut merged, document("switch", "b"));
        let expected = json!({
            "metadata": { "component": { "bom-ref": "dropin" } },
            "components": [
                { "bom-ref": "a" }, { "bom-ref": "b" }, { "bom-ref": "libc" }, { "bom-ref": "switch" },
            ],
            "dependencies": [
                { "ref": "dropin", "dependsOn": ["libc", "a"] },
                { "ref": "libc" },
                { "ref": "switch", "dependsOn": ["libc", "b"] },
            ],
        });
        assert_eq!(merged, expected);
    }
}
