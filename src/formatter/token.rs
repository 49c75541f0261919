//! One msgpack token at a time from the bytes of a record, borrowing, for writers that need no `Value`.

/// The bytes are not well-formed msgpack. Cannot happen behind the shape scan; disk data is not trusted all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

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
    Array(usize),
    /// A map of that many pairs.
    Map(usize),
    /// ext
    Ext(i8, &'a [u8]),
}

/// A place in msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    fn length(&mut self, width: u8) -> Result<usize, Malformed> {
        Ok(match width {
            1 => usize::from(self.fixed::<1>()?[0]),
            2 => usize::from(u16::from_be_bytes(self.fixed()?)),
            _ => u32::from_be_bytes(self.fixed()?) as usize,
        })
    }

    /// The next token. (Not an iterator: the end of the bytes is an error here.)
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let [marker] = self.fixed::<1>()?;
        match marker {
            0x00..=0x7f => Ok(Token::Int(i64::from(marker))),
            0xa0..=0xbf => Ok(Token::Str(self.take(usize::from(marker & 0x1f))?)),
            0xd9 => {
                let length = self.length(1)?;
                Ok(Token::Str(self.take(length)?))
            }
            0x80..=0x8f => Ok(Token::Map(usize::from(marker & 0x0f))),
            0x90..=0x9f => Ok(Token::Array(usize::from(marker & 0x0f))),
            _ => self.rare_token(marker),
        }
    }

    fn rare_token(&mut self, marker: u8) -> Result<Token<'a>, Malformed> {
        Ok(match marker {
            0xc0 => Token::Nil,
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4..=0xc6 => {
                let length = self.length(1 << (marker - 0xc4))?;
                Token::Bin(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (marker - 0xc7))?;
                self.ext(length)?
            }
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Token::Int(i64::from(u8::from_be_bytes(self.fixed()?))),
            0xcd => Token::Int(i64::from(u16::from_be_bytes(self.fixed()?))),
            0xce => Token::Int(i64::from(u32::from_be_bytes(self.fixed()?))),
            0xcf => {
                let value = u64::from_be_bytes(self.fixed()?);
                i64::try_from(value).map_or(Token::UInt(value), Token::Int)
            }
            0xd0 => Token::Int(i64::from(i8::from_be_bytes(self.fixed()?))),
            0xd1 => Token::Int(i64::from(i16::from_be_bytes(self.fixed()?))),
            0xd2 => Token::Int(i64::from(i32::from_be_bytes(self.fixed()?))),
            0xd3 => Token::Int(i64::from_be_bytes(self.fixed()?)),
            0xd4..=0xd8 => self.ext(1 << (marker - 0xd4))?,
            0xda | 0xdb => {
                let length = self.length(2 << (marker - 0xda))?;
                Token::Str(self.take(length)?)
            }
            0xdc | 0xdd => Token::Array(self.length(2 << (marker - 0xdc))?),
            0xde | 0xdf => Token::Map(self.length(2 << (marker - 0xde))?),
            0xe0..=0xff => Token::Int(i64::from(marker as i8)),
            _ => return Err(Malformed),
        })
    }

    fn ext(&mut self, length: usize) -> Result<Token<'a>, Malformed> {
        let kind = i8::from_be_bytes(self.fixed()?);
        Ok(Token::Ext(kind, self.take(length)?))
    }

    /// Passes over one value with everything in it; no recursion, so depth costs nothing.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut values = 1_usize;
        while values > 0 {
            values -= 1;
            match self.token()? {
                Token::Array(length) => values = values.checked_add(length).ok_or(Malformed)?,
                Token::Map(length) => {
                    values =
                        length.checked_mul(2).and_then(|parts| values.checked_add(parts)).ok_or(Malformed)?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of the next value.
    pub fn value_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let before = self.rest;
        self.skip()?;
        Ok(&before[..before.len() - self.rest.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_and_unknown_bytes_are_malformed() {
        let whole = [0x82, 0xa1, b'a', 0xdc, 0, 1, 0xc3, 0xc7, 1, 5, 9, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Cursor::new(&whole).value_bytes(), Ok(&whole[..]));
        for length in 0..whole.len() {
            assert_eq!(Cursor::new(&whole[..length]).skip(), Err(Malformed), "{length}");
        }
        assert_eq!(Cursor::new(&[0xc1]).token(), Err(Malformed));
        assert_eq!(Cursor::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).skip(), Err(Malformed));
    }
}
