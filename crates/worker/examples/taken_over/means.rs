//! What the attacker does things with: system calls as they are, past every library.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::mem::size_of;
use std::net::SocketAddrV4;

/// The number that a call ends with, or its errno.
pub(crate) type Done = Result<i64, i32>;

/// Makes a call. Numbers are numbers; whatever is pointed to must outlive the call.
pub(crate) fn call(number: i64, arguments: &[u64]) -> Done {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: that is for the caller to know; this program exists to make calls that should not be made.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        done => Ok(done),
    }
}

/// The same with a path (or any text) where the arguments say [`PATH`].
pub(crate) fn call_on(number: i64, path: &str, arguments: &[u64]) -> Done {
    let text = CString::new(path).unwrap_or_default();
    let put = |argument: &u64| if *argument == PATH { text.as_ptr() as u64 } else { *argument };
    call(number, &arguments.iter().map(put).collect::<Vec<_>>())
}

pub(crate) const PATH: u64 = 0x7061_7468;
pub(crate) const HERE: u64 = libc::AT_FDCWD as u64;

/// Closes what was opened, and says that it was.
pub(crate) fn close(opened: Done) -> Done {
    if let Ok(fd) = opened {
        let _ = call(libc::SYS_close, &[fd as u64]);
    }
    opened.map(|_| 0)
}

/// A child that ends at once, if there is one.
pub(crate) fn fork(number: i64, arguments: &[u64]) -> Done {
    match call(number, arguments) {
        // SAFETY: the child has nothing else to do.
        Ok(0) => unsafe { libc::_exit(0) },
        Ok(child) => {
            let _ = call(libc::SYS_wait4, &[child as u64]);
            Ok(child)
        }
        failed => failed,
    }
}

pub(crate) fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// A TCP socket that can be made, for what is tried on it.
pub(crate) fn with_socket(then: impl FnOnce(u64) -> Done) -> Done {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let socket = call(libc::SYS_socket, &[libc::AF_INET as u64, kind as u64])?;
    let done = then(socket as u64);
    let _ = close(Ok(socket));
    // A connection that has begun is one.
    if done == Err(libc::EINPROGRESS) { Ok(0) } else { done }
}

/// `connect`, pointed to memory of the attacker's own.
pub(crate) fn connect(address: SocketAddrV4) -> Done {
    let raw = raw(address);
    let length = size_of::<libc::sockaddr_in>() as u64;
    with_socket(|socket| call(libc::SYS_connect, &[socket, &raw const raw as u64, length]))
}

/// A connection that opens with its first bytes, in a call that nobody asks Landlock about.
pub(crate) fn fast_open(address: SocketAddrV4, number: i64) -> Done {
    let mut raw = raw(address);
    let length = size_of::<libc::sockaddr_in>();
    let mut byte = *b"x";
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeros is an empty message.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_name = (&raw mut raw).cast();
    message.msg_hdr.msg_namelen = length as u32;
    message.msg_hdr.msg_iov = &raw mut piece;
    message.msg_hdr.msg_iovlen = 1;
    let (flags, at) = (libc::MSG_FASTOPEN as u64, &raw const message as u64);
    with_socket(|socket| match number {
        libc::SYS_sendto => {
            call(number, &[socket, byte.as_ptr() as u64, 1, flags, &raw const raw as u64, length as u64])
        }
        libc::SYS_sendmmsg => call(number, &[socket, at, 1, flags]),
        _ => call(number, &[socket, at, flags]),
    })
}

/// A pair of sockets, one of which is then told to speak to somebody else by a path.
pub(crate) fn datagram_to(path: &str) -> Done {
    let mut pair = [0i32; 2];
    let arguments = [libc::AF_UNIX as u64, libc::SOCK_DGRAM as u64, 0, pair.as_mut_ptr() as u64];
    call(libc::SYS_socketpair, &arguments)?;
    // SAFETY: all zeros is an address without a name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as u64;
    let done = call(libc::SYS_connect, &[pair[0] as u64, &raw const address as u64, length]);
    for fd in pair {
        let _ = close(Ok(i64::from(fd)));
    }
    // Whoever listens there listens to streams: that was asked after all permissions were looked at.
    if done == Err(libc::EPROTOTYPE) { Ok(0) } else { done }
}

/// Reads eight bytes of another process.
pub(crate) fn read_of(pid: u64, number: i64) -> Done {
    let mut bytes = [0u8; 8];
    let own = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    let theirs = libc::iovec { iov_base: 0x40_0000 as *mut libc::c_void, iov_len: 8 };
    let done = call(number, &[pid, &raw const own as u64, 1, &raw const theirs as u64, 1]);
    // Nothing is there; but it was looked.
    if done == Err(libc::EFAULT) { Ok(0) } else { done }
}

/// The way of 32-bit programs, whose numbers mean other calls.
pub(crate) fn int80() {
    // SAFETY: getpid, were it answered.
    unsafe { std::arch::asm!("int 0x80", inout("eax") 20 => _) };
}
