//! The laboratory: several hosts on one machine, cut off, frozen and judged.
//!
//! A host is a network namespace with one address, joined to the others through a bridge in a namespace of its own, so
//! that nothing of a lab touches the machine's network and labs can run side by side. Needs root, `ip` and `nft`
//! (scripts/install.sh). A scenario is a few lines: hosts, processes on them, a generator, a cut, bounds.

mod network;
mod scenario;
mod timeline;
mod upstream_lost;
