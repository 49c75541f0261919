//! The only decompressor of the forward protocol, with a cap on what comes out.

use std::io::Read;

use flate2::bufread::MultiGzDecoder;

/// Why compressed entries could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// The bytes are not gzip, or cut off, or their checksum is wrong.
    #[error("bad gzip data: {0}")]
    Gzip(String),
    /// More comes out than `decompression_size_limit` allows.
    #[error("decompressed data is larger than decompression_size_limit ({limit_bytes} bytes)")]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
}

/// Decompresses gzip members, one after the other, up to `limit_bytes` in all. No bytes at all are no members.
pub(super) fn gunzip(data: &[u8], limit_bytes: u64) -> Result<Vec<u8>, InflateError> {
    let mut out = Vec::new();
    if data.is_empty() {
        return Ok(out);
    }
    // One byte more than allowed tells "too large" from "just fits" without inflating the rest of a bomb.
    MultiGzDecoder::new(data)
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut out)
        .map_err(|error| InflateError::Gzip(error.to_string()))?;
    if out.len() as u64 > limit_bytes {
        return Err(InflateError::TooLarge { limit_bytes });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn member(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn members_are_joined_up_to_the_limit() {
        let data = [member(b"abc"), member(b""), member(b"def")].concat();
        assert_eq!(gunzip(&data, 6), Ok(b"abcdef".to_vec()));
        assert_eq!(gunzip(&data, 5), Err(InflateError::TooLarge { limit_bytes: 5 }));
        assert_eq!(gunzip(b"", 5), Ok(vec![]));
        let bomb = member(&vec![0; 10_000_000]);
        assert_eq!(gunzip(&bomb, 1000), Err(InflateError::TooLarge { limit_bytes: 1000 }));
    }

    #[test]
    fn broken_data_is_an_error() {
        let good = member(b"abc");
        for cut in 1..good.len() {
            assert!(matches!(gunzip(&good[..cut], 100), Err(InflateError::Gzip(_))), "cut at {cut}");
        }
        assert!(matches!(gunzip(&[&good[..], b"junk"].concat(), 100), Err(InflateError::Gzip(_))));
        let mut wrong = good.clone();
        let at = wrong.len() - 6;
        wrong[at] ^= 1;
        assert!(matches!(gunzip(&wrong, 100), Err(InflateError::Gzip(_))));
    }
}
