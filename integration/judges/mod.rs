//! The judges as processes: they must see what goes wrong before they may judge a forwarder.

use std::process::Command;

use crate::support::{LIMIT, Room, binary, free_port, number, wait_for};

fn judge(room: &Room, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary());
    command.args(["bench", "judge", "--journal"]).arg(room.path("send.journal"));
    command.arg("--seen").arg(room.path("sink.seen")).args(arguments);
    let output = command.output().expect("bench judge runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sends 20,000 events to a new sink, which then ends.
fn send_and_end(room: &Room, sink_arguments: &[&str]) {
    let (mut sink, port) = room.bench_sink("sink", sink_arguments);
    let port = port.to_string();
    let mut send = room.bench_send("send", &["--port", &port, "--events", "20000", "--batch", "100"]);
    send.succeed_within(LIMIT);
    assert_eq!(number(&room.status("send"), "acknowledged"), 20_000);
    sink.stop();
}

#[test]
fn a_paid_debt_passes_and_a_lost_event_fails() {
    let room = Room::new();
    send_and_end(&room, &[]);
    let (code, text) = judge(&room, &[]);
    assert_eq!(
        (code, text.trim()),
        (Some(0), "20000 events acknowledged, 20000 arrived, 0 repeats: every debt is paid")
    );
    // One event less in what arrived.
    let seen = std::fs::read_to_string(room.path("sink.seen")).expect("seen file");
    let holed = seen.replace("seen 0 20000\n", "seen 0 7000\nseen 7001 12999\n");
    assert_ne!(seen, holed, "the seen file has another form than this test knows: {seen}");
    std::fs::write(room.path("sink.seen"), holed).expect("write");
    let (code, text) = judge(&room, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("lost: 1 events of run") && text.contains("seq 7000 to 7000"), "{text}");
}

#[test]
fn repeats_are_bounded() {
    let room = Room::new();
    send_and_end(&room, &["--behaviour", "close-after", "--close-after", "40"]);
    let (code, text) = judge(&room, &[]);
    assert!(code == Some(1) && text.contains("repeats, allowed are 0"), "{code:?} {text}");
    let resent = number(&room.status("send"), "resent_events").to_string();
    let (code, text) = judge(&room, &["--max-repeats", &resent]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_frozen_sink_is_a_pause_and_not_a_loss() {
    let room = Room::new();
    let (mut sink, port) = room.bench_sink("sink", &[]);
    let port = port.to_string();
    let arguments = ["--port", &port, "--events", "30000", "--batch", "100", "--rate", "20000"];
    let mut send = room.bench_send("send", &arguments);
    let arrived = |least: u64| {
        let what = format!("{least} events at the sink");
        wait_for(&what, || (number(&room.status("sink"), "received") >= least).then_some(()));
    };
    arrived(1_000);
    let frozen = sink.freeze();
    let before = number(&room.status("send"), "sent");
    wait_for("the generator to go on regardless", || {
        (number(&room.status("send"), "sent") >= before + 5_000).then_some(())
    });
    drop(frozen);
    send.succeed_within(LIMIT);
    assert_eq!(sink.try_wait(), None);
    assert!(sink.usage().peak_resident_bytes > 0);
    sink.stop();
    let (code, text) = judge(&room, &[]);
    assert_eq!(code, Some(0), "{text}");
    let gap = room.status("sink")["longest_gap_ms"].as_f64().unwrap_or(0.0);
    // 5,000 events at 20,000 a second: the generator sent for a quarter of a second while nothing was counted.
    assert!(gap >= 100.0, "longest pause {gap} ms");
}

#[test]
fn cat_delivers_or_ends_with_one() {
    let room = Room::new();
    std::fs::write(room.path("lines"), "{\"a\":1}\n{\"a\":2}\n").expect("write");
    let cat = |port: u16| {
        let lines = std::fs::File::open(room.path("lines")).expect("lines");
        let mut command = Command::new(binary());
        command.args(["cat", "-p", &port.to_string(), "--retry-limit", "1", "app"]);
        command.stdin(lines).output().expect("cat runs")
    };
    let nobody = cat(free_port());
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(
        String::from_utf8_lossy(&nobody.stderr).contains(":{\"a\":2}"),
        "unsent records are shown: {nobody:?}"
    );
    let (mut sink, port) = room.bench_sink("sink", &[]);
    let delivered = cat(port);
    assert!(delivered.status.success(), "{delivered:?}");
    sink.stop();
    assert_eq!(number(&room.status("sink"), "foreign"), 2);
}
