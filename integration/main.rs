//! One test target for everything that needs processes, sockets or other programs. A missing peer is a failure.
mod cli;
mod clients;
mod crash;
mod judges;
mod lab;
mod support;
mod tidy;
mod vectors;
