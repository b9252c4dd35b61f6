//! The two addresses that a confined worker can connect to.
//!
//! Landlock knows ports, so it would let a worker connect to the doors' ports on any machine; a system call filter knows numbers,
//! so it cannot read the address that `connect` is pointed to. But it can tell *which* memory it is pointed to: the addresses
//! stand in a page that nobody can write, move or replace, and every `connect` of this process that means one of them is pointed
//! there. What means another address stays as it is, and is refused by the kernel.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};

/// The lowest page that a process may map (`vm.mmap_min_addr` is at most this where nobody has changed it). Nothing else is
/// below it, so that every range that covers it begins at it or before.
const PAGE: u64 = 0x1_0000;
const PAGE_BYTES: usize = 4_096;
/// The first byte above the page.
pub(crate) const END: u64 = PAGE + PAGE_BYTES as u64;
/// How long an address is.
pub(crate) const ADDRESS_BYTES: u32 = 16;
const _: () = assert!(size_of::<libc::sockaddr_in>() == ADDRESS_BYTES as usize);
/// What of an address counts: family, port, host. The rest is padding.
const MEANT_BYTES: usize = 8;

const FAMILY: libc::sa_family_t = 2;
const _: () = assert!(libc::AF_INET == 2);

static PINNED: AtomicBool = AtomicBool::new(false);

/// Where the addresses stand.
pub(crate) fn addresses() -> [u64; 2] {
    [PAGE, PAGE + u64::from(ADDRESS_BYTES)]
}

/// Writes the addresses of these ports on 127.0.0.1 where `connect` may be pointed to. Once in a process's life.
pub(crate) fn pin(ports: [u16; 2]) -> io::Result<()> {
    let at = PAGE as *mut libc::c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: maps a page where nothing is mapped: NOREPLACE says so, and a kernel that does not know it answers elsewhere.
    let page = unsafe { libc::mmap(at, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if page != at {
        return Err(io::Error::last_os_error());
    }
    for (place, port) in addresses().into_iter().zip(ports) {
        let address = raw(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        // SAFETY: both lie in the page that was just mapped, writable, and are aligned in it.
        unsafe { (place as *mut libc::sockaddr_in).write(address) };
    }
    // SAFETY: the page is ours, and from here on only read.
    if unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ) } == -1 {
        return Err(io::Error::last_os_error());
    }
    PINNED.store(true, Ordering::Release);
    Ok(())
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: FAMILY,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// In place of libc's, for this program and the libraries that it loads: DuckDB's HTTP client calls it.
///
/// # Safety
///
/// As of `connect(2)`: `address` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(
    socket: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    let mut address = address.cast::<u8>();
    if PINNED.load(Ordering::Acquire) && length == ADDRESS_BYTES && !address.is_null() {
        // SAFETY: the caller vouches for `length` bytes, which are more than these.
        let meant = unsafe { std::slice::from_raw_parts(address, MEANT_BYTES) };
        for place in addresses() {
            let place = place as *const u8;
            // SAFETY: `pin` has mapped the page for good.
            if unsafe { std::slice::from_raw_parts(place, MEANT_BYTES) } == meant {
                address = place;
            }
        }
    }
    // SAFETY: the caller's own arguments, or an address of the same length that says the same.
    let done = unsafe { libc::syscall(libc::SYS_connect, socket, address, length) };
    if done == 0 { 0 } else { -1 }
}
