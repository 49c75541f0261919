//! Hosts as network namespaces.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Process, binary, run};

/// First part of every namespace's name: `tributary-PID-LAB-HOST`.
const PREFIX: &str = "tributary-";
/// The namespace that holds the bridge.
const HUB: &str = "hub";

/// Numbers the labs of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A network of hosts. Dropped (a panic included), its processes are killed and its namespaces deleted.
pub struct Lab {
    name: String,
    hosts: Vec<String>,
    folder: tempfile::TempDir,
}

/// One host of a lab.
#[derive(Clone)]
pub struct Host {
    namespace: String,
    /// Its address in 10.200.0.0/16.
    pub address: Ipv4Addr,
    name: String,
    folder: PathBuf,
}

/// How a host is cut off from all others.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// Packets in both directions vanish: a host without power, or behind a firewall that drops.
    Drop,
    /// What others send to it vanishes; it still reaches them.
    DropIncoming,
    /// What it sends vanishes; it still hears the others.
    DropOutgoing,
    /// Connections are refused and open ones reset.
    Reject,
}

/// Holds a host cut off; dropped, the host is back.
pub struct CutOff {
    host: Host,
}

impl Lab {
    /// A network without hosts.
    pub fn new() -> Self {
        SWEEP.call_once(sweep);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let folder = tempfile::tempdir().expect("a folder for the lab");
        let mut lab = Self { name, hosts: Vec::new(), folder };
        let hub = lab.add_namespace(HUB);
        ip(&format!("-n {hub} link add bridge type bridge"));
        ip(&format!("-n {hub} link set bridge up"));
        lab
    }

    fn add_namespace(&mut self, host: &str) -> String {
        let namespace = format!("{}-{host}", self.name);
        ip(&format!("netns add {namespace}"));
        self.hosts.push(namespace.clone());
        namespace
    }

    /// Where its processes write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A new host with the next address.
    pub fn host(&mut self, name: &str) -> Host {
        let index = self.hosts.len();
        let hub = format!("{}-{HUB}", self.name);
        let namespace = self.add_namespace(name);
        let address = Ipv4Addr::new(10, 200, 0, u8::try_from(index).expect("at most 254 hosts"));
        ip(&format!("link add eth0 netns {namespace} type veth peer name port{index} netns {hub}"));
        ip(&format!("-n {hub} link set port{index} master bridge up"));
        ip(&format!("-n {namespace} address add {address}/16 dev eth0"));
        ip(&format!("-n {namespace} link set eth0 up"));
        ip(&format!("-n {namespace} link set lo up"));
        Host { namespace, address, name: name.into(), folder: self.folder().into() }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.hosts.iter().for_each(|namespace| remove(namespace));
    }
}

impl Host {
    /// Its name within the lab.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs on this host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }

    /// Starts a program on this host; its output goes to `HOST-NAME.log` in the lab's folder. `ip netns exec` is
    /// replaced by the program, so the process id is the program's own.
    pub fn start(&self, name: &str, program: &str, args: &[&str]) -> Process {
        Process::start(&self.folder, &format!("{}-{name}", self.name), self.command(program).args(args))
    }

    /// Starts the binary under test on this host.
    pub fn tributary(&self, name: &str, args: &[&str]) -> Process {
        self.start(name, binary().to_str().expect("a path in UTF-8"), args)
    }

    /// A file of this host in the lab's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}-{name}", self.name))
    }

    /// Cuts the host off until the guard is dropped.
    #[must_use = "the host is back when the guard is dropped"]
    pub fn cut(&self, cut: Cut) -> CutOff {
        let input = match cut {
            Cut::Drop | Cut::DropIncoming => "iifname \"eth0\" drop",
            Cut::Reject => "iifname \"eth0\" meta l4proto tcp reject with tcp reset",
            Cut::DropOutgoing => "",
        };
        let output = match cut {
            Cut::Drop | Cut::DropOutgoing => "oifname \"eth0\" drop",
            Cut::DropIncoming | Cut::Reject => "",
        };
        self.filter(&format!(
            "table inet cut {{\n\
             chain in {{\ntype filter hook input priority 0;\n{input}\n}}\n\
             chain out {{\ntype filter hook output priority 0;\n{output}\n}}\n\
             }}\n"
        ));
        CutOff { host: self.clone() }
    }

    /// Feeds rules to nft on this host.
    fn filter(&self, rules: &str) {
        let mut child = self
            .command("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft (scripts/install.sh test)");
        child.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("rules to nft");
        assert!(child.wait().expect("nft").success(), "nft refused on {}:\n{rules}", self.name);
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        // Not `run`: a failure here, while a test already fails, must not end the whole test process.
        let table = ["delete", "table", "inet", "cut"];
        let status = self.host.command("nft").args(table).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("{}: the cut could not be lifted", self.host.name);
        }
    }
}

/// Runs `ip` (scripts/install.sh test; labs need root); its standard output.
fn ip(args: &str) -> String {
    run("ip", &args.split(' ').collect::<Vec<_>>())
}

/// Kills what runs in a namespace and deletes it; never panics, because it also runs while a test fails.
fn remove(namespace: &str) {
    let pids = Command::new("ip").args(["netns", "pids", namespace]).output();
    let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.parse().ok()) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
    let deleted = Command::new("ip").args(["netns", "delete", namespace]).status();
    if !deleted.is_ok_and(|status| status.success()) {
        eprintln!("namespace {namespace} could not be deleted");
    }
}

/// Removes what test processes left that did not live to clean up (kill -9).
fn sweep() {
    for line in ip("netns list").lines() {
        let namespace = line.split(' ').next().unwrap_or_default();
        let Some(owner) = namespace.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if !is_test_process(owner) {
            eprintln!("removing {namespace}, left by an earlier run");
            remove(namespace);
        }
    }
}

fn is_test_process(pid: &str) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("integration"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{LIMIT, wait_for};

    /// Whether one host reaches another, by one ping that waits a second.
    fn reaches(from: &Host, to: &Host) -> bool {
        let script = format!("exec 3<>/dev/tcp/{}/9", to.address);
        let mut probe = from.start("probe", "timeout", &["1", "bash", "-c", &script]);
        probe.wait_at_most(LIMIT);
        // Nobody listens on port 9: a host that is there answers with a refusal.
        probe.output().contains("refused")
    }

    #[test]
    fn hosts_reach_each_other_until_cut_and_again_after() {
        let mut lab = Lab::new();
        let (a, b) = (lab.host("a"), lab.host("b"));
        assert!(reaches(&a, &b) && reaches(&b, &a));
        for cut in [Cut::Drop, Cut::DropIncoming, Cut::DropOutgoing] {
            let cut_off = b.cut(cut);
            std::fs::remove_file(a.file("probe.log")).expect("log of the probe");
            assert!(!reaches(&a, &b), "{cut:?}");
            drop(cut_off);
            assert!(reaches(&a, &b), "after {cut:?}");
        }
        let rejecting = b.cut(Cut::Reject);
        std::fs::remove_file(a.file("probe.log")).expect("log of the probe");
        assert!(reaches(&a, &b), "a rejecting host answers");
        drop(rejecting);
    }

    #[test]
    fn nothing_is_left_when_a_test_panics() {
        let panicked = std::thread::spawn(|| {
            let mut lab = Lab::new();
            let host = lab.host("a");
            // In a session of its own and without a guard: only the lab can end it.
            host.start("sleep", "setsid", &["-f", "sleep", "600"]).wait_at_most(LIMIT);
            let pid = wait_for("the sleeper", || {
                ip(&format!("netns pids {}", host.namespace)).lines().next().map(str::to_owned)
            });
            std::panic::panic_any((lab.name.clone(), pid));
        });
        let payload = panicked.join().expect_err("the panic");
        let (name, pid) = payload.downcast_ref::<(String, String)>().expect("name and process");
        assert!(!ip("netns list").contains(name.as_str()));
        wait_for("the end of the sleeper", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    }
}
