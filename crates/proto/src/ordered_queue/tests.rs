//! Processes that share one queue on a simulated engine: all short histories, and long random ones.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// The engine's truth, and the processes that use it.
#[derive(Clone, Default)]
struct World {
    /// What is in the queue, by order, and which process it belongs to; `None`: another program.
    queue: BTreeMap<Order, (Mode, Option<usize>)>,
    last: Order,
    processes: Vec<Process>,
}

#[derive(Clone, Default)]
struct Process {
    view: OrderedQueue,
    wanted: Step,
    /// The watches in place, in the engine.
    watches: BTreeMap<Order, WatchFor>,
    /// The watch on the queue as a whole: in place, or its event has not arrived yet.
    queue_watch: bool,
    queue_event: bool,
    /// The events that have not arrived yet.
    events: Vec<(Order, bool)>,
    /// A listing that was made and has not arrived yet.
    listing: Option<Listing>,
    holds: BTreeSet<Order>,
    waits: BTreeSet<Order>,
}

/// What is listed, up to which order, and whether the queue was watched before.
type Listing = (Vec<(Order, Mode)>, Order, bool);

impl World {
    fn new(processes: usize) -> Self {
        Self { processes: vec![Process::default(); processes], ..Self::default() }
    }

    /// So that a few holders are many.
    fn watching_at_most(mut self, holders: usize) -> Self {
        for process in &mut self.processes {
            process.view = OrderedQueue::watching_at_most(holders);
        }
        self
    }

    fn held(&self) -> BTreeSet<Order> {
        let inside = admitted(self.queue.values().map(|(mode, _)| *mode));
        self.queue.keys().take(inside).copied().collect()
    }

    fn enter(&mut self, process: Option<usize>, mode: Mode) {
        self.last += 1;
        self.queue.insert(self.last, (mode, process));
        if let Some(process) = process {
            self.processes[process].waits.insert(self.last);
            self.processes[process].view.handle_entered(self.last, mode);
            self.advance(process);
        }
    }

    /// Removes an entry from the engine. Its own process knows at once if it did so itself.
    fn remove(&mut self, order: Order, by_hand: bool) {
        let Some((_, process)) = self.queue.remove(&order) else { return };
        self.notify(order, true);
        if let Some(process) = process {
            self.processes[process].holds.remove(&order);
            if !by_hand {
                self.processes[process].waits.remove(&order);
                self.processes[process].view.handle_removed(order);
                self.advance(process);
            }
        }
    }

    /// The first holder becomes a reader, if it is a writer of one of the processes.
    fn downgrade(&mut self) {
        let Some((&order, (mode, Some(process)))) = self.queue.iter_mut().next() else { return };
        let process = *process;
        if *mode != Mode::Exclusive || !self.processes[process].holds.contains(&order) {
            return;
        }
        *mode = Mode::Shared;
        self.notify(order, false);
        self.processes[process].view.handle_downgraded(order);
        self.advance(process);
    }

    fn notify(&mut self, order: Order, removed: bool) {
        for process in &mut self.processes {
            if removed && std::mem::take(&mut process.queue_watch) {
                process.queue_event = true;
            }
            match process.watches.get(&order) {
                Some(WatchFor::Removal) if !removed => {}
                Some(_) => {
                    process.watches.remove(&order);
                    process.events.push((order, removed));
                }
                None => {}
            }
        }
    }

    /// Acts on what a process's view asks for, and checks every admission against the truth.
    fn advance(&mut self, number: usize) {
        let step = self.processes[number].view.step();
        for &order in &step.admitted {
            // An entry that was deleted by hand may be told so after it was admitted, as a holder is.
            let deleted = !self.queue.contains_key(&order);
            assert!(deleted || self.held().contains(&order), "{order} of {:?}", self.queue);
            let process = &mut self.processes[number];
            assert!(process.waits.remove(&order));
            process.holds.insert(order);
            if let Some((Mode::Permits { .. }, _)) = self.queue.get(&order) {
                self.notify(order, false);
            }
        }
        let process = &mut self.processes[number];
        process.watches.retain(|order, kind| {
            let keep = step.watch.contains(&(*order, *kind));
            if !keep {
                process.view.handle_unwatched(*order);
            }
            keep
        });
        if !step.watch_queue && !process.begins_queue_watch() {
            (process.queue_watch, process.queue_event) = (false, false);
            process.view.handle_queue_unwatched();
        }
        process.wanted = step;
    }

    /// The things that a process could do next.
    fn choices(&self, number: usize) -> usize {
        let process = &self.processes[number];
        let list = usize::from(process.listing.is_some() || process.wanted.list);
        let queue_event = usize::from(process.queue_event);
        list + queue_event + process.events.len() + self.unwatched(number).len()
    }

    fn unwatched(&self, number: usize) -> Vec<(Order, WatchFor)> {
        let process = &self.processes[number];
        let pending = |order: &Order| process.events.iter().any(|(event, _)| event == order);
        let wanted =
            process.wanted.watch.iter().filter(|(order, kind)| {
                process.watches.get(order) != Some(kind) && !pending(order)
            });
        wanted.copied().collect()
    }

    /// Lets a process do one of its choices.
    fn act(&mut self, number: usize, choice: usize) {
        let unwatched = self.unwatched(number);
        let process = &mut self.processes[number];
        let mut choice = choice % (process.events.len() + unwatched.len() + 1);
        if choice < process.events.len() {
            let (order, removed) = process.events.remove(choice);
            process.view.handle_unwatched(order);
            if removed {
                process.view.handle_removed(order);
                process.waits.remove(&order);
            } else {
                process.view.handle_stale();
            }
            return self.advance(number);
        }
        choice -= process.events.len();
        if let Some((order, kind)) = unwatched.get(choice) {
            if self.queue.contains_key(order) {
                process.watches.insert(*order, *kind);
                process.view.handle_watched(*order, *kind);
            } else {
                process.view.handle_missing(*order);
                process.waits.remove(order);
            }
            return self.advance(number);
        }
        if !process.begins_queue_watch() && std::mem::take(&mut process.queue_event) {
            process.view.handle_queue_unwatched();
            return self.advance(number);
        }
        if let Some((listed, covers, watched)) = process.listing.take() {
            process.view.handle_listing_ended(false);
            if watched {
                process.view.handle_queue_watched();
            }
            for gone in process.view.handle_listed(listed, covers) {
                process.waits.remove(&gone);
            }
            return self.advance(number);
        }
        if process.wanted.list {
            process.view.handle_listing_begun();
            process.wanted.list = false;
            let listed = self.queue.iter().map(|(order, (mode, _))| (*order, *mode)).collect();
            let watched = process.wanted.watch_queue && !process.queue_watch;
            process.queue_watch |= watched;
            process.listing = Some((listed, self.last, watched));
        }
    }

    /// Lets everything arrive. Then every entry that the engine admits must know.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let busy = (0..self.processes.len()).find(|number| self.choices(*number) > 0);
            let Some(number) = busy else { break };
            self.act(number, 0);
        }
        let held = self.held();
        for (number, process) in self.processes.iter().enumerate() {
            assert_eq!(self.choices(number), 0, "process {number} never rests: {:?}", process.view);
            let forgotten: Vec<_> = process.waits.intersection(&held).collect();
            assert!(forgotten.is_empty(), "{forgotten:?} of {:?}: {:?}", self.queue, process);
        }
    }
}

impl Process {
    /// Whether a watch on the queue was set whose listing has not arrived. Its event arrives later.
    fn begins_queue_watch(&self) -> bool {
        self.listing.as_ref().is_some_and(|(_, _, watched)| *watched)
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waits {:?}, watches {:?}, {:?}", self.waits, self.watches, self.view)
    }
}

const MODES: [Mode; 5] =
    [Mode::Exclusive, Mode::Shared, permits(1, 2), permits(2, 2), permits(1, 3)];

/// How many kinds of steps there are.
const KINDS: usize = 17;

/// Plays one history: each number is one step. At most so many holders are watched one by one.
fn play(modes: &[Mode], most_watched: usize, steps: impl IntoIterator<Item = usize>) {
    let mut world = World::new(2).watching_at_most(most_watched);
    for step in steps {
        let mode = modes[step / KINDS % modes.len()];
        match step % KINDS {
            0 | 1 => world.enter(Some(step % KINDS), mode),
            // Other programs know no permits.
            2 if matches!(mode, Mode::Permits { .. }) => world.enter(None, Mode::Exclusive),
            2 => world.enter(None, mode),
            // The first or the last leaves: a holder releases, a waiter gives up.
            3 => drop(world.queue.keys().next().copied().map(|order| world.remove(order, false))),
            4 => {
                let last = world.queue.keys().next_back().copied();
                if let Some(order) = last {
                    world.remove(order, false);
                }
            }
            // An operator deletes an entry from the middle.
            5 => {
                let middle = world.queue.keys().nth(world.queue.len() / 2).copied();
                if let Some(order) = middle {
                    world.remove(order, true);
                }
            }
            6 => {
                // The watches of a process end.
                let lost = std::mem::take(&mut world.processes[0].watches);
                for order in lost.into_keys() {
                    world.processes[0].view.handle_unwatched(order);
                }
                let process = &mut world.processes[0];
                process.queue_watch = false;
                process.queue_event |= process.begins_queue_watch();
                process.view.handle_queue_unwatched();
                world.advance(0);
            }
            16 => world.downgrade(),
            other => world.act(other % 2, other / 2 - 3),
        }
    }
    world.settle();
}

#[test]
fn every_short_history_admits_exactly_what_the_queue_admits() {
    // Six steps out of these, for each pair of modes: arrivals, departures and what arrives when.
    const STEPS: [usize; 10] = [0, 1, 3, 4, 7, 8, 9, 16, KINDS, KINDS + 1];
    for pair in 0..MODES.len() * MODES.len() {
        let modes = [MODES[pair / MODES.len()], MODES[pair % MODES.len()]];
        for history in 0..STEPS.len().pow(5) {
            let step = |place: u32| STEPS[history / STEPS.len().pow(place) % STEPS.len()];
            // None, one or two, independent of the steps.
            let most_watched = history.count_ones() as usize % 3;
            play(&modes, most_watched, [0].into_iter().chain((0..5).map(step)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn long_histories_admit_exactly_what_the_queue_admits(
        steps in prop::collection::vec(0usize..KINDS * 5, 1..120),
        most_watched in 0usize..3,
    ) {
        play(&MODES, most_watched, steps);
    }
}

#[test]
fn a_crowd_of_one_process_is_listed_once_for_many_hand_offs() {
    let mut world = World::new(1);
    world.enter(None, Mode::Exclusive);
    for _ in 0..1_000 {
        world.enter(Some(0), Mode::Exclusive);
    }
    let mut lists = 0;
    while let Some(first) = world.queue.keys().next().copied() {
        for _ in 0..100 {
            if world.choices(0) == 0 {
                break;
            }
            lists += usize::from(world.processes[0].listing.is_some());
            world.act(0, 0);
        }
        assert!(world.processes[0].watches.len() <= 3, "{:?}", world.processes[0].watches);
        assert!(world.held().contains(&first));
        world.remove(first, false);
    }
    assert!(lists <= 2, "{lists} listings");
    assert!(world.processes[0].waits.is_empty());
}

#[test]
fn a_run_of_missing_entries_is_listed_instead_of_walked() {
    let mut view = OrderedQueue::default();
    view.handle_entered(1_000, Mode::Exclusive);
    assert!(view.step().list);
    view.handle_listed((1..=1_000).map(|order| (order, Mode::Exclusive)), 1_000);
    let mut tries = 0;
    loop {
        let step = view.step();
        if step.list {
            break;
        }
        tries += 1;
        view.handle_missing(step.watch[0].0);
    }
    assert!(tries < 20, "{tries}");
}

#[test]
fn a_waiter_behind_many_permit_holders_watches_the_queue_and_not_each_of_them() {
    const HOLDERS: u32 = 10_000;
    let mut world = World::new(2);
    for _ in 0..HOLDERS {
        world.enter(Some(0), permits(1, HOLDERS));
    }
    world.settle();
    for _ in 0..3 {
        world.enter(Some(1), permits(1, HOLDERS));
    }
    world.settle();
    let watches = world.processes[1].watches.len();
    assert!(watches <= 3 && world.processes[1].queue_watch, "{watches} watches");
    // A holder in the middle leaves.
    world.remove(Order::from(HOLDERS / 2), false);
    world.settle();
    assert_eq!(world.processes[1].holds.len(), 1);
    assert!(world.processes[1].watches.len() <= 3);
}

/// The reply to an arrival is late: the entry was listed, and watched as the obstacle of a later waiter.
#[test]
fn a_waiter_that_was_watched_before_it_is_known_is_admitted() {
    let mut view = OrderedQueue::default();
    view.handle_entered(2, Mode::Exclusive);
    assert!(view.step().list);
    view.handle_listing_begun();
    view.handle_listing_ended(false);
    view.handle_listed([(1, Mode::Exclusive), (2, Mode::Exclusive)], 2);
    assert_eq!(view.step().watch, [(1, WatchFor::Removal), (2, WatchFor::Removal)]);
    view.handle_watched(1, WatchFor::Removal);
    view.handle_watched(2, WatchFor::Removal);
    view.handle_entered(1, Mode::Exclusive);
    assert_eq!(view.step().admitted, [1]);
}

/// The process's last waiter was admitted, and the watch on the queue is still in place. A claim that
/// arrives listed the queue before a holder left, and the listing that showed this overtook the claim's own.
#[test]
fn a_listing_that_is_overtaken_by_a_later_one_keeps_no_waiter_out() {
    let mut view = OrderedQueue::watching_at_most(1);
    let entries =
        |orders: &[Order]| orders.iter().map(|it| (*it, permits(1, 4))).collect::<Vec<_>>();
    view.handle_entered(4, permits(2, 4));
    view.handle_listing_begun();
    view.handle_listing_ended(false);
    view.handle_queue_watched();
    view.handle_listed([entries(&[1, 2, 3]), vec![(4, permits(2, 4))]].concat(), 4);
    assert!(view.step().watch_queue, "too many are in its way to watch each");
    // The first holder has left.
    view.handle_queue_unwatched();
    assert!(view.step().list);
    view.handle_listing_begun();
    view.handle_listing_ended(false);
    view.handle_queue_watched();
    view.handle_listed([entries(&[2, 3]), vec![(4, permits(2, 4))]].concat(), 4);
    assert_eq!(view.step().admitted, [4]);
    view.handle_removed(4);
    view.handle_entered(5, permits(2, 4));
    view.handle_listed([entries(&[1, 2, 3]), vec![(5, permits(2, 4))]].concat(), 5);
    let step = view.step();
    assert!(step.list || step.admitted == [5], "the first holder left before: {step:?}");
}
