//! DuckDB's code and its extensions' in pages of 2 MiB, which all workers share.
//!
//! A process that was just forked finds the code that it needs by one page fault for every 64 KiB, and takes apart at its end what those
//! have made. In large pages there are forty of them at most. Why, and what it costs: docs/decisions/2026-11-30-large-pages.md.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::fs::{MemfdFlags, SealFlags};

/// How the files are called, at their ends.
const ENGINE: [&str; 2] = ["libduckdb.so", ".duckdb_extension"];
const LARGE_BYTES: usize = 2 << 20;
/// `MADV_COLLAPSE` of linux/mman.h, since 6.1.
const COLLAPSE: libc::c_int = 25;

/// Puts the engine's code into large pages, as far as it fills some, and adds up how many bytes that are. Where it cannot be done what is
/// left stays as it is.
pub(crate) fn enlarge(sum: &mut u64) -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    for (from, to) in maps.lines().filter_map(code) {
        let from = from.next_multiple_of(LARGE_BYTES);
        let bytes = (to / LARGE_BYTES * LARGE_BYTES).saturating_sub(from);
        if bytes > 0 {
            replace(from, bytes)?;
        }
        *sum += bytes as u64;
    }
    Ok(())
}

/// From where to where code of the engine is mapped, if this line of `maps` says it.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp"
        && fields.last().is_some_and(|file| ENGINE.iter().any(|end| file.ends_with(end)));
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some((address(from)?, address(to)?))
}

/// Maps the same bytes over those at `at`, from large pages.
fn replace(at: usize, bytes: usize) -> io::Result<()> {
    let mut file =
        File::from(rustix::fs::memfd_create("engine", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    // SAFETY: code that is mapped for as long as this process lives, and that nobody writes.
    file.write_all(unsafe { std::slice::from_raw_parts(at as *const u8, bytes) })?;
    collapse(&file, bytes)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: what is mapped there afterwards is what was mapped there before, in one step. This function lies elsewhere.
    let mapped = unsafe {
        libc::mmap(at as *mut _, bytes, protection, libc::MAP_PRIVATE | libc::MAP_FIXED, file.as_raw_fd(), 0)
    };
    checked(mapped)?;
    // SAFETY: changes no byte. Without it each worker would be the first to map its pages, and have them counted as its own.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_POPULATE_READ) };
    Ok(())
}

/// Moves a file in memory into large pages; an error where the kernel has none (before 6.1) or does not want to.
fn collapse(file: &File, bytes: usize) -> io::Result<()> {
    let (reserved, shared) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: all of it happens in addresses that were reserved in the first line, and are given back in the last.
    unsafe {
        let room =
            checked(libc::mmap(ptr::null_mut(), bytes + LARGE_BYTES, libc::PROT_NONE, reserved, -1, 0))?;
        let aligned = room.byte_add(room.align_offset(LARGE_BYTES));
        let mapped = checked(libc::mmap(aligned, bytes, libc::PROT_READ, shared, file.as_raw_fd(), 0));
        let collapsed = mapped.and_then(|mapped| match libc::madvise(mapped, bytes, COLLAPSE) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
        libc::munmap(room, bytes + LARGE_BYTES);
        collapsed
    }
}

fn checked(mapped: *mut libc::c_void) -> io::Result<*mut libc::c_void> {
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::duckdb::Database;

    #[test]
    fn the_engine_s_code_is_found_and_nothing_else() {
        let line = |rest: &str| code(&format!("7fdb83e10000-7fdb861ac000 {rest}"));
        let found = Some((0x7fdb_83e1_0000, 0x7fdb_861a_c000));
        assert_eq!(line("r-xp 00810000 fe:00 131078                     /x y/lib/libduckdb.so"), found);
        assert_eq!(line("r-xp 00810000 fe:00 131078 /x/avro.duckdb_extension"), found);
        for other in [
            "r--p 00810000 fe:00 1 /lib/libduckdb.so",
            "r-xp 00810000 fe:00 1 /lib/libc.so.6",
            "rw-p 0 00:00 0",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }

    /// In this very process, whose other threads are at their own tests meanwhile.
    #[test]
    fn the_engine_works_on_from_large_pages() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
        };
        let before = resident();
        let mut sum = 0;
        enlarge(&mut sum).unwrap();
        let bytes = usize::try_from(sum).unwrap();
        assert!(bytes > 16 << 20 && bytes.is_multiple_of(LARGE_BYTES), "{bytes}");
        assert!(resident() - before >= bytes, "mapped for whoever is forked from here");
        let connection = Database::open(&[]).unwrap().connect().unwrap();
        connection.run("SELECT sum(length(md5(i::VARCHAR))) FROM range(10000) t(i)").unwrap();
        enlarge(&mut sum).unwrap();
        assert_eq!(sum, bytes as u64, "once is enough");
    }
}
