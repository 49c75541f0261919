//! Disks that refuse: full, failing, failing to sync. On the simulated disk, through the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::crash_tests::{Oracle, Step, World, config};
use super::sim::{Call, Disk};
use super::*;

/// Lets calls of a kind fail while the switch is on.
fn fail_while(world: &World, call: Call, kind: std::io::ErrorKind) -> Arc<AtomicBool> {
    let switch = Arc::new(AtomicBool::new(true));
    let watched = Arc::clone(&switch);
    let fault =
        move |got: Call, _: &std::path::Path| (got == call && watched.load(Ordering::SeqCst)).then_some(kind);
    world.storage.disk().fault = Some(Box::new(fault));
    switch
}

fn world() -> World {
    World::open(Disk::with_directory("/var"), config(), None).unwrap().unwrap()
}

const ALL_OUT: &[Step] = &[Step::EnqueueAll, Step::Drain];

/// Everything confirmed arrives, nothing else, also after a power failure.
fn settle(mut world: World, mut oracle: Oracle) {
    let mut random = fastrand::Rng::with_seed(7);
    let left = world.storage.disk().survivors(&mut random);
    for disk in left {
        let mut after = World::open(disk, config(), None).unwrap().unwrap();
        let mut oracle = oracle.clone();
        after.run(&mut oracle, ALL_OUT).unwrap();
        assert!(oracle.confirmed.is_subset(&oracle.delivered), "{:?}", oracle.confirmed);
    }
    world.run(&mut oracle, ALL_OUT).unwrap();
    assert_eq!(oracle.confirmed, oracle.delivered);
    assert_eq!((world.engine.stage_bytes, world.engine.queue.lock().bytes), (0, 0));
}

#[test]
fn a_full_disk_refuses_keeps_the_chunk_valid_and_resumes() {
    for call in [Call::Write, Call::Create] {
        let (mut world, mut oracle) = (world(), Oracle::default());
        world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
        let full = fail_while(&world, call, std::io::ErrorKind::StorageFull);
        let before = oracle.confirmed.len();
        world.run(&mut oracle, &[Step::AppendAcross(&["a", "b"]), Step::Append(&["b", "a"])]).unwrap();
        assert_eq!(oracle.confirmed.len(), before, "nothing of a refused round is confirmed");
        full.store(false, Ordering::SeqCst);
        world.run(&mut oracle, &[Step::Append(&["a", "b"])]).unwrap();
        assert_eq!(oracle.confirmed.len(), before + 4);
        assert_eq!(world.engine.stage.len(), 2, "the chunk collects again");
        settle(world, oracle);
    }
}

#[test]
fn chunks_leave_a_full_disk() {
    let (mut world, mut oracle) = (world(), Oracle::default());
    world.run(&mut oracle, &[Step::Append(&["a", "b"])]).unwrap();
    let _full = fail_while(&world, Call::Write, std::io::ErrorKind::StorageFull);
    world.run(&mut oracle, ALL_OUT).unwrap();
    assert_eq!(oracle.confirmed, oracle.delivered);
}

#[test]
fn a_failed_sync_moves_the_bytes_to_a_new_file() {
    let (mut world, mut oracle) = (world(), Oracle::default());
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    let mut failures = 1;
    let fault = move |call: Call, _: &std::path::Path| {
        let fails = call == Call::Sync && failures > 0;
        failures -= i32::from(fails);
        fails.then_some(std::io::ErrorKind::Other)
    };
    world.storage.disk().fault = Some(Box::new(fault));
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    assert_eq!(oracle.confirmed.len(), 4, "confirmed from the new file");
    assert_eq!(world.engine.queue.lock().waiting.len(), 1, "the old file takes nothing more");
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    settle(world, oracle);
}

#[test]
fn a_disk_that_never_syncs_refuses_and_resumes() {
    let (mut world, mut oracle) = (world(), Oracle::default());
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    let broken = fail_while(&world, Call::Sync, std::io::ErrorKind::Other);
    world.run(&mut oracle, &[Step::Append(&["a", "b"]), Step::Append(&["a"])]).unwrap();
    assert_eq!(oracle.confirmed.len(), 2);
    broken.store(false, Ordering::SeqCst);
    world.run(&mut oracle, &[Step::Append(&["a", "b"])]).unwrap();
    assert_eq!(oracle.confirmed.len(), 6);
    settle(world, oracle);
}

#[test]
fn a_directory_that_does_not_sync_refuses_new_chunks() {
    let (mut world, mut oracle) = (world(), Oracle::default());
    let broken = fail_while(&world, Call::SyncDirectory, std::io::ErrorKind::Other);
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    assert!(oracle.confirmed.is_empty());
    broken.store(false, Ordering::SeqCst);
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    settle(world, oracle);
}

#[test]
fn an_interval_sync_that_fails_is_counted_and_the_chunk_leaves() {
    let mut config = config();
    if let BufferKind::File(file) = &mut config.kind {
        file.fsync = Fsync::Interval(std::time::Duration::from_secs(1));
    }
    let mut world = World::open(Disk::with_directory("/var"), config, None).unwrap().unwrap();
    let mut oracle = Oracle::default();
    world.run(&mut oracle, &[Step::Append(&["a"])]).unwrap();
    let _broken = fail_while(&world, Call::Sync, std::io::ErrorKind::Other);
    world.engine.sync();
    assert_eq!(world.engine.reporter.figures.failed_syncs, 1);
    world.run(&mut oracle, &[Step::Drain]).unwrap();
    assert_eq!(oracle.confirmed, oracle.delivered);
}

#[test]
fn a_disk_fault_at_every_single_call_loses_nothing_confirmed() {
    let script = super::crash_tests::WORKLOAD;
    let calls = {
        let (mut world, mut oracle) = (world(), Oracle::default());
        world.run(&mut oracle, script).unwrap();
        world.storage.disk().calls
    };
    for at in 1..=calls {
        let (mut world, mut oracle) = (world(), Oracle::default());
        let mut count = world.storage.disk().calls;
        let fault = move |call: Call, _: &std::path::Path| {
            count += 1;
            // Reads are repeated by the handle, not by the engine.
            (count == at && call != Call::Read).then_some(std::io::ErrorKind::Other)
        };
        world.storage.disk().fault = Some(Box::new(fault));
        world.run(&mut oracle, script).unwrap_or_else(|error| panic!("fault at call {at}: {error}"));
        world.run(&mut oracle, ALL_OUT).unwrap_or_else(|error| panic!("fault at call {at}: {error}"));
        assert!(oracle.confirmed.is_subset(&oracle.delivered), "fault at call {at}");
        assert!(oracle.confirmed.len() as u64 + 8 >= oracle.sent, "one fault refuses one round, call {at}");
    }
}
