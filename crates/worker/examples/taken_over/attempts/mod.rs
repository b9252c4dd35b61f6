//! Everything that a process can try, each with a name and how it ended: `ok`, or the error's name.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::means::{
    HERE, PATH, call, call_on, close, connect, datagram_to, fast_open, fork, int80, read_of, with_socket,
};
use crate::sys::doors;

mod calls;

/// What is where.
#[derive(Deserialize)]
pub(crate) struct Plan {
    /// Files and devices that are not the attacker's.
    files: Vec<String>,
    /// The same of folders.
    folders: Vec<String>,
    /// Processes.
    pids: Vec<u32>,
    /// Where something listens.
    addresses: Vec<SocketAddr>,
    /// Sockets of others.
    sockets: Vec<String>,
    /// The two doors' ports.
    doors: Vec<u16>,
    memory_bytes_max: u64,
    spill_bytes_max: u64,
}

pub(crate) type Outcome = (String, String);

/// In this order, so that what must work is seen to work after all the rest was tried.
pub(crate) fn all(plan: &Plan) -> Vec<Outcome> {
    let mut list = Vec::new();
    let mut tried = |name: String, done: Result<i64, i32>| list.push((name, outcome(done)));
    files(plan, &mut tried);
    network(plan, &mut tried);
    processes(plan, &mut tried);
    memory(plan, &mut tried);
    for (name, number, arguments) in calls::PLAIN {
        tried((*name).to_owned(), call(*number, arguments));
    }
    for (name, number, path, arguments) in calls::ON_PATH {
        tried((*name).to_owned(), call_on(*number, path, arguments));
    }
    for (name, number, arguments) in calls::BEAR {
        tried((*name).to_owned(), fork(*number, arguments));
    }
    own(plan, &mut tried);
    list
}

type Tried<'a> = dyn FnMut(String, Result<i64, i32>) + 'a;

fn of(result: std::io::Result<impl Sized>) -> Result<i64, i32> {
    result.map(|_| 0).map_err(|e| e.raw_os_error().unwrap_or(0))
}

fn files(plan: &Plan, tried: &mut Tried<'_>) {
    let own = std::env::current_dir();
    let open = |path: &str, flags: i32| {
        close(call_on(libc::SYS_openat, path, &[HERE, PATH, (flags | libc::O_NONBLOCK) as u64, 0o600]))
    };
    for path in &plan.files {
        tried(format!("read {path}"), open(path, libc::O_RDONLY));
        tried(format!("write {path}"), open(path, libc::O_WRONLY | libc::O_APPEND));
        tried(format!("stat {path}"), of(fs::symlink_metadata(path)));
    }
    for folder in &plan.folders {
        let inside = format!("{folder}/taken-over");
        tried(format!("list {folder}"), of(fs::read_dir(folder)));
        tried(format!("create in {folder}"), open(&inside, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL));
        tried(
            format!("make a folder in {folder}"),
            call_on(libc::SYS_mkdir, &format!("{inside}.d"), &[PATH, 0o700]),
        );
        tried(format!("a file without a name in {folder}"), open(folder, libc::O_TMPFILE | libc::O_WRONLY));
        let _ = fs::write("mine", "mine");
        tried(format!("rename into {folder}"), of(fs::rename("mine", format!("{inside}.r"))));
        tried(format!("link into {folder}"), of(fs::hard_link("mine", format!("{inside}.l"))));
        tried(format!("enter {folder}"), of(std::env::set_current_dir(folder)));
        if let Ok(own) = &own {
            let _ = std::env::set_current_dir(own);
        }
        for left in ["", ".r", ".l"] {
            // Where it worked, nothing stays.
            let _ = fs::remove_file(format!("{inside}{left}"));
        }
        let _ = fs::remove_dir(format!("{inside}.d"));
    }
}

fn network(plan: &Plan, tried: &mut Tried<'_>) {
    for address in &plan.addresses {
        let long = Duration::from_millis(500);
        tried(format!("connect {address}"), of(std::net::TcpStream::connect_timeout(address, long)));
        if let SocketAddr::V4(address) = address {
            tried(format!("raw connect {address}"), connect(*address));
            for (name, number) in [
                ("sendto", libc::SYS_sendto),
                ("sendmsg", libc::SYS_sendmsg),
                ("sendmmsg", libc::SYS_sendmmsg),
            ] {
                tried(format!("fast open by {name} to {address}"), fast_open(*address, number));
            }
        }
    }
    for path in &plan.sockets {
        tried(format!("a datagram to {path}"), datagram_to(path));
    }
    for (name, arguments) in calls::SOCKETS {
        tried(format!("socket {name}"), close(call(libc::SYS_socket, arguments)));
    }
    for (name, [level, option]) in calls::OPTIONS {
        let value = 1i32;
        let arguments = |socket| [socket, *level, *option, &raw const value as u64, 4];
        tried(format!("option {name}"), with_socket(|socket| call(libc::SYS_setsockopt, &arguments(socket))));
    }
    let address = crate::means::raw("127.0.0.1:0".parse().unwrap_or_else(|_| unreachable!()));
    let at = &raw const address as u64;
    tried("bind".into(), with_socket(|socket| call(libc::SYS_bind, &[socket, at, 16])));
    tried("listen".into(), with_socket(|socket| call(libc::SYS_listen, &[socket, 1])));
    // The page in which the doors' addresses stand.
    let page = doors::addresses()[0];
    let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let fixed = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    for (name, number, arguments) in [
        ("open the doors' addresses", libc::SYS_mprotect, [page, 4_096, read_write, 0, 0, 0]),
        ("open what is below, too", libc::SYS_mprotect, [page - 4_096, 8_192, read_write, 0, 0, 0]),
        ("replace the doors' addresses", libc::SYS_mmap, [page, 4_096, read_write, fixed, u64::MAX, 0]),
        ("replace from below", libc::SYS_mmap, [page - 4_096, 8_192, read_write, fixed, u64::MAX, 0]),
        ("forget the doors' addresses", libc::SYS_munmap, [page, 4_096, 0, 0, 0, 0]),
        ("move the doors' addresses", libc::SYS_mremap, [page, 4_096, 4_096, 3, page + (1 << 20), 0]),
        ("empty the doors' addresses", libc::SYS_madvise, [page, 4_096, libc::MADV_DONTNEED as u64, 0, 0, 0]),
        ("let the kernel write there", libc::SYS_getrandom, [page, 16, 0, 0, 0, 0]),
        ("an address of another length", libc::SYS_connect, [0, page, 28, 0, 0, 0]),
        ("an address askew", libc::SYS_connect, [0, page + 8, 16, 0, 0, 0]),
    ] {
        tried(name.to_owned(), call(number, &arguments));
    }
}

fn processes(plan: &Plan, tried: &mut Tried<'_>) {
    for pid in &plan.pids {
        for file in ["environ", "maps", "mem", "fd", "root/etc/passwd", "cwd", "status", "cmdline", "task"] {
            let opened = call_on(libc::SYS_openat, &format!("/proc/{pid}/{file}"), &[HERE, PATH]);
            tried(format!("{file} of {pid}"), close(opened));
        }
        let id = u64::from(*pid);
        tried(format!("process_vm_readv of {pid}"), read_of(id, libc::SYS_process_vm_readv));
        tried(format!("process_vm_writev of {pid}"), read_of(id, libc::SYS_process_vm_writev));
        tried(format!("pidfd of {pid}"), close(call(libc::SYS_pidfd_open, &[id])));
        for (name, number, arguments) in calls::on_process(id) {
            tried(format!("{name} of {pid}"), call(number, &arguments));
        }
    }
}

fn memory(plan: &Plan, tried: &mut Tried<'_>) {
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let private = anonymous | libc::MAP_PRIVATE as u64;
    let (read, write) = (libc::PROT_READ as u64, (libc::PROT_READ | libc::PROT_WRITE) as u64);
    let execute = read | libc::PROT_EXEC as u64;
    for (name, bytes, protection, flags) in [
        ("shared memory", 1 << 20, write, anonymous | libc::MAP_SHARED as u64),
        ("shared memory, validated", 1 << 20, write, anonymous | libc::MAP_SHARED_VALIDATE as u64),
        ("droppable memory", 1 << 20, write, anonymous | 8),
        ("a stack of one's own", 1 << 20, write, private | libc::MAP_GROWSDOWN as u64),
        ("huge pages", 2 << 20, write, private | libc::MAP_HUGETLB as u64),
        ("memory to run code in", 4_096, execute, private),
        ("more memory than may be", plan.memory_bytes_max, write, private),
        ("page tables without end", 1 << 40, read, private | libc::MAP_NORESERVE as u64),
    ] {
        let mapped = call(libc::SYS_mmap, &[0, bytes, protection, flags, u64::MAX]);
        if let Ok(at) = mapped {
            let _ = call(libc::SYS_munmap, &[at as u64, bytes]);
        }
        tried(name.to_owned(), mapped);
    }
    let text = all as *const () as u64 & !0xfff;
    tried("code that can be changed".into(), call(libc::SYS_mprotect, &[text, 4_096, execute | write]));
    let beyond = plan.spill_bytes_max;
    let file =
        call_on(libc::SYS_openat, "large", &[HERE, PATH, (libc::O_RDWR | libc::O_CREAT) as u64, 0o600]);
    let Ok(fd) = file else { return tried("own: a large file".into(), file) };
    let byte = [0u8];
    let at = byte.as_ptr() as u64;
    tried("a file that is too large".into(), call(libc::SYS_pwrite64, &[fd as u64, at, 1, beyond]));
    tried("space for one".into(), call(libc::SYS_fallocate, &[fd as u64, 0, 0, beyond + 1]));
    tried("a hole as large".into(), call(libc::SYS_ftruncate, &[fd as u64, beyond + 1]));
    let _ = (close(file), fs::remove_file("large"));
}

/// What must work, or all the rest shows nothing.
fn own(plan: &Plan, tried: &mut Tried<'_>) {
    for port in &plan.doors {
        let address = SocketAddr::from(([127, 0, 0, 1], *port));
        let long = Duration::from_secs(5);
        tried(format!("own: door {port}"), of(std::net::TcpStream::connect_timeout(&address, long)));
    }
    let file =
        || fs::create_dir("d").and_then(|()| fs::write("d/a", "a")).and_then(|()| fs::rename("d/a", "d/b"));
    // As DuckDB opens what it spills; to read alone, nothing can be opened any more.
    let open = || fs::File::options().read(true).write(true).open("d/b");
    let back = || open().and_then(|mut file| std::io::Read::read_to_end(&mut file, &mut Vec::new()));
    tried("own: a file in a folder".into(), of(file().and_then(|()| back())));
    tried("own: and gone".into(), of(fs::remove_file("d/b").and_then(|()| fs::remove_dir("d"))));
    let thread = std::thread::Builder::new().spawn(|| fs::write("mine", "mine").is_ok());
    let done = of(thread).map(|_| 0);
    tried("own: a thread".into(), done);
    let mut memory = vec![0u8; 16 << 20];
    memory.iter_mut().step_by(4_096).for_each(|byte| *byte = 1);
    let touched = memory.iter().map(|byte| i64::from(*byte)).sum::<i64>();
    tried("own: 16 MiB".into(), if touched == 4_096 { Ok(0) } else { Err(0) });
}

/// What ends the process, one way or another.
pub(crate) fn last(how: &str) -> Outcome {
    match how {
        "abort" => std::process::abort(),
        "int80" => int80(),
        // Each file is below the limit, all together are not.
        "disk" => {
            for number in 0..100_000 {
                let _ = fs::write(format!("fill{number}"), vec![7; 4 << 20]);
            }
        }
        _ => {}
    }
    (how.to_owned(), "ok".to_owned())
}

fn outcome(done: Result<i64, i32>) -> String {
    let Err(error) = done else { return "ok".into() };
    let known = [
        (libc::EPERM, "EPERM"),
        (libc::EACCES, "EACCES"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EFBIG, "EFBIG"),
        (libc::EFAULT, "EFAULT"),
        (libc::EROFS, "EROFS"),
        (libc::EXDEV, "EXDEV"),
        (libc::EINVAL, "EINVAL"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EBADF, "EBADF"),
    ];
    known.iter().find(|(number, _)| *number == error).map_or(error.to_string(), |(_, name)| (*name).into())
}
