//! The background look at one upstream: connects, datagrams, and the question that a mute peer has to answer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep, timeout};

use super::exchange::PeerAcks;
use super::health::Evidence;
use super::message::Message;
use super::node::{Node, Roster};
use super::upstream::ProbeKind;
use crate::forward::ack::AckReader;
use crate::net::dial::{self, DialOptions};

/// Limit of the answer to an empty message. A peer that needs longer is no help to a flow.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
/// Heartbeat datagrams that may get lost in a row: one lost datagram is no news.
const DATAGRAMS_LOST_MAX: u32 = 3;

/// Probes until the task is ended.
pub async fn watch(node: Arc<Node>, roster: Arc<Roster>) {
    let interval = node.settings.health.heartbeat_interval;
    let mut lost_datagrams = 0;
    loop {
        sleep(interval).await;
        let started = Instant::now();
        let kind = roster.fleet().probe_kind(node.id, started);
        match kind {
            ProbeKind::Nothing => {}
            ProbeKind::Connect => connect(&node, started).await,
            ProbeKind::Datagram => match datagram(node.address, interval).await {
                Ok(()) => {
                    lost_datagrams = 0;
                    node.observe(Evidence::Reachable, "heartbeat");
                }
                Err(error) => {
                    lost_datagrams += 1;
                    if lost_datagrams >= DATAGRAMS_LOST_MAX {
                        node.probe_failed(started, &format!("no answer to udp heartbeats: {error}"));
                    }
                }
            },
            ProbeKind::Ask => match ask(&node).await {
                Answer::Given => node.observe(Evidence::Answered, "answer to an empty message"),
                Answer::Missing => roster.fleet().ask_failed(node.id, Instant::now()),
                Answer::Unreachable(error) => node.probe_failed(started, &error),
            },
        }
    }
}

/// Connect and close, as Fluentd's `transport` heartbeat does.
async fn connect(node: &Node, started: Instant) {
    let options = dial_options(node);
    let dialing = dial::dial(node.address, &options);
    tokio::pin!(dialing);
    let result = match timeout(node.settings.hedge_after, &mut dialing).await {
        Ok(result) => result,
        Err(_) => {
            node.observe(Evidence::Slow, "slow connect");
            dialing.await
        }
    };
    match result {
        Ok(_stream) => node.observe(Evidence::Reachable, "heartbeat"),
        Err(error) => node.probe_failed(started, &error.to_string()),
    }
}

/// One zero byte there, any datagram back.
async fn datagram(address: SocketAddr, interval: Duration) -> io::Result<()> {
    let local: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(address).await?;
    socket.send(&[0]).await?;
    let mut answer = [0; 128];
    let limit = interval.max(Duration::from_millis(500));
    timeout(limit, socket.recv(&mut answer))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(())
}

/// Whether the peer acknowledges a message without events (or, never having acknowledged anything, reads it to the
/// end and closes). Connecting proves nothing for a peer that hangs (F9), and a real chunk would be stuck with it.
async fn ask(node: &Node) -> Answer {
    let Some(tag) = node.last_tag() else { return Answer::Missing };
    let mut stream = match dial::dial(node.address, &dial_options(node)).await {
        Ok(stream) => stream,
        Err(error) => return Answer::Unreachable(error.to_string()),
    };
    let message = Message::empty(&tag);
    let conversation = converse(&mut stream, node.peer_acks(), &message);
    let answered = matches!(timeout(ASK_DEADLINE, conversation).await, Ok(Ok(true)));
    dial::reset_on_close(&stream);
    if answered { Answer::Given } else { Answer::Missing }
}

/// What a mute peer did when it was asked.
enum Answer {
    Given,
    Missing,
    /// It cannot even be connected to any more.
    Unreachable(String),
}

async fn converse(stream: &mut TcpStream, acks: PeerAcks, message: &Message) -> io::Result<bool> {
    for piece in &message.pieces {
        stream.write_all(piece).await?;
    }
    if acks != PeerAcks::Acks {
        socket2::SockRef::from(&*stream).shutdown(Shutdown::Write)?;
    }
    let mut reader = AckReader::default();
    let mut buffer = [0; 1024];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(acks != PeerAcks::Acks);
        }
        reader.push(buffer.get(..length).unwrap_or_default());
        match reader.next_ack() {
            Ok(Some(text)) => return Ok(text == message.ack),
            Ok(None) => {}
            Err(_) => return Ok(false),
        }
    }
}

/// How this node is dialled.
pub fn dial_options(node: &Node) -> DialOptions {
    DialOptions {
        connect_deadline: node.settings.connect_deadline,
        user_timeout: Some(node.settings.exchange.progress_deadline),
    }
}
