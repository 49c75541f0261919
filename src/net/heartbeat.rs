//! UDP that answers from the address that was asked, also on a socket bound to every address: a sender with a
//! connected socket (Fluentd's UDP heartbeat) takes no answer from any other.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Longest datagram that is looked at (Fluentd reads as much); the rest of a longer one is cut off by the system.
const DATAGRAM_BYTES: usize = 128;

/// One datagram, as far as an answer needs it.
#[derive(Debug)]
pub struct Ask {
    peer: SockaddrStorage,
    /// The local address it was sent to; `None` if the system did not say, then the system chooses.
    local: Option<ControlMessageOwned>,
}

/// A UDP socket that knows for each datagram which local address it was sent to.
#[derive(Debug)]
pub struct HeartbeatSocket(UdpSocket);

impl HeartbeatSocket {
    /// Binds; inside the tokio runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        UdpSocket::from_std(socket.into()).map(Self)
    }

    /// Waits for a datagram of any content. Cancel safe.
    pub async fn receive(&self) -> io::Result<Ask> {
        self.0.async_io(Interest::READABLE, || self.try_receive()).await
    }

    fn try_receive(&self) -> io::Result<Ask> {
        let mut data = [0; DATAGRAM_BYTES];
        let mut parts = [IoSliceMut::new(&mut data)];
        // Room for one packet info of either family.
        let mut control = [0; 128];
        let fd = self.0.as_raw_fd();
        let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
        let peer = message.address.ok_or_else(|| io::Error::other("datagram without a source address"))?;
        let local = message.cmsgs().ok().and_then(|mut all| {
            all.find(|item| {
                matches!(
                    item,
                    ControlMessageOwned::Ipv4PacketInfo(_) | ControlMessageOwned::Ipv6PacketInfo(_)
                )
            })
        });
        Ok(Ask { peer, local })
    }

    /// Answers with these bytes. A full send buffer drops the answer, as the network might.
    pub fn answer(&self, ask: &Ask, data: &[u8]) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        let parts = [IoSlice::new(data)];
        let send = |control: &[ControlMessage]| {
            sendmsg(fd, &parts, control, MsgFlags::MSG_DONTWAIT, Some(&ask.peer))
                .map(drop)
                .map_err(io::Error::from)
        };
        match &ask.local {
            Some(ControlMessageOwned::Ipv4PacketInfo(info)) => {
                let mut info = *info;
                // The route decides the interface; only the source address is prescribed.
                info.ipi_ifindex = 0;
                send(&[ControlMessage::Ipv4PacketInfo(&info)])
            }
            Some(ControlMessageOwned::Ipv6PacketInfo(info)) => send(&[ControlMessage::Ipv6PacketInfo(info)]),
            _ => send(&[]),
        }
    }

    /// Where it is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 127.0.0.2 is asked on a socket bound to all addresses; a connected client sees only answers from there.
    #[tokio::test]
    async fn answers_from_the_address_that_was_asked() {
        let socket = HeartbeatSocket::bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        for asked in ["127.0.0.1", "127.0.0.2"] {
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.connect((asked, port)).await.unwrap();
            client.send(&[7; 200]).await.unwrap();
            let ask = socket.receive().await.unwrap();
            socket.answer(&ask, &[0]).unwrap();
            let mut answer = [9; 8];
            let length = client.recv(&mut answer).await.unwrap();
            assert_eq!((length, answer[0]), (1, 0), "{asked}");
        }
    }

    #[tokio::test]
    async fn answers_over_ipv6() {
        let interfaces = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        if !interfaces.contains("00000000000000000000000000000001") {
            println!("this machine has no IPv6 loopback address");
            return;
        }
        let socket = HeartbeatSocket::bind("[::]:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        let dual =
            std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "0");
        let mut asked = vec![("[::1]:0", "::1")];
        asked.extend(dual.then_some(("127.0.0.1:0", "127.0.0.2")));
        for (own, asked) in asked {
            let client = UdpSocket::bind(own).await.unwrap();
            client.connect((asked, port)).await.unwrap();
            client.send(&[0]).await.unwrap();
            let ask = socket.receive().await.unwrap();
            socket.answer(&ask, &[0]).unwrap();
            assert_eq!(client.recv(&mut [0; 8]).await.unwrap(), 1, "{asked}");
        }
    }
}
