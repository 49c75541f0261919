//! One msgpack token at a time, borrowing, for writers that need no `Value`.

use crate::event::msgpack::{self, Head, Stop};

/// A scalar, or the head of a container whose parts follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// nil
    Nil,
    /// true, false
    Bool(bool),
    /// A negative integer, or a positive one that fits.
    Int(i64),
    /// An integer above `i64::MAX`.
    UInt(u64),
    /// A float; 32 bits are widened, as Ruby does.
    Float(f64),
    /// str
    Str(&'a [u8]),
    /// bin
    Bin(&'a [u8]),
    /// An array of that many values.
    Array(u32),
    /// A map of that many pairs.
    Map(u32),
    /// ext; only EventTime's type passes the shape scan.
    Ext(&'a [u8]),
}

/// A place in msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes that are not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    #[inline]
    fn take(&mut self, start: usize, length: usize) -> Result<&'a [u8], Stop> {
        let end = start.saturating_add(length);
        let taken = self.bytes.get(start..end).ok_or(Stop::Incomplete { needed: end })?;
        self.position = end;
        Ok(taken)
    }

    /// The next token. (Not an iterator: the end of the bytes is an error here.)
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, Stop> {
        // Strings and small numbers are most of what records hold: they skip the table.
        let at = self.position + 1;
        match self.bytes.get(self.position..).unwrap_or_default() {
            [first @ 0xa0..=0xbf, ..] => return self.take(at, usize::from(first & 0x1f)).map(Token::Str),
            [0xd9, length, ..] => return self.take(at + 1, usize::from(*length)).map(Token::Str),
            [0xcd, a, b, ..] => {
                self.position = at + 2;
                return Ok(Token::Int(i64::from(u16::from_be_bytes([*a, *b]))));
            }
            _ => {}
        }
        let (head, at) = msgpack::head(self.bytes, self.position)?;
        self.position = at;
        Ok(match head {
            Head::Nil => Token::Nil,
            Head::Bool(value) => Token::Bool(value),
            Head::Int(value) => Token::Int(value),
            Head::UInt(value) => Token::UInt(value),
            Head::Float(value) => Token::Float(value),
            Head::Array(length) => Token::Array(length),
            Head::Map(length) => Token::Map(length),
            Head::Str(length) => Token::Str(self.take(at, length)?),
            Head::Bin(length) => Token::Bin(self.take(at, length)?),
            Head::Ext(_, length) => Token::Ext(self.take(at, length)?),
        })
    }

    /// Passes over one value with everything in it.
    pub fn skip(&mut self) -> Result<(), Stop> {
        self.position = msgpack::skip(self.bytes, self.position)?;
        Ok(())
    }
}
