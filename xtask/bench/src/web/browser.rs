// SPDX-License-Identifier: Apache-2.0
//! The frame times of the dashboard, which its test measures in a browser and writes to a file.

use serde_json::Value;

use crate::report::{BenchTarget, Row};

/// The variable of the environment with the path of the file. Each line is
/// `{"frame_p95_ms":NUMBER,"longest_task_ms":NUMBER}`; the last one counts.
const REPORT_VARIABLE: &str = "VIPWATCH_BROWSER_REPORT";

/// Adds the rows of the browser, or a remark why there are none.
pub fn browser_rows(rows: &mut Vec<Row>, notes: &mut Vec<String>) {
    let Ok(path) = std::env::var(REPORT_VARIABLE) else {
        notes.push(format!("Frame times of the dashboard: {REPORT_VARIABLE} is not set."));
        return;
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => rows.extend(rows_of(&text)),
        Err(error) => notes.push(format!("Error: frame times of the dashboard: {path}: {error}.")),
    }
}

/// The rows of the last line of a report.
fn rows_of(text: &str) -> [Row; 2] {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let values: Value = serde_json::from_str(last).unwrap_or_default();
    [
        ("dashboard, 5,000 instances: frame time, p95", "frame_p95_ms", 33.0),
        ("dashboard, 5,000 instances: longest task", "longest_task_ms", 50.0),
    ]
    .map(|(metric, field, limit)| {
        Row::new(metric, "ms").ours(values[field].as_f64()).target(BenchTarget::AtMost(limit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_report_counts_and_a_broken_one_has_no_values() {
        let text = "{\"frame_p95_ms\":40,\"longest_task_ms\":60}\n\
                    {\"frame_p95_ms\":17.5,\"longest_task_ms\":31}\n\n";
        assert_eq!(rows_of(text).map(|row| row.ours), [Some(17.5), Some(31.0)]);
        assert_eq!(rows_of("no json").map(|row| row.ours), [None, None]);
    }
}
