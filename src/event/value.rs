//! A decoded record, for the few stations that look inside.

/// One msgpack value, owned. Strings are bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// nil
    Nil,
    /// true, false
    Bool(bool),
    /// A negative integer, or any integer that fits.
    Int(i64),
    /// An integer above `i64::MAX`.
    UInt(u64),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// str; not necessarily UTF-8.
    Str(Vec<u8>),
    /// bin
    Bin(Vec<u8>),
    /// array
    Array(Vec<Value>),
    /// map, in the order of the wire, keys of any kind.
    Map(Vec<(Value, Value)>),
    /// ext: type and data; type 0 with 8 bytes is an EventTime.
    Ext(i8, Vec<u8>),
}
