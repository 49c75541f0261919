use std::fs;
use std::path::Path;

use super::*;

fn logger(
    directory: &Path,
    change: impl FnOnce(&mut Options),
) -> (Logger, impl tracing::Subscriber + Send + Sync) {
    let mut options = Options { target: Target::File(directory.join("log")), ..Options::default() };
    change(&mut options);
    let logger = Logger::new(&options).unwrap();
    let subscriber = tracing_subscriber::registry().with(FluentdLayer(Arc::clone(&logger.0)));
    (logger, subscriber)
}

fn lines_without_time(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("log")).unwrap();
    text.lines().map(|line| line[line.find('[').unwrap()..].to_owned()).collect()
}

#[test]
fn fields_print_as_ruby_inspects_them() {
    let directory = tempfile::tempdir().unwrap();
    let (_, subscriber) = logger(directory.path(), |_| ());
    tracing::subscriber::with_default(subscriber, || {
        let text = "with \"quotes\"\n";
        tracing::info!(worker = 0, "fluentd worker is now running");
        tracing::warn!(plugin_id = %"out", text, ratio = 0.5, ok = true, "said");
        tracing::warn!(plugin_id = %"object:3fe", kind = raw(":forward"), hosts = raw("[\"a\"]\n"), "said");
        tracing::error!(target: SUPERVISOR, error = %"boom", fatal = true, "unexpected error");
        tracing::info!(target: SUPERVISOR, repeated = 37_u64, peer = ?std::net::Ipv4Addr::LOCALHOST, "broken");
        tracing::info!(repeated = 0_u64, "whole");
        tracing::debug!("not shown");
        tracing::error!(target: "hyper", "a dependency is not shown");
    });
    assert_eq!(
        lines_without_time(directory.path()),
        [
            "[info]: #0 fluentd worker is now running worker=0",
            "[warn]: #0 [out] said text=\"with \\\"quotes\\\"\\n\" ratio=0.5 ok=true",
            "[warn]: #0 said kind=:forward hosts=[\"a\"]\\n",
            "[fatal]: unexpected error error=\"boom\"",
            "[info]: broken peer=\"127.0.0.1\" (repeated 37 times)",
            "[info]: #0 whole",
        ]
    );
    let text = fs::read_to_string(directory.path().join("log")).unwrap();
    let time = text.split(" [").next().unwrap();
    assert!(jiff::fmt::strtime::parse(TIME_FORMAT, time).is_ok(), "{time}");
}

#[test]
fn json_lines_and_a_useless_time_format() {
    let directory = tempfile::tempdir().unwrap();
    let (_, subscriber) = logger(directory.path(), |options| {
        options.format = Format::Json;
        options.time_format = "%Y %".to_owned();
    });
    tracing::subscriber::with_default(subscriber, || tracing::info!(key = "v", "said"));
    let text = fs::read_to_string(directory.path().join("log")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["message"], "said key=\"v\"");
    assert_eq!(line["worker_id"], 0);
    assert!(jiff::fmt::strtime::parse(TIME_FORMAT, line["time"].as_str().unwrap()).is_ok());
}

#[test]
fn a_plugin_may_be_more_and_less_talkative_than_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let (logger, subscriber) = logger(directory.path(), |_| ());
    tracing::subscriber::with_default(subscriber, || {
        logger.set_plugin_level("loud", Level::Debug);
        logger.set_plugin_level("quiet", Level::Error);
        tracing::debug!(plugin_id = "loud", "shown");
        tracing::debug!(plugin_id = "other", "hidden");
        tracing::debug!("hidden");
        tracing::warn!(plugin_id = "quiet", "hidden");
        tracing::error!(plugin_id = "quiet", "shown");
    });
    assert_eq!(
        lines_without_time(directory.path()),
        ["[debug]: #0 [loud] shown", "[error]: #0 [quiet] shown"]
    );
}

#[test]
fn debug_level_names_the_source_position() {
    let directory = tempfile::tempdir().unwrap();
    let (_, subscriber) = logger(directory.path(), |options| options.level = Level::Debug);
    tracing::subscriber::with_default(subscriber, || tracing::debug!("here"));
    let lines = lines_without_time(directory.path());
    assert!(lines[0].starts_with("[debug]: #0 telemetry/log/tests.rs:"), "{lines:?}");
}

#[test]
fn reopen_follows_a_rename_and_the_writer_thread_keeps_order() {
    let directory = tempfile::tempdir().unwrap();
    let (logger, subscriber) = logger(directory.path(), |_| ());
    logger.start_writer().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(number = 1, "said");
        assert!(logger.flush(Duration::from_secs(60)));
        fs::rename(directory.path().join("log"), directory.path().join("log.0")).unwrap();
        logger.reopen().unwrap();
        for number in 2..1_000 {
            tracing::info!(number, "said");
        }
        assert!(logger.flush(Duration::from_secs(60)));
    });
    let old = fs::read_to_string(directory.path().join("log.0")).unwrap();
    assert!(old.ends_with("said number=1\n"));
    let expected: Vec<String> = (2..1_000).map(|number| format!("[info]: #0 said number={number}")).collect();
    assert_eq!(lines_without_time(directory.path()), expected);
}

#[test]
fn a_stuck_destination_drops_and_counts_instead_of_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Both ends in our hands: the open does not wait, and nobody reads until we say so.
    let reader = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (logger, subscriber) = logger(directory.path(), |_| ());
    logger.start_writer().unwrap();
    tracing::subscriber::with_default(subscriber, || {
        let filler = "x".repeat(1_000);
        for _ in 0..20_000 {
            tracing::info!(filler, "said");
        }
        assert!(!logger.flush(Duration::from_millis(1)));
    });
    drop(reader);
    // The writer gets a broken pipe for each line and comes to an end of the queue.
    while !logger.flush(Duration::from_secs(60)) {}
    assert!(logger.0.sink.take_dropped() > 10_000);
    assert_eq!(logger.0.sink.take_dropped(), 0);
}

#[test]
fn repeats_are_ignored_within_their_interval() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    let mut repeats = Repeats::default();
    let mut last =
        |text: &str, after: u32| repeats.is_repeat(text, now + second * after, Some(second * 10), None);
    assert_eq!(
        [last("a", 0), last("a", 5), last("b", 6), last("a", 7), last("a", 18)],
        [false, true, false, false, false]
    );
    let mut repeats = Repeats::default();
    let mut same =
        |text: &str, after: u32| repeats.is_repeat(text, now + second * after, None, Some(second * 10));
    assert_eq!([same("a", 0), same("b", 1), same("a", 9), same("a", 10)], [false, false, true, false]);
    for number in 0..5_000 {
        same(&number.to_string(), 10);
    }
    assert!(repeats.recent.len() <= SAME_MESSAGES_MAX);
}
