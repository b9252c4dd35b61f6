//! The threads that statements run on.
//!
//! Each statement has one; it is kept for the next unless it was put behind all others, which cannot be taken back without a
//! privilege that workers do not have.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::sys::process;

/// A thread that had nothing to do for so long is none of them any more.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Statements and helpers at once; the front admits fewer.
const THREADS_MAX: usize = 128;

type Job = Box<dyn FnOnce(&Thread) + Send>;

/// The threads of this worker that wait for a statement.
#[derive(Default)]
pub(crate) struct Threads {
    idle: Mutex<Vec<(u64, SyncSender<Job>)>>,
    next: AtomicU64,
    alive: AtomicUsize,
}

/// A thread, for whoever wants to put it behind all others while it works.
#[derive(Clone, Default)]
pub(crate) struct Thread(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// 0 until it has begun.
    id: AtomicI32,
    lowered: AtomicBool,
}

impl Thread {
    fn current() -> Thread {
        let thread = Thread::default();
        thread.0.id.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
        thread
    }

    /// From now on everybody else's work goes first.
    pub(crate) fn lower(&self) {
        self.0.lowered.store(true, Ordering::Release);
        process::lower(self.0.id.load(Ordering::Acquire));
    }
}

impl Threads {
    /// Runs the job on a thread that waits, or on a new one.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce(&Thread) + Send + 'static) -> io::Result<()> {
        let mut job: Job = Box::new(job);
        while let Some((_, idle)) = self.idle().pop() {
            match idle.send(job) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        if self.alive.fetch_add(1, Ordering::AcqRel) >= THREADS_MAX {
            self.alive.fetch_sub(1, Ordering::AcqRel);
            return Err(io::Error::other("as many threads work as may"));
        }
        let life = Life(self.clone());
        std::thread::Builder::new().name("statement".to_owned()).spawn(move || life.0.live(job)).map(|_| ())
    }

    /// This thread is one of them, too, until it has had nothing to do for a while, was lowered, or had a job that panicked.
    pub(crate) fn work_here(self: &Arc<Self>) {
        self.alive.fetch_add(1, Ordering::AcqRel);
        let life = Life(self.clone());
        // As in a thread that was started, a job that panics ends no more than this.
        let _ = catch_unwind(AssertUnwindSafe(|| life.0.live(Box::new(|_| {}))));
    }

    fn live(&self, mut job: Job) {
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let thread = Thread::current();
        let (sender, jobs) = mpsc::sync_channel(1);
        loop {
            job(&thread);
            if thread.0.lowered.load(Ordering::Acquire) {
                return;
            }
            self.idle().push((name, sender.clone()));
            job = match jobs.recv_timeout(IDLE_MAX) {
                Ok(job) => job,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let mut idle = self.idle();
                    let before = idle.len();
                    idle.retain(|(other, _)| *other != name);
                    if idle.len() < before {
                        return;
                    }
                    drop(idle);
                    // Somebody has just taken this thread for a job, which is on its way.
                    match jobs.recv() {
                        Ok(job) => job,
                        Err(mpsc::RecvError) => return,
                    }
                }
            };
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(u64, SyncSender<Job>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread while it lives, however it ends.
struct Life(Arc<Threads>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next job's thread, and whether everything else goes before it.
    fn next(threads: &Arc<Threads>, lower: bool) -> (i32, bool) {
        let (sender, answer) = mpsc::channel();
        threads
            .run(move |thread| {
                if lower {
                    thread.lower();
                }
                let id = thread.0.id.load(Ordering::Acquire);
                let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap();
                // Field 41 of proc(5); the name, the second, may have spaces in it.
                let policy = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(41 - 3);
                let policy: i32 = policy.unwrap().parse().unwrap();
                sender.send((id, policy == libc::SCHED_IDLE)).unwrap();
            })
            .unwrap();
        let told = answer.recv().unwrap();
        // It may not have put itself among the idle ones yet.
        std::thread::sleep(Duration::from_millis(20));
        told
    }

    #[test]
    fn a_thread_that_works_here_gets_the_next_job_and_outlives_one_that_panics() {
        let threads = Arc::<Threads>::default();
        let here = std::thread::spawn({
            let threads = threads.clone();
            move || threads.work_here()
        });
        while threads.idle().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (sender, answer) = mpsc::channel();
        threads
            .run(move |_| {
                sender.send(std::thread::current().id()).unwrap();
                panic!("this job ends badly");
            })
            .unwrap();
        assert_eq!(answer.recv().unwrap(), here.thread().id());
        here.join().unwrap();
        assert_eq!(threads.alive.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_thread_is_used_again_unless_it_was_lowered() {
        let threads = Arc::<Threads>::default();
        let first = next(&threads, false);
        assert!(!first.1);
        assert_eq!(next(&threads, false), first);
        assert_eq!(next(&threads, true), (first.0, true));
        let other = next(&threads, false);
        assert!(!other.1, "the next statement has its full share");
        assert_ne!(other.0, first.0);
    }
}
