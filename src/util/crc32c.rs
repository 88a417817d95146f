//! CRC-32C (Castagnoli), which TFRecord files are checked by.

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The checksum as TFRecord stores it: rotated and shifted, because a CRC of data that contains CRCs is weak
/// (tensorflow/core/lib/hash/crc32c.h).
pub(crate) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(byte)) & 0xFF) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720, B.4.
    #[test]
    fn checksums_are_those_of_the_rfc() {
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46DD_794E);
    }
}
