//! Metrics of the guard, for Prometheus and for people: its actions, the page cache of the
//! databases' files, waits of tasks, and the host's memory.
//!
//! Three threads run beside the guard's loop: one samples the databases (`watch`), one the host's
//! memory, and one serves (`server`). All end with the process. The shared figures are in one place
//! (`state`).
//!
//! Invariants: this crate only reads, and only serves reads. Nothing here can delay the guard's
//! loop, or grow without bound. Fails only at the start.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod digest;
mod events;
mod exposition;
mod exposition_text;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod histogram;
mod host;
mod names;
mod nested_directories;
mod page_data;
mod release_origin;
mod series;
mod state;
mod totals;
mod watch;
mod web;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use pagekeeper_guard::{Done, Event, Options, StreamReport};
use pagekeeper_kernel::pressure::SysRoots;

pub use crate::web::listen_address::parse_address;

use crate::host::HostFigures;
use crate::state::{MetricsState, POINT_INTERVAL};
use crate::watch::SampleScope;
use crate::web::service::MetricsService;

/// Time beyond three of its longest pauses after which the guard's loop counts as stuck.
const STUCK_MARGIN: Duration = Duration::from_secs(60);

/// The reason why there are no metrics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// Another program uses the port.
    #[error("metrics can't be served at {0}: another program has this port; give --metrics another one")]
    PortInUse(SocketAddr),
    /// The address belongs to no interface.
    #[error("metrics can't be served at {0}: this host does not have that address")]
    NoSuchAddress(SocketAddr),
    /// The address can't be bound for another reason.
    #[error("metrics can't be served at {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread can't be started.
    #[error("start the thread for {name}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The guard's metrics, served for as long as the process lives.
#[derive(Debug)]
pub struct Metrics {
    state: Arc<MetricsState>,
    scopes: Sender<SampleScope>,
    reports: Receiver<String>,
    /// The time at which the guard's loop continued.
    resumed: Cell<Instant>,
}

impl Metrics {
    /// Starts to sample and to serve at an address. The `top` files with the most resident bytes
    /// are listed by path.
    pub fn start(address: SocketAddr, options: &Options, top: usize) -> Result<Self, MetricsError> {
        let listener = bind(address)?;
        let state = Arc::new(MetricsState::new(options.dry_run, stuck_after(options)));
        let ((scopes, new_scopes), (report, reports)) = (channel(), channel());
        let (scope, known, gaps) = (SampleScope::of(options), Arc::clone(&state), report.clone());
        spawn("samples", move || watch::watch(scope, top, &known, &new_scopes, &gaps))?;
        let known = Arc::clone(&state);
        spawn("host", move || {
            loop {
                known.host_sampled(&HostFigures::read(&SysRoots::default()));
                std::thread::sleep(POINT_INTERVAL);
            }
        })?;
        let service = MetricsService::new(Arc::clone(&state), address);
        spawn("metrics", move || {
            let Err(error) = web::server::serve(&listener, &service);
            // The receiver may be gone.
            let _ = report.send(format!("metrics are no longer served: {error}"));
        })?;
        Ok(Self { state, scopes, reports, resumed: Cell::new(Instant::now()) })
    }

    /// Records an event of the guard. Returns what the threads reported since the last one.
    pub fn record(&self, event: &Event) -> impl Iterator<Item = Event> {
        self.state.record(event);
        self.reports.try_iter().map(|gap| Event::VisibilityGap { gap })
    }

    /// Records the end of a tick and its actions; `streamed` has the stream figures so far, `took`
    /// the tick's duration by process.
    pub fn ticked(&self, done: &[Done], streamed: &StreamReport, took: BTreeMap<u32, Duration>) {
        self.state.ticked(self.resumed.get().elapsed(), done, streamed, took);
    }

    /// Records the start of the next tick.
    pub fn resumed(&self) {
        self.resumed.set(Instant::now());
    }

    /// Records the guard's new configuration; `None` if it was refused.
    pub fn reconfigured(&self, options: Option<&Options>) {
        let Some(options) = options else { return self.state.config_refused() };
        self.state.reconfigured(options.dry_run, stuck_after(options));
        // If the sampling thread has ended, nobody needs it.
        let _ = self.scopes.send(SampleScope::of(options));
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, MetricsError> {
    let listener = TcpListener::bind(address);
    listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|source| {
        match source.kind() {
            ErrorKind::AddrInUse => MetricsError::PortInUse(address),
            ErrorKind::AddrNotAvailable => MetricsError::NoSuchAddress(address),
            _ => MetricsError::Bind { address, source },
        }
    })
}

fn spawn(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<(), MetricsError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|source| MetricsError::Thread { name, source })
}

fn stuck_after(options: &Options) -> Duration {
    options.idle_tick.max(options.tick).saturating_mul(3).saturating_add(STUCK_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_reported_in_a_sentence() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("metrics can't be served at {address}: another")), "{error}");
        let error = bind("192.0.2.1:9417".parse().unwrap()).unwrap_err().to_string();
        assert!(error.ends_with("this host does not have that address"), "{error}");
    }
}
