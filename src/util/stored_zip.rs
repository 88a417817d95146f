//! Zip archives whose entries are stored, not compressed: the archives of `torch.save` and of `numpy.savez`. No
//! decompressor is built in, so nothing can expand.

use std::io::{self, Cursor};
use std::ops::Range;

use zip::{CompressionMethod, ZipArchive};

/// An archive within a file in memory.
pub(crate) struct StoredZip<'a> {
    file: &'a [u8],
    archive: ZipArchive<Cursor<&'a [u8]>>,
}

fn failed(error: zip::result::ZipError) -> String {
    format!("not a whole zip archive: {error}")
}

impl<'a> StoredZip<'a> {
    pub fn open(file: &'a [u8]) -> Result<StoredZip<'a>, String> {
        Ok(StoredZip { file, archive: ZipArchive::new(Cursor::new(file)).map_err(failed)? })
    }

    /// Returns the names of the entries that are texts.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.archive.file_names().flatten().map(|name| name.into_owned())
    }

    /// Returns the entries with their names, as slices of the file, in their order. They must be stored uncompressed
    /// (`remedy` says what to do about it), match their CRC-32, have distinct names and not overlap.
    pub fn entries(mut self, remedy: &str) -> Result<Vec<(String, &'a [u8])>, String> {
        if self.archive.has_duplicate_names() || self.archive.has_overlapping_files().map_err(failed)? {
            return Err("damaged: entries of its zip archive have one name or one place".into());
        }
        let mut entries = Vec::new();
        for index in 0..self.archive.len() {
            let mut entry = self.archive.by_index(index).map_err(failed)?;
            let name = entry.name().map_err(failed)?.into_owned();
            if entry.compression() != CompressionMethod::Stored || entry.size() != entry.compressed_size() {
                return Err(format!("{name} is compressed{remedy}"));
            }
            let part = entry.data_start().and_then(|start| place(start, entry.size()));
            let part = part.and_then(|place| self.file.get(place));
            let part = part.ok_or_else(|| format!("damaged: {name} lies outside of the file"))?;
            // Reading an entry to its end compares the checksum.
            io::copy(&mut entry, &mut io::sink()).map_err(|error| format!("damaged: {name}: {error}"))?;
            drop(entry);
            entries.push((name, part));
        }
        Ok(entries)
    }
}

fn place(start: u64, size: u64) -> Option<Range<usize>> {
    Some(usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?)
}
