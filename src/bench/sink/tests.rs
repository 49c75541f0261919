use std::sync::atomic::AtomicBool;

use clap::Parser;

use super::*;
use crate::bench::journal::Debts;
use crate::bench::oracle::{Bounds, judge};
use crate::bench::record::Mode;
use crate::bench::send::{SendOptions, send};

/// A stop flag that nobody sets.
fn never() -> Arc<AtomicBool> {
    Arc::default()
}

#[derive(Parser)]
struct SendLine {
    #[command(flatten)]
    options: SendOptions,
}

#[derive(Parser)]
struct SinkLine {
    #[command(flatten)]
    options: SinkOptions,
}

fn sink(arguments: &[&str]) -> Sink {
    let line = SinkLine::parse_from([&["sink", "--bind", "127.0.0.1:0"], arguments].concat());
    Sink::start(line.options).expect("a sink")
}

fn send_options(sink: &Sink, arguments: &[&str]) -> SendOptions {
    let host = sink.address().to_string();
    SendLine::parse_from([&["send", "--host", &host, "--give-up", "20"], arguments].concat()).options
}

#[test]
fn every_mode_arrives_once_and_is_acknowledged() {
    for mode in [Mode::Message, Mode::Forward, Mode::Packed, Mode::Gzip] {
        let sink = sink(&[]);
        let folder = tempfile::tempdir().expect("temporary directory");
        let journal = folder.path().join("journal");
        let mut options = send_options(&sink, &["--events", "2500", "--batch", "100", "--connections", "3"]);
        (options.mode, options.journal) = (mode, Some(journal.clone()));
        let report = send(options, never()).expect("send");
        assert!(report.complete, "{mode:?}: {}", report.json);
        assert_eq!((report.sent, report.acknowledged, report.resent_events), (2_500, 2_500, 0), "{mode:?}");
        let tally = sink.tally();
        assert_eq!((tally.distinct(), tally.repeated(), tally.foreign), (2_500, 0, 0), "{mode:?}");
        assert_eq!((tally.re_encoded, tally.time_changed), (0, 0), "{mode:?}");
        let debts = Debts::load(&journal).expect("journal");
        assert_eq!((debts.acknowledged.len(), debts.sent), (2_500, Some(2_500)));
        assert_eq!(judge(&[debts], &tally, Bounds::default()).violations, [], "{mode:?}");
    }
}

#[test]
fn without_acks_everything_arrives_before_the_sender_ends() {
    for mode in ["message", "packed"] {
        let sink = sink(&[]);
        let options = send_options(&sink, &["--no-ack", "--mode", mode, "--events", "5000", "--batch", "70"]);
        let report = send(options, never()).expect("send");
        assert!(report.complete, "{}", report.json);
        assert_eq!((report.sent, report.acknowledged), (5_000, 0));
        assert_eq!((sink.tally().distinct(), sink.tally().repeated()), (5_000, 0), "{mode}");
        assert_eq!(sink.status()["acks"], 0);
    }
}

#[test]
fn a_broken_connection_is_resent_with_the_same_chunk_id() {
    // Every connection dies over its third message, counted but not acknowledged.
    let sink = sink(&["--behaviour", "close-after", "--close-after", "3"]);
    let options = send_options(
        &sink,
        &["--events", "1000", "--batch", "100", "--connections", "1", "--in-flight", "1"],
    );
    let report = send(options, never()).expect("send");
    assert!(report.complete, "{}", report.json);
    let (tally, status) = (sink.tally(), sink.status());
    assert_eq!(tally.distinct(), 1_000);
    assert!(report.resent_events > 0 && tally.repeated() == report.resent_events, "{status} {}", report.json);
    assert_eq!(status["messages_again"], report.json["resends"]);
}

#[test]
fn a_peer_that_never_acks_ends_the_run_as_incomplete() {
    for behaviour in ["no-ack", "accept-and-hang"] {
        let sink = sink(&["--behaviour", behaviour]);
        let mut options = send_options(&sink, &["--events", "10", "--batch", "10", "--connections", "1"]);
        options.give_up = 0.5;
        let report = send(options, never()).expect("send");
        assert!(!report.complete && report.acknowledged == 0, "{behaviour}: {}", report.json);
    }
}

#[test]
fn the_generator_fails_over_to_the_next_host() {
    let sink = sink(&[]);
    // A port that was free a moment ago and that nobody listens on.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let mut options =
        send_options(&sink, &["--failover", "--events", "400", "--batch", "100", "--connections", "2"]);
    options.host.insert(0, closed.to_string());
    let report = send(options, never()).expect("send");
    assert!(report.complete, "{}", report.json);
    assert_eq!(sink.tally().distinct(), 400);
    assert!(report.json["connection_errors"].as_u64() >= Some(1), "{}", report.json);
}

#[test]
fn open_loop_keeps_its_schedule_while_acks_are_late() {
    let sink = sink(&["--ack-delay-ms", "300"]);
    let options =
        send_options(&sink, &["--rate", "2000", "--events", "1000", "--batch", "100", "--connections", "1"]);
    let report = send(options, never()).expect("send");
    assert!(report.complete, "{}", report.json);
    // Ten messages one by one would take 3 s with these acks; on schedule the last one goes out after 0.45 s.
    let seconds = report.json["seconds"].as_f64().unwrap_or(0.0);
    assert!((0.45..2.5).contains(&seconds), "{}", report.json);
}
