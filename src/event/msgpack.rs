//! Reading and skipping msgpack without allocation.
