//! The first step: sections become a plan, or every fault is named.

use super::check;
use crate::config::{Diagnostics, FixedEnvironment, LoadOptions, load};

/// Checks a configuration text and gives its faults as text.
fn faults_of(text: &str) -> String {
    let path = std::path::Path::new("/test.conf");
    let mut environment = FixedEnvironment::default();
    environment.files.insert(path.to_owned(), text.as_bytes().to_vec());
    let options = LoadOptions { environment: &environment, worker_id: Some(0), ..LoadOptions::default() };
    let mut diagnostics = Diagnostics::new();
    let plan = load(path, &options, &mut diagnostics).and_then(|document| check(&document, &mut diagnostics));
    assert_eq!(plan.is_none(), diagnostics.has_faults());
    diagnostics.sort_by_place();
    diagnostics.faults().map(|fault| fault.one_line() + "\n").collect()
}

#[test]
fn a_good_configuration_has_no_faults() {
    let faults = faults_of(
        "<source>\n@type forward\n@label @A\n</source>\n<label @A>\n<filter **>\n@type grep\n</filter>\n\
         <match a.**>\n@type copy\n<store>\n@type null\n</store>\n<store ignore_error>\n@type stdout\n</store>\n</match>\n\
         <match **>\n@type relabel\n@label @ROOT\n</match>\n</label>\n\
         <match **>\n@type forward\n<server>\nhost 127.0.0.1\n</server>\n</match>\n",
    );
    assert_eq!(faults, "");
}

#[test]
fn unknown_plugins_are_named_with_the_nearest() {
    let faults = faults_of("<source>\n@type forwad\n</source>\n<match **>\n@type elasticsearch\n</match>\n");
    assert!(faults.contains("Unknown input plugin 'forwad'") && faults.contains("forward"), "{faults}");
    assert!(faults.contains("Unknown output plugin 'elasticsearch'"), "{faults}");
    assert!(faults.contains("/test.conf:2") && faults.contains("/test.conf:5"), "{faults}");
}

#[test]
fn worker_id_with_several_workers_is_a_fault() {
    let text = |workers: u32| {
        format!(
            "<system>\nworkers {workers}\n</system>\n<source>\n@type forward\nport \"2422#{{worker_id}}\"\n</source>\n\
             <match **>\n@type null\n</match>\n"
        )
    };
    assert_eq!(faults_of(&text(1)), "");
    assert!(faults_of(&text(2)).contains("worker_id with several workers"));
}

#[test]
fn flat_buffer_parameters_are_faults() {
    let faults = faults_of(
        "<match **>\n@type forward\nflush_interval 1s\nbuffer_type file\n<server>\nhost a\n</server>\n\
         <secondary>\n@type file\npath /tmp/x\n</secondary>\n</match>\n",
    );
    for expected in
        ["'flush_interval' outside <buffer>", "'buffer_type' outside <buffer>", "<secondary> is not built"]
    {
        assert!(faults.contains(expected), "{faults}");
    }
}

#[test]
fn flat_time_words_belong_to_the_format_or_to_the_time_slices() {
    let with =
        |output: &str, words: &str| faults_of(&format!("<match **>\n@type {output}\n{words}\n</match>\n"));
    assert_eq!(with("stdout", "timezone +09:00\nformat out_file"), "");
    let file = "file\npath /tmp/x/y";
    assert_eq!(with(file, "time_slice_format %Y%m%d%H\ntime_slice_wait 5m\nutc true"), "");
    assert_eq!(with(file, "timezone Asia/Tokyo"), "");
    for (output, words, expected) in [
        (file, "time_slice_format %Y%m", "too long"),
        (file, "timezone JST", "timezone"),
        (file, "time_slice_format %Y%m%d\n<buffer time>\n</buffer>", "'time_slice_format' outside <buffer>"),
        ("null", "timezone +09:00", "'timezone' outside <buffer>"),
    ] {
        let faults = with(output, words);
        assert!(faults.contains(expected), "{output} {words}: {faults}");
    }
}

#[test]
fn buffer_sections_are_checked() {
    let with = |buffer: &str| {
        faults_of(&format!("<match **>\n@type forward\n<server>\nhost a\n</server>\n{buffer}\n</match>\n"))
    };
    for (buffer, expected) in [
        ("<buffer tag,time>\n</buffer>", "timekey is not configured"),
        ("<buffer tag>\n@type file\n</buffer>", "'path' parameter is required"),
        ("<buffer tag>\n@type fil\n</buffer>", "Unknown buffer plugin 'fil'"),
        (
            "<buffer tag>\nflush_mode lazy\nflush_interval 1s\n</buffer>",
            "'flush_interval' can't be specified",
        ),
        ("<buffer tag>\n</buffer>\n<buffer>\n</buffer>", "cannot be written twice"),
        ("<buffer tag>\ncompress gzip\n</buffer>", "compress"),
        ("<buffer []>\n</buffer>", "must include 'tag'"),
        ("<buffer tag>\nchunk_limit_size 0\n</buffer>", "'chunk_limit_size' parameter: 0 leaves no room"),
        (
            "<buffer tag>\nchunk_limit_records 0\n</buffer>",
            "'chunk_limit_records' parameter: 0 leaves no room",
        ),
        ("<buffer time>\ntimekey 1h\n</buffer>", "must include 'tag'"),
    ] {
        let faults = with(buffer);
        assert!(faults.contains(expected), "{buffer}: {faults}");
    }
    let copy =
        faults_of("<match **>\n@type copy\n<buffer>\n</buffer>\n<store>\n@type null\n</store>\n</match>\n");
    assert!(copy.contains("doesn't support buffering"), "{copy}");
}

#[test]
fn faults_come_in_the_order_of_the_lines() {
    let text = "<match **>\n@type nothing\n</match>\n<source>\n@type forward\nport abc99999\n<security>\n</security>\n</source>\n\
                <match **>\n@type nowhere\n</match>\n";
    let lines: Vec<u32> = faults_of(text)
        .lines()
        .filter_map(|line| line.split("/test.conf:").nth(1)?.split(':').next()?.parse().ok())
        .collect();
    assert!(lines.len() >= 3 && lines.is_sorted(), "{lines:?}");
}

#[test]
fn two_outputs_with_one_buffer_path_are_a_fault() {
    let output = |path: &str| {
        format!(
            "<store>\n@type forward\n<server>\nhost a\n</server>\n<buffer tag>\n@type file\npath {path}\n</buffer>\n</store>\n"
        )
    };
    let copy = |first: &str, second: &str| {
        faults_of(&format!("<match **>\n@type copy\n{}{}</match>\n", output(first), output(second)))
    };
    assert_eq!(copy("/a", "/b"), "");
    assert!(copy("/a", "/a").contains("Other 'forward' plugin already use same buffer path"));
}
