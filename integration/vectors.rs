//! Every row and stream of the vector and fixture folders is counted: run by the unit test of what it describes, or
//! named as not built. `VECTORS_DIR` and `FIXTURES_DIR` name other folders than the project's copies.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::support::project;

/// What is built, by the beginning of a row's `plugin`, and the unit test that runs its rows.
const BUILT: [(&str, &str); 8] = [
    ("config/", "config::v1_parser::tests::every_vector_of_the_language"),
    ("format/", "formatter::tests::vectors"),
    ("filter/grep", "filter::filter_grep::tests::vectors"),
    ("filter/record_transformer", "filter::filter_record_transformer::tests::vectors"),
    ("out/file.", "output::out_file::tests::vectors"),
    ("out/copy", "output::out_copy::tests::vectors"),
    ("record_accessor/", "event::accessor::tests::vectors"),
    ("forward/", "forward::tests::fixture_streams"),
];

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| project().join(default), PathBuf::from)
}

#[test]
fn every_row_is_run_or_counted() {
    let (mut run, mut waiting) = (0, BTreeMap::<String, usize>::new());
    let mut files = 0;
    let folder = folder("VECTORS_DIR", "testdata/vectors");
    for entry in std::fs::read_dir(&folder).expect("the folder of vectors") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "jsonl") {
            continue;
        }
        files += 1;
        for line in std::fs::read_to_string(&path).expect("a file of vectors").lines() {
            let row: serde_json::Value = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display()));
            let plugin = row["plugin"].as_str().unwrap_or_else(|| panic!("a row without plugin: {line}"));
            match BUILT.iter().find(|(name, _)| plugin.starts_with(name)) {
                Some(_) => run += 1,
                None => *waiting.entry(plugin.to_owned()).or_default() += 1,
            }
        }
    }
    assert!(files >= 11, "{files} files in {}", folder.display());
    println!("vectors: {files} files, {run} rows of what is built, not built: {waiting:?}");
}

#[test]
fn every_fixture_is_run_or_counted() {
    let folder = folder("FIXTURES_DIR", "testdata/fixtures");
    let streams = std::fs::read_to_string(folder.join("forward/index.json")).expect("forward/index.json");
    let streams: Vec<serde_json::Value> = serde_json::from_str(&streams).expect("a list");
    let cases = std::fs::read_dir(folder.join("buffers")).expect("buffers");
    let cases = cases.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir())).count();
    assert!(streams.len() >= 17 && cases >= 12);
    println!(
        "fixtures: {} forward streams (those not built are named by the unit test); not built: {cases} buffers of \
         Fluentd (takeover), the handshake of <security>",
        streams.len()
    );
}
