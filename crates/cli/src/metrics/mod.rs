//! Metrics of the guard, for Prometheus and for people: what it did, what the databases' files hold of the page cache,
//! who has to wait, and how the host's memory stands.
//!
//! Two threads beside the guard's loop: one samples ([`watch`]), one answers ([`server`]); both end with the process.
//! What is known is in one place ([`state`]).
//!
//! Invariants: only reads, and only answers reads; nothing here can hold the guard's loop up, or grow without end.
//! Fails at the start alone: where the address can't be had.

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

/// The guard's loop may take so long on top of three of its longest pauses until it is said to hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// An address that is listened on, before there is anything to serve there.
pub(crate) struct Door {
    listener: TcpListener,
    address: SocketAddr,
}

impl Door {
    /// Takes the address. Fails with a sentence where another program has it, or this host does not.
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

/// The guard's metrics, served while the process lives.
pub(crate) struct Metrics {
    state: Arc<MetricsState>,
    changes: Sender<Wanted>,
    said: Receiver<String>,
    /// When the guard's loop went on.
    resumed: Cell<Instant>,
}

impl Metrics {
    /// Starts to sample and to answer; the `top` files with the most resident are listed by their paths.
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
                    // Whoever would receive it may have gone.
                    let _ = say.send(format!("metrics are no longer served: {error}"));
                }
            }),
        )?;
        Ok(Self { state, changes, said, resumed: Cell::new(Instant::now()) })
    }

    /// Hears an event of the guard; what the threads have to say since the last one.
    pub(crate) fn record(&self, event: &Event) -> impl Iterator<Item = Event> {
        self.state.record(event);
        self.said.try_iter().map(|gap| Event::VisibilityGap { gap })
    }

    /// A tick has ended, and did this; `streamed` is what became of streams so far, `took` how long
    /// the tick took by process.
    pub(crate) fn ticked(&self, done: &[Done], streamed: &StreamFigures, took: BTreeMap<u32, Duration>) {
        self.state.ticked(self.resumed.get().elapsed(), done, streamed, took);
    }

    /// The next tick begins.
    pub(crate) fn resumed(&self) {
        self.resumed.set(Instant::now());
    }

    /// The guard has another configuration.
    pub(crate) fn reconfigured(&self, options: &Options) {
        self.state.reconfigured(options.dry_run, patience(options));
        // Where the sampling thread has ended nobody needs it.
        let _ = self.changes.send(Wanted::of(options));
    }
}

fn patience(options: &Options) -> Duration {
    options.idle_tick.max(options.tick).saturating_mul(3).saturating_add(PATIENCE)
}

/// What can't be seen, why, and what would show it.
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
