//! An answer, put by: a small one in memory, a larger one in a file of its own that goes with it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use duck_contract::query::{WRITE_HEADER, WriteReport};
use duck_contract::{Code, Format};
use futures::stream::{self, Stream, StreamExt};
use http_body_util::BodyExt;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::space::{Full, Room};
use crate::fault::Fault;
use crate::query::{Answer, Rows, counts};
use crate::results::Relay;

/// An answer up to this size stays in memory. Room for it is taken before the statement starts, so that a change that was made is
/// never reported as failed for want of room, or of a disk.
pub(super) const SMALL_BYTES: u64 = 16 << 10;
/// What is written or read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A whole answer. It takes room, and perhaps a file, until this is dropped.
pub struct Kept {
    /// How it is encoded.
    pub format: Format,
    /// How many rows there are.
    pub row_count: u64,
    /// Whether there were more.
    pub truncated: bool,
    /// What was changed.
    pub write: Option<WriteReport>,
    /// Its size.
    pub bytes: u64,
    place: Place,
    _room: Room,
}

enum Place {
    Memory(Bytes),
    File(Named),
}

/// A file that is removed when this is dropped.
struct Named(PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the file of an answer was not removed");
        }
    }
}

/// Puts an answer by as fast as it comes. Until then slot, lease and engine are held.
pub(super) async fn put(answer: Answer, room: Room, path: PathBuf, bytes_max: u64) -> Result<Kept, Fault> {
    let mut spool = Spool { room, path, bytes_max, bytes: 0, buffer: BytesMut::new(), file: None };
    let mut write = answer.write;
    let counts = match answer.rows {
        Rows::Whole(bytes) => {
            spool.put(&bytes).await?;
            answer.counts
        }
        Rows::Streamed(stream) => {
            let mut relay = Relay::new(stream);
            let mut end = None;
            while let Some(frame) = relay.frame().await {
                match frame.map_err(|broken| broken.0)?.into_data() {
                    Ok(data) => spool.put(&data).await.inspect_err(|fault| relay.abandon(fault))?,
                    Err(frame) => {
                        end = frame.into_trailers().ok();
                        break;
                    }
                }
            }
            let told = end.as_ref().and_then(|end| end.get(WRITE_HEADER));
            write = told.and_then(|told| serde_json::from_slice(told.as_bytes()).ok());
            end.as_ref().and_then(counts)
        }
    };
    let internal = || Fault::new(Code::Internal, "The answer came without its counts.");
    let (row_count, truncated) = counts.ok_or_else(internal)?;
    let kept = spool.close(answer.format, row_count, truncated).await?;
    Ok(Kept { write, ..kept })
}

struct Spool {
    room: Room,
    path: PathBuf,
    bytes_max: u64,
    bytes: u64,
    buffer: BytesMut,
    file: Option<(File, Named)>,
}

impl Spool {
    async fn put(&mut self, data: &[u8]) -> Result<(), Fault> {
        self.bytes += data.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        self.room.grow(self.bytes).map_err(full)?;
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= PIECE_BYTES {
            self.write().await.map_err(unwritten)?;
        }
        Ok(())
    }

    async fn write(&mut self) -> io::Result<()> {
        let (file, _) = match &mut self.file {
            Some(file) => file,
            none => {
                let named = Named(self.path.clone());
                none.insert((File::create(&self.path).await?, named))
            }
        };
        file.write_all(&self.buffer).await?;
        self.buffer.clear();
        Ok(())
    }

    async fn close(mut self, format: Format, row_count: u64, truncated: bool) -> Result<Kept, Fault> {
        if self.file.is_some() || self.bytes > SMALL_BYTES {
            self.write().await.map_err(unwritten)?;
        }
        let place = match self.file {
            // What a file could not take is said only here.
            Some((mut file, named)) => {
                file.flush().await.map_err(unwritten)?;
                Place::File(named)
            }
            None => Place::Memory(Bytes::copy_from_slice(&self.buffer)),
        };
        self.room.shrink(self.bytes);
        Ok(Kept { format, row_count, truncated, write: None, bytes: self.bytes, place, _room: self.room })
    }
}

fn too_large(bytes_max: u64) -> Fault {
    let sentence = format!(
        "The answer is larger than the {bytes_max} bytes that are kept of one. Ask for fewer rows, or send the statement to /query."
    );
    Fault::new(Code::ResultTooLarge, sentence)
}

fn full(whose: Full) -> Fault {
    let sentence = match whose {
        Full::Tenant => "This workspace's kept answers leave no room for this one. Delete what was fetched.",
        Full::Server => "The kept answers of all workspaces leave no room for this one.",
    };
    Fault::new(Code::ResultNotKept, sentence)
}

fn unwritten(cause: io::Error) -> Fault {
    Fault::new(Code::ResultNotKept, "The answer could not be written to this server's disk.").because(cause)
}

impl Kept {
    /// The bytes. Whoever reads them keeps the answer, whatever becomes of the statement meanwhile.
    pub async fn read(
        self: Arc<Self>,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, Fault> {
        let lost = |e| Fault::new(Code::Internal, "The kept answer could not be read.").because(e);
        Ok(match &self.place {
            Place::Memory(bytes) => stream::iter([Ok(bytes.clone())]).left_stream(),
            Place::File(named) => {
                let file = File::open(&named.0).await.map_err(lost)?;
                stream::try_unfold((file, self.clone()), |(mut file, kept)| async move {
                    let mut piece = BytesMut::with_capacity(PIECE_BYTES);
                    let read = file.read_buf(&mut piece).await?;
                    Ok((read > 0).then(|| (piece.freeze(), (file, kept))))
                })
                .right_stream()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::space::Space;
    use super::*;
    use futures::TryStreamExt;

    const MIB: u64 = 1 << 20;

    async fn keep(space: &Space, path: PathBuf, size: usize, bytes_max: u64) -> Result<Kept, Fault> {
        let room = space.room("a", SMALL_BYTES).unwrap();
        let rows = Rows::Whole(Bytes::from(vec![7; size]));
        put(
            Answer { format: Format::Json, counts: Some((1, false)), write: None, affected: None, rows },
            room,
            path,
            bytes_max,
        )
        .await
    }

    #[tokio::test]
    async fn what_was_put_by_is_read_back_and_leaves_nothing() {
        let (folder, space) = (tempfile::tempdir().unwrap(), Space::new(8 * MIB, 4 * MIB));
        for size in [0, 1, 16 << 10, (16 << 10) + 1, 256 << 10, 3 << 20] {
            let kept = Arc::new(keep(&space, folder.path().join("x"), size, 4 * MIB).await.unwrap());
            assert_eq!((kept.bytes, space.bytes()), (size as u64, size as u64));
            assert_eq!(folder.path().join("x").exists(), size > 16 << 10, "{size}");
            let pieces: Vec<Bytes> = kept.clone().read().await.unwrap().try_collect().await.unwrap();
            assert!(pieces.concat() == vec![7; size], "{size}");
            drop(kept);
            assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
            assert_eq!(space.bytes(), 0);
        }
    }

    #[tokio::test]
    async fn what_is_too_much_is_refused_by_name_and_leaves_nothing() {
        let (folder, space) = (tempfile::tempdir().unwrap(), Space::new(2 * MIB, 2 * MIB));
        let code = async |size, bytes_max| {
            keep(&space, folder.path().join("x"), size, bytes_max).await.err().map(|fault| fault.code)
        };
        assert_eq!(code(1 << 20, MIB).await, None);
        assert_eq!(code((1 << 20) + 1, MIB).await, Some(Code::ResultTooLarge));
        assert_eq!(code(3 << 20, 4 * MIB).await, Some(Code::ResultNotKept));
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        assert_eq!(space.bytes(), 0);
    }

    #[tokio::test]
    async fn a_full_disk_is_said_and_fails_no_small_answer() {
        let (folder, space) = (tempfile::tempdir().unwrap(), Space::new(8 * MIB, 8 * MIB));
        let full = folder.path().join("x");
        for size in [(16 << 10) + 1, 256 << 10, 3 << 20] {
            std::os::unix::fs::symlink("/dev/full", &full).unwrap();
            let fault = keep(&space, full.clone(), size, 8 * MIB).await.err().unwrap();
            assert_eq!(fault.code, Code::ResultNotKept, "{size}");
            assert!(fault.chain().contains("No space left"), "{}", fault.chain());
            assert!(std::fs::symlink_metadata(&full).is_err(), "the file stays");
        }
        assert!(keep(&space, full, 16 << 10, 8 * MIB).await.is_ok());
        assert_eq!(space.bytes(), 0);
    }
}
