//! Metrics of the guard, for Prometheus and for people: its actions, the page cache of the databases' files, waits
//! of tasks, and the host's memory.
//!
//! Two threads run beside the guard's loop: one samples ([`watch`]), one serves ([`server`]). Both end with the
//! process. The shared state is in one place ([`state`]).
//!
//! Invariants: this module only reads, and only serves reads. Nothing here can delay the guard's loop, or grow
//! without bound. Fails only at the start, if the address is not available.

mod accept;
pub(crate) mod address;
mod answer;
mod connections;
mod data;
mod digest;
mod exposition;
mod fleet;
mod format;
mod heard;
mod histogram;
mod host;
mod own;
mod page;
mod plain;
mod server;
mod state;
mod this_host;
mod watch;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagekeeper_guard::{Done, Event, Options, StreamFigures};
use pagekeeper_observe::VisibilityGap;

use state::MetricsState;
use watch::Wanted;

/// Time beyond three of its longest pauses after which the guard's loop counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bound address, before anything is served there.
pub(crate) struct Door {
    listener: TcpListener,
    address: SocketAddr,
}

impl Door {
    /// Binds the address. Fails with a sentence if another program uses it, or if this host does not have it.
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = match TcpListener::bind(address) {
            Ok(listener) => listener,
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => bail!(
                "metrics can't be served at {address}: another program has this port; give --metrics another one"
            ),
            Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                bail!("metrics can't be served at {address}: this host does not have that address")
            }
            Err(error) => return Err(error).context(format!("metrics can't be served at {address}")),
        };
        listener.set_nonblocking(true).context("metrics can't be served")?;
        Ok(Self { listener, address })
    }
}

/// The guard's metrics, served for as long as the process lives.
pub(crate) struct Metrics {
    state: Arc<MetricsState>,
    changes: Sender<Wanted>,
    said: Receiver<String>,
    /// The time at which the guard's loop continued.
    resumed: Cell<Instant>,
}

impl Metrics {
    /// Starts to sample and to serve; the `top` files with the most resident bytes are listed by path.
    pub(crate) fn start(door: Door, options: &Options, top: usize) -> anyhow::Result<Self> {
        let state = Arc::new(MetricsState::new(options.dry_run, patience(options)));
        let ((changes, orders), (say, said)) = (channel(), channel());
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            spawned.map(drop).with_context(|| format!("start the thread for {name}"))
        };
        let (wanted, known, sayings) = (Wanted::of(options), Arc::clone(&state), say.clone());
        spawn("samples", Box::new(move || watch::watch(wanted, top, &known, &orders, &sayings)))?;
        let known = Arc::clone(&state);
        spawn(
            "metrics",
            Box::new(move || {
                if let Err(error) = server::serve(door.listener, door.address, known) {
                    // The receiver may be gone.
                    let _ = say.send(format!("metrics are no longer served: {error}"));
                }
            }),
        )?;
        Ok(Self { state, changes, said, resumed: Cell::new(Instant::now()) })
    }

    /// Records an event of the guard. Returns what the threads reported since the last one.
    pub(crate) fn record(&self, event: &Event) -> impl Iterator<Item = Event> {
        self.state.record(event);
        self.said.try_iter().map(|gap| Event::VisibilityGap { gap })
    }

    /// Records the end of a tick and its actions; `streamed` has the stream figures so far, `took` the tick's
    /// duration by process.
    pub(crate) fn ticked(&self, done: &[Done], streamed: &StreamFigures, took: BTreeMap<u32, Duration>) {
        self.state.ticked(self.resumed.get().elapsed(), done, streamed, took);
    }

    /// Records the start of the next tick.
    pub(crate) fn resumed(&self) {
        self.resumed.set(Instant::now());
    }

    /// Records the guard's new configuration.
    pub(crate) fn reconfigured(&self, options: &Options) {
        self.state.reconfigured(options.dry_run, patience(options));
        // If the sampling thread has ended, nobody needs it.
        let _ = self.changes.send(Wanted::of(options));
    }
}

fn patience(options: &Options) -> Duration {
    options.idle_tick.max(options.tick).saturating_mul(3).saturating_add(PATIENCE)
}

/// Formats a visibility gap: what, why, and what would show it.
fn sentence(limit: &VisibilityGap) -> String {
    let needs = limit.needs.as_ref().map(|needs| format!("; {needs} would show it")).unwrap_or_default();
    format!("can't see {}: {}{needs}", limit.what, limit.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_said_in_a_sentence() {
        let first = Door::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.listener.local_addr().unwrap();
        let Err(error) = Door::open(address) else {
            panic!("two listen on {address}");
        };
        assert!(
            error.to_string().starts_with(&format!("metrics can't be served at {address}: another")),
            "{error}"
        );
        let Err(error) = Door::open("192.0.2.1:9417".parse().unwrap()) else {
            panic!("that address is nobody's");
        };
        assert!(error.to_string().ends_with("this host does not have that address"), "{error}");
    }

    #[test]
    fn what_is_limited_is_one_sentence() {
        let limit = |needs: Option<&str>| {
            sentence(&VisibilityGap {
                what: "pauses".to_owned(),
                why: "no tracefs".to_owned(),
                needs: needs.map(str::to_owned),
            })
        };
        assert_eq!(limit(None), "can't see pauses: no tracefs");
        assert_eq!(limit(Some("CAP_BPF")), "can't see pauses: no tracefs; CAP_BPF would show it");
    }
}
