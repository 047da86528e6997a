//! The number of instructions of a call in the program itself, without the kernel's: the process is stepped one
//! instruction at a time.
//!
//! Other load does not matter, and no hardware counters are needed, which virtual machines often lack: two counts of
//! the same call are equal. The child stops itself before and after; a count without calls contains the cost of the
//! stop and is subtracted. Fails where tracing is forbidden or the child ends.

#![expect(unsafe_code, reason = "ptrace(2) is in the C library only")]

use std::ffi::{c_int, c_long, c_void};
use std::process::{Command, Stdio};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use crate::running::Running;

/// More steps than any call takes; the count ends there for a child that never stops.
const STEPS_MAX: u64 = 10_000_000;

/// Runs in the child: requests tracing, then makes no calls between the first two stops, and `calls` between the last
/// two.
pub(super) fn be_counted(mut batch: impl FnMut(u32) -> Result<()>, calls: u32) -> Result<()> {
    // Resolves each function, which happens at its first call.
    batch(1)?;
    ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut()).context("can't be traced")?;
    for calls in [0, calls] {
        stop()?;
        batch(calls)?;
    }
    stop()
}

fn stop() -> Result<()> {
    kill_process(rustix::process::getpid(), Signal::STOP).context("can't stop")
}

fn ptrace(request: libc::c_uint, pid: c_int, data: *mut c_void) -> std::io::Result<c_long> {
    // SAFETY: none of the requests used here makes the kernel write to this process's memory, and `data` is a number to
    // them.
    match unsafe { libc::ptrace(request, pid, ptr::null_mut::<c_void>(), data) } {
        -1 => Err(std::io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// Returns the average instructions of a call, over `calls`, in a child that lets itself be counted.
pub(super) fn count(command: &mut Command, calls: u32) -> Result<f64> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("can't start this program again")?;
    let traced = Running::from(child);
    let pid = Pid::from_child(&traced);
    ensure!(wait(pid)? == Signal::STOP.as_raw(), "the child did not stop");
    let none = steps(pid)?;
    let all = steps(pid)?;
    Ok(all.saturating_sub(none) as f64 / f64::from(calls))
}

/// Returns the number of instructions until the child stops itself.
fn steps(pid: Pid) -> Result<u64> {
    for step in 0..STEPS_MAX {
        ptrace(libc::PTRACE_SINGLESTEP, pid.as_raw_nonzero().get(), ptr::null_mut()).context("can't step")?;
        match wait(pid)? {
            signal if signal == Signal::TRAP.as_raw() => {}
            signal if signal == Signal::STOP.as_raw() => return Ok(step),
            signal => bail!("the child got signal {signal}"),
        }
    }
    bail!("no end after {STEPS_MAX} instructions")
}

/// Waits until the child stops and returns the signal.
fn wait(pid: Pid) -> Result<c_int> {
    let status: Option<(Pid, WaitStatus)> =
        waitpid(Some(pid), WaitOptions::UNTRACED).context("can't wait for a child")?;
    let status = status.context("the child has gone")?.1;
    status.stopping_signal().with_context(|| format!("the child ended: {status:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_not_traced_is_an_error() {
        let error = count(&mut Command::new("true"), 1).unwrap_err();
        assert!(error.to_string().contains("the child ended"), "{error:#}");
        // It stops, but for its parent's shell, not for a tracer.
        let error = count(Command::new("sh").args(["-c", "kill -STOP $$"]), 1).unwrap_err();
        assert!(error.to_string().contains("can't step"), "{error:#}");
    }
}
