//! All upstreams of one output and who takes the next chunk. Pure: every decision is over a `now`.
//!
//! An upstream is an address. A server whose name has N addresses is N upstreams that share its weight (F2); those
//! in the rotation share all of it, so a name with an unreachable IPv6 address keeps the share that Fluentd gives it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::time::Instant;

use super::balancer::{Balancer, Candidate};
use super::health::{Change, Evidence, Health, HealthPolicy, HeartbeatKind, Standing};

/// Weights are multiplied by this before they are divided among the addresses of a name; divisible by 1 to 10.
const WEIGHT_SCALE: u64 = 5040;

/// Addresses of one name beyond this many are left out: a broken DNS answer must not open thousands of probes.
pub const ADDRESSES_PER_SERVER_MAX: usize = 64;

/// Lost addresses whose health is remembered after they vanished from the name: a name server that hands out changing
/// parts of its list must not bring a dead address back as a healthy one each time.
const FORMER_MAX: usize = 256;

/// A configured `<server>`.
#[derive(Clone, Debug)]
pub struct Server {
    /// `name`, else `host:port`; what the log says.
    pub name: String,
    /// `weight`; 0 is never used.
    pub weight: u64,
    /// `standby`.
    pub standby: bool,
}

/// The right to give one chunk to an upstream; given back with [`Fleet::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which upstream.
    pub upstream: u64,
    /// Which chunk of it.
    pub token: u64,
}

/// Who takes the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// This one.
    Take(Choice),
    /// A regular one, but not yet: see [`REGULAR_CHUNKS_MAX`]. Ask again when a chunk is finished, or soon.
    Later,
    /// Nobody.
    Nobody,
}

/// Unfinished chunks at one regular upstream while a standby is ready. All of the flush slots (4 per thread) at one
/// upstream that stops answering would keep the standby idle until the ack deadline.
const REGULAR_CHUNKS_MAX: usize = 3;

/// What a probe of an upstream should do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// Nothing: it proved itself otherwise, or probes are off.
    Nothing,
    /// Connect and close.
    Connect,
    /// One datagram.
    Datagram,
    /// An empty message that must be acknowledged.
    Ask,
}

/// Upstreams that appeared and vanished with a new list of addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddressChanges {
    /// New ones with their addresses.
    pub added: Vec<(u64, SocketAddr)>,
    /// Gone ones: no new chunks, what is in flight may finish.
    pub removed: Vec<u64>,
}

/// Preference for the next chunk, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Regular, or a standby that replaces lost weight.
    Regular,
    /// A standby that is not needed yet.
    ReadyStandby,
    Suspect,
    SuspectStandby,
    Probing,
}

#[derive(Debug)]
struct Member {
    id: u64,
    server: usize,
    address: SocketAddr,
    health: Health,
    /// Token and start of each unfinished chunk, oldest first.
    outstanding: Vec<(u64, Instant)>,
    /// When it last took bytes or confirmed a chunk.
    sign_at: Option<Instant>,
}

impl Member {
    fn is_late(&self, now: Instant, policy: &HealthPolicy) -> bool {
        // A large chunk on a slow line takes its time, but its bytes move all the while.
        let late = |since: Instant| now.saturating_duration_since(since) >= policy.suspect_after;
        self.outstanding.first().is_some_and(|(_, since)| late(*since)) && self.sign_at.is_none_or(late)
    }

    fn is_well(&self, now: Instant, policy: &HealthPolicy) -> bool {
        self.health.is_up() && !self.is_late(now, policy)
    }
}

/// The upstreams of one output.
#[derive(Debug)]
pub struct Fleet {
    policy: HealthPolicy,
    servers: Vec<Server>,
    members: Vec<Member>,
    former: VecDeque<(usize, SocketAddr, Health)>,
    balancer: Balancer,
    next: u64,
}

impl Fleet {
    /// A fleet without addresses; see [`Fleet::set_addresses`].
    pub fn new(policy: HealthPolicy, servers: Vec<Server>) -> Self {
        Self {
            policy,
            servers,
            members: Vec::new(),
            former: VecDeque::new(),
            balancer: Balancer::default(),
            next: 0,
        }
    }

    /// The configured servers, in the order of the configuration.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The addresses of a server are now these. Known ones keep their health.
    pub fn set_addresses(&mut self, server: usize, addresses: &[SocketAddr]) -> AddressChanges {
        let mut wanted: Vec<SocketAddr> = Vec::new();
        for address in addresses {
            if !wanted.contains(address) && wanted.len() < ADDRESSES_PER_SERVER_MAX {
                wanted.push(*address);
            }
        }
        let mut changes = AddressChanges::default();
        let (balancer, former) = (&mut self.balancer, &mut self.former);
        self.members.retain_mut(|member| {
            if member.server != server {
                return true;
            }
            let stays = wanted.contains(&member.address);
            if !stays {
                balancer.forget(member.id);
                changes.removed.push(member.id);
                if !member.health.in_rotation() {
                    former.push_back((server, member.address, member.health.clone()));
                }
            }
            stays
        });
        while self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
        for address in wanted {
            if !self.members.iter().any(|member| member.server == server && member.address == address) {
                let id = self.fresh();
                let known = self.former.iter().position(|(of, at, _)| *of == server && *at == address);
                let health = known.and_then(|index| self.former.remove(index)).map(|(_, _, health)| health);
                self.members.push(Member {
                    id,
                    server,
                    address,
                    health: health.unwrap_or_default(),
                    outstanding: Vec::new(),
                    sign_at: None,
                });
                changes.added.push((id, address));
            }
        }
        changes
    }

    /// The upstream for the next chunk, none of `exclude`. It counts as busy until the choice is released.
    pub fn pick(&mut self, now: Instant, exclude: &[u64]) -> Pick {
        let ranks = self.ranks(now, exclude);
        let Some(best) = ranks.iter().flatten().min().copied() else { return Pick::Nobody };
        let standby_waits = best == Rank::Regular && ranks.contains(&Some(Rank::ReadyStandby));
        let candidates: Vec<Candidate> = self
            .members
            .iter()
            .zip(&ranks)
            .filter(|(_, rank)| **rank == Some(best))
            .map(|(member, _)| Candidate {
                id: member.id,
                weight: self.share(member),
                outstanding: member.outstanding.len(),
            })
            .filter(|candidate| !standby_waits || candidate.outstanding < REGULAR_CHUNKS_MAX)
            .collect();
        let Some(upstream) = self.balancer.choose(&candidates) else { return Pick::Later };
        let token = self.fresh();
        if let Some(member) = self.member_mut(upstream) {
            member.outstanding.push((token, now));
        }
        Pick::Take(Choice { upstream, token })
    }

    /// The chunk of this choice is finished, in whatever way.
    pub fn release(&mut self, choice: Choice) {
        if let Some(member) = self.member_mut(choice.upstream) {
            member.outstanding.retain(|(token, _)| *token != choice.token);
        }
    }

    /// Takes evidence about an upstream in. Evidence about one that is gone is ignored.
    pub fn observe(&mut self, upstream: u64, evidence: Evidence, now: Instant) -> Option<Change> {
        let alone = !self
            .members
            .iter()
            .any(|other| other.id != upstream && self.is_used(other) && other.is_well(now, &self.policy));
        let policy = self.policy;
        let member = self.member_mut(upstream)?;
        if evidence == Evidence::Confirmed {
            member.sign_at = Some(now);
        }
        let change = member.health.observe(evidence, now, alone, &policy);
        if change == Some(Change::Detached) {
            self.balancer.forget(upstream);
        }
        change
    }

    /// The upstream took bytes of a chunk.
    pub fn progressed(&mut self, upstream: u64, now: Instant) {
        if let Some(member) = self.member_mut(upstream) {
            member.sign_at = Some(now);
        }
    }

    /// A failed probe that began at `started`. A chunk confirmed since then is the stronger evidence.
    pub fn probe_failed(&mut self, upstream: u64, started: Instant, now: Instant) -> Option<Change> {
        let confirmed_at = self.member(upstream)?.health.confirmed_at();
        if confirmed_at.is_some_and(|confirmed| confirmed >= started) {
            return None;
        }
        self.observe(upstream, Evidence::Unreachable, now)
    }

    /// An empty message was not acknowledged.
    pub fn ask_failed(&mut self, upstream: u64, now: Instant) {
        if let Some(member) = self.member_mut(upstream) {
            member.health.ask_failed(now);
        }
    }

    /// What the probe of this upstream should do now; asked every `heartbeat_interval`.
    pub fn probe_kind(&self, upstream: u64, now: Instant) -> ProbeKind {
        let Some(member) = self.member(upstream) else { return ProbeKind::Nothing };
        if self.policy.heartbeat == HeartbeatKind::None || !self.is_used(member) {
            return ProbeKind::Nothing;
        }
        if member.health.is_mute() {
            return if member.health.ask_due(now) { ProbeKind::Ask } else { ProbeKind::Nothing };
        }
        let proved = member.health.confirmed_at().is_some_and(|confirmed| {
            now.saturating_duration_since(confirmed) < self.policy.heartbeat_interval
        });
        match self.policy.heartbeat {
            _ if proved => ProbeKind::Nothing,
            HeartbeatKind::Udp => ProbeKind::Datagram,
            _ => ProbeKind::Connect,
        }
    }

    /// Configured servers of which at least one address is in the rotation.
    pub fn healthy_servers(&self) -> usize {
        (0..self.servers.len()).filter(|server| self.has_rotation(*server)).count()
    }

    /// Preference of each member for the next chunk; `None` must not be used.
    fn ranks(&self, now: Instant, exclude: &[u64]) -> Vec<Option<Rank>> {
        let mut lost = self.lost_weight();
        self.members
            .iter()
            .map(|member| {
                let standing = self.standing(member, now);
                let standby = self.is_standby(member);
                // Standby servers join in order until they make up for the weight that is lost.
                let joins = !standby || lost > 0;
                if standby && standing <= Standing::Trial {
                    lost = lost.saturating_sub(self.share(member));
                }
                if !self.is_used(member) || exclude.contains(&member.id) {
                    return None;
                }
                match (standing, joins) {
                    (Standing::Trial, _) if !member.outstanding.is_empty() => None,
                    (Standing::Up | Standing::Trial, true) => Some(Rank::Regular),
                    (Standing::Up | Standing::Trial, false) => Some(Rank::ReadyStandby),
                    (Standing::Suspect, _) if standby => Some(Rank::SuspectStandby),
                    (Standing::Suspect, _) => Some(Rank::Suspect),
                    (Standing::Probing, _) => Some(Rank::Probing),
                    (Standing::Down, _) => None,
                }
            })
            .collect()
    }

    fn standing(&self, member: &Member, now: Instant) -> Standing {
        let alone = !self
            .members
            .iter()
            .any(|other| other.id != member.id && self.is_used(other) && other.health.in_rotation());
        match member.health.standing(now, alone, &self.policy) {
            Standing::Up if member.is_late(now, &self.policy) => Standing::Suspect,
            standing => standing,
        }
    }

    /// Weight of regular servers of which no address is in the rotation.
    fn lost_weight(&self) -> u64 {
        self.servers
            .iter()
            .enumerate()
            .filter(|(index, server)| !server.standby && !self.has_rotation(*index))
            .map(|(_, server)| server.weight.saturating_mul(WEIGHT_SCALE))
            .fold(0, u64::saturating_add)
    }

    /// The weight of this address: its server's, divided among the addresses that can take a part.
    fn share(&self, member: &Member) -> u64 {
        let of_server = || self.members.iter().filter(|other| other.server == member.server);
        let used = of_server().filter(|other| other.health.in_rotation() || other.id == member.id).count();
        self.weight(member).saturating_mul(WEIGHT_SCALE) / used.max(1) as u64
    }

    fn weight(&self, member: &Member) -> u64 {
        self.servers.get(member.server).map_or(0, |server| server.weight)
    }

    fn is_used(&self, member: &Member) -> bool {
        self.weight(member) > 0
    }

    /// Whether a server has an address in the rotation.
    pub fn has_rotation(&self, server: usize) -> bool {
        self.members.iter().any(|member| member.server == server && member.health.in_rotation())
    }

    fn is_standby(&self, member: &Member) -> bool {
        self.servers.get(member.server).is_some_and(|server| server.standby)
    }

    fn member(&self, id: u64) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    fn member_mut(&mut self, id: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn server(name: &str, weight: u64, standby: bool) -> Server {
        Server { name: name.into(), weight, standby }
    }

    /// One address per server; returns the upstreams' ids in the order of the servers.
    fn fleet(servers: &[Server]) -> (Fleet, Vec<u64>) {
        let policy = HealthPolicy {
            heartbeat: HeartbeatKind::Transport,
            heartbeat_interval: SECOND,
            recover_wait: 10 * SECOND,
            suspect_after: SECOND,
        };
        let mut fleet = Fleet::new(policy, servers.to_vec());
        let ids = (0..servers.len())
            .map(|index| fleet.set_addresses(index, &[address(1000 + index as u16)]).added[0].0)
            .collect();
        (fleet, ids)
    }

    fn three() -> (Fleet, Vec<u64>) {
        fleet(&[server("a", 60, false), server("b", 60, false), server("c", 60, false)])
    }

    fn pick(fleet: &mut Fleet, now: Instant) -> Option<Choice> {
        match fleet.pick(now, &[]) {
            Pick::Take(choice) => Some(choice),
            Pick::Later | Pick::Nobody => None,
        }
    }

    fn pick_and_release(fleet: &mut Fleet, now: Instant, exclude: &[u64]) -> Option<u64> {
        let Pick::Take(choice) = fleet.pick(now, exclude) else { return None };
        fleet.release(choice);
        Some(choice.upstream)
    }

    #[test]
    fn a_down_upstream_gets_nothing_and_the_others_everything() {
        let (mut fleet, ids) = three();
        let now = Instant::now();
        assert_eq!(fleet.observe(ids[1], Evidence::Unreachable, now), Some(Change::Detached));
        let mut taken = [0, 0];
        for _ in 0..100 {
            let chosen = pick_and_release(&mut fleet, now, &[]).expect("two are up");
            assert_ne!(chosen, ids[1]);
            taken[usize::from(chosen == ids[2])] += 1;
        }
        assert_eq!(taken, [50, 50]);
        assert_eq!(fleet.healthy_servers(), 2);
    }

    #[test]
    fn each_upstream_is_offered_at_most_once_per_attempt() {
        let (mut fleet, ids) = three();
        let now = Instant::now();
        let mut tried = Vec::new();
        while let Some(upstream) = pick_and_release(&mut fleet, now, &tried) {
            tried.push(upstream);
        }
        tried.sort_unstable();
        assert_eq!(tried, ids);
    }

    /// F9: one of three hangs. Its chunk stays unfinished; after a second nothing new goes there.
    #[test]
    fn a_late_upstream_gets_nothing_new_while_others_are_well() {
        let (mut fleet, ids) = three();
        let start = Instant::now();
        let stuck = pick(&mut fleet, start).expect("all are up");
        for _ in 0..50 {
            let chosen = pick_and_release(&mut fleet, start + SECOND, &[]).expect("two are well");
            assert_ne!(chosen, stuck.upstream);
        }
        fleet.release(stuck);
        fleet.observe(stuck.upstream, Evidence::Mute, start + 30 * SECOND);
        for second in 31..90 {
            fleet.observe(stuck.upstream, Evidence::Reachable, start + second * SECOND);
            let chosen = pick_and_release(&mut fleet, start + second * SECOND, &[]).expect("two are well");
            assert_ne!(chosen, stuck.upstream, "second {second}: connect probes must not bring it back");
        }
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn when_all_are_late_they_are_used_all_the_same() {
        let (mut fleet, _) = three();
        let start = Instant::now();
        for _ in 0..3 {
            pick(&mut fleet, start).expect("up");
        }
        assert!(pick(&mut fleet, start + 5 * SECOND).is_some());
    }

    #[test]
    fn an_answered_upstream_gets_one_chunk_until_it_is_confirmed() {
        let (mut fleet, ids) = three();
        let now = Instant::now();
        fleet.observe(ids[0], Evidence::Mute, now);
        fleet.observe(ids[0], Evidence::Answered, now);
        let mut trials: Vec<Choice> = (0..9).filter_map(|_| pick(&mut fleet, now)).collect();
        trials.retain(|choice| choice.upstream == ids[0]);
        assert_eq!(trials.len(), 1);
        fleet.observe(ids[0], Evidence::Confirmed, now);
        assert!((0..9).filter_map(|_| pick(&mut fleet, now)).filter(|c| c.upstream == ids[0]).count() > 1);
    }

    #[test]
    fn no_upstream_means_none() {
        let (mut fleet, ids) = three();
        let now = Instant::now();
        for id in &ids {
            fleet.observe(*id, Evidence::Unreachable, now);
        }
        assert_eq!(fleet.pick(now, &[]), Pick::Nobody);
        assert_eq!(fleet.healthy_servers(), 0);
        fleet.observe(ids[2], Evidence::Reachable, now);
        assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[2]), "the first good probe is enough");
    }

    #[test]
    fn the_only_mute_upstream_gets_one_trial_at_a_time() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false)]);
        let now = Instant::now();
        fleet.observe(ids[0], Evidence::Mute, now);
        let trial = pick(&mut fleet, now).expect("nobody else is there");
        assert_eq!(fleet.pick(now, &[]), Pick::Nobody);
        fleet.release(trial);
        assert!(pick(&mut fleet, now).is_some());
    }

    #[test]
    fn standby_is_used_only_while_weight_is_lost() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false), server("b", 60, true), server("c", 60, true)]);
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[0]));
        }
        assert_eq!(pick_and_release(&mut fleet, now, &[ids[0]]), Some(ids[1]), "fail-over reaches a standby");
        fleet.observe(ids[0], Evidence::Unreachable, now);
        for _ in 0..10 {
            assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[1]), "one standby covers the loss");
        }
        fleet.observe(ids[1], Evidence::Unreachable, now);
        assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[2]));
        fleet.observe(ids[0], Evidence::Confirmed, now);
        assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[0]));
    }

    #[test]
    fn weight_zero_is_never_used() {
        let (mut fleet, ids) = fleet(&[server("a", 0, false), server("b", 1, false)]);
        for _ in 0..10 {
            assert_eq!(pick_and_release(&mut fleet, Instant::now(), &[]), Some(ids[1]));
        }
        assert_eq!(pick_and_release(&mut fleet, Instant::now(), &[ids[1]]), None);
    }

    #[test]
    fn addresses_of_a_name_share_its_weight_and_keep_their_health() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false), server("b", 60, false)]);
        let now = Instant::now();
        let changes = fleet.set_addresses(0, &[address(1000), address(2000), address(2001), address(2000)]);
        assert_eq!(changes.added.len(), 2);
        assert!(changes.removed.is_empty());
        let mut taken = std::collections::BTreeMap::new();
        for _ in 0..60 {
            *taken.entry(pick_and_release(&mut fleet, now, &[]).expect("up")).or_insert(0) += 1;
        }
        assert_eq!(taken.get(&ids[1]), Some(&30), "the other server keeps its half");
        assert_eq!(taken.get(&ids[0]), Some(&10));

        fleet.observe(ids[0], Evidence::Unreachable, now);
        let changes = fleet.set_addresses(0, &[address(1000)]);
        assert_eq!(changes.removed.len(), 2);
        assert_eq!(pick_and_release(&mut fleet, now, &[]), Some(ids[1]), "the kept address is still down");
    }

    #[test]
    fn a_failed_probe_does_not_outweigh_a_later_confirmation() {
        let (mut fleet, ids) = three();
        let start = Instant::now();
        fleet.observe(ids[0], Evidence::Confirmed, start + SECOND);
        assert_eq!(fleet.probe_failed(ids[0], start, start + 2 * SECOND), None);
        assert_eq!(
            fleet.probe_failed(ids[0], start + 2 * SECOND, start + 3 * SECOND),
            Some(Change::Detached)
        );
    }

    #[test]
    fn probes_are_what_the_state_needs() {
        let (mut fleet, ids) = three();
        let now = Instant::now();
        assert_eq!(fleet.probe_kind(ids[0], now), ProbeKind::Connect);
        fleet.observe(ids[0], Evidence::Confirmed, now);
        assert_eq!(fleet.probe_kind(ids[0], now), ProbeKind::Nothing);
        fleet.observe(ids[0], Evidence::Mute, now);
        assert_eq!(fleet.probe_kind(ids[0], now), ProbeKind::Nothing);
        assert_eq!(fleet.probe_kind(ids[0], now + SECOND), ProbeKind::Ask);
    }

    /// Four slots, one regular upstream that hangs, one standby: a slot is left, and the standby gets it as soon as the
    /// regular one is late.
    #[test]
    fn a_hanging_regular_upstream_cannot_keep_every_slot_from_the_standby() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false), server("b", 60, true)]);
        let start = Instant::now();
        for _ in 0..REGULAR_CHUNKS_MAX {
            assert_eq!(pick(&mut fleet, start).map(|choice| choice.upstream), Some(ids[0]));
        }
        assert_eq!(fleet.pick(start, &[]), Pick::Later);
        for _ in 0..10 {
            assert_eq!(pick(&mut fleet, start + SECOND).map(|choice| choice.upstream), Some(ids[1]));
        }
    }

    #[test]
    fn a_slow_line_is_not_late_while_bytes_move() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false), server("b", 60, true)]);
        let start = Instant::now();
        assert!(pick(&mut fleet, start).is_some());
        fleet.progressed(ids[0], start + 4 * SECOND);
        let next = pick(&mut fleet, start + 4 * SECOND + SECOND / 2);
        assert_eq!(next.map(|choice| choice.upstream), Some(ids[0]));
        assert_eq!(pick(&mut fleet, start + 5 * SECOND).map(|choice| choice.upstream), Some(ids[1]));
    }

    #[test]
    fn a_lost_address_that_vanishes_and_returns_is_still_lost() {
        let (mut fleet, ids) = fleet(&[server("a", 60, false)]);
        let now = Instant::now();
        fleet.observe(ids[0], Evidence::Unreachable, now);
        fleet.set_addresses(0, &[address(2000)]);
        let returned = fleet.set_addresses(0, &[address(1000), address(2000)]).added[0].0;
        for _ in 0..4 {
            assert_ne!(pick_and_release(&mut fleet, now, &[]), Some(returned));
        }
    }

    fn evidence() -> impl Strategy<Value = Evidence> {
        prop_oneof![
            Just(Evidence::Confirmed),
            Just(Evidence::Reachable),
            Just(Evidence::Answered),
            Just(Evidence::Slow),
            Just(Evidence::Closed),
            Just(Evidence::Unreachable),
            Just(Evidence::Mute),
        ]
    }

    proptest! {
        /// Whatever happens: nobody out of the rotation is chosen while somebody is in it, weight 0 and excluded ones
        /// never, and as long as one upstream is up somebody is chosen.
        #[test]
        fn only_the_usable_are_chosen(
            events in prop::collection::vec((0usize..4, evidence(), 0u64..3000, any::<u8>(), any::<bool>()), 1..120),
        ) {
            let (mut fleet, ids) = fleet(&[
                server("a", 60, false), server("b", 10, false), server("none", 0, false), server("c", 60, true),
            ]);
            let mut now = Instant::now();
            let mut open = Vec::new();
            for (member, evidence, wait, mask, finish) in events {
                now += Duration::from_millis(wait);
                fleet.observe(ids[member], evidence, now);
                if finish && !open.is_empty() {
                    fleet.release(open.remove(0));
                }
                let exclude: Vec<u64> =
                    ids.iter().enumerate().filter(|(i, _)| mask & (3 << (2 * i)) == 0).map(|(_, id)| *id).collect();
                let usable = |fleet: &Fleet, id: u64| id != ids[2] && !exclude.contains(&id)
                    && fleet.member(id).is_some_and(|member| member.health.in_rotation());
                let is_up = |fleet: &Fleet, id: u64| usable(fleet, id)
                    && fleet.member(id).is_some_and(|member| member.health.is_up());
                let (any_usable, any_up) =
                    (ids.iter().any(|id| usable(&fleet, *id)), ids.iter().any(|id| is_up(&fleet, *id)));
                match fleet.pick(now, &exclude) {
                    Pick::Take(choice) => {
                        prop_assert!(!exclude.contains(&choice.upstream) && choice.upstream != ids[2]);
                        // A trial that is taken makes its upstream unusable for the moment.
                        prop_assert!(!any_up || usable(&fleet, choice.upstream)
                            || fleet.member(choice.upstream).is_some_and(|m| m.health.is_mute()));
                        open.push(choice);
                    }
                    Pick::Later => prop_assert!(any_usable),
                    Pick::Nobody => prop_assert!(!any_up),
                }
            }
        }
    }
}
