//! A breadth-first search of all states of a model.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A system with states, some of which must never be reached.
pub trait Model {
    /// A state. It should be small, because many are stored.
    type State: Copy + Eq + Hash;
    /// An event.
    type Step: Copy;

    /// The initial states.
    fn starts(&mut self) -> Vec<Self::State>;

    /// All possible next events, and the states they lead to.
    fn next(&mut self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>);

    /// The violation in a state, if there is one.
    fn fault(&mut self, state: &Self::State) -> Option<String>;

    /// Describes an initial state.
    fn tell_start(&self, state: &Self::State) -> String;

    /// Describes a step between two states.
    fn tell(&self, before: &Self::State, step: Self::Step, after: &Self::State) -> String;
}

/// The result of a search.
#[derive(Debug)]
pub struct Report {
    /// The number of distinct states.
    pub states: usize,
    /// The most steps from an initial state to any of them.
    pub depth: usize,
    /// The shortest history that breaks a guarantee, if there is one.
    pub counterexample: Option<Vec<String>>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, depth {}", self.states, self.depth)?;
        let Some(trace) = &self.counterexample else { return write!(f, ", no fault") };
        write!(f, ", a fault after {} steps:", trace.len() - 2)?;
        trace.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Visits all states, nearest first, until one has a violation or none is left.
///
/// States are distinguished by a 64-bit hash: among ten million, the probability of a collision is below
/// one in a hundred thousand.
///
/// # Panics
/// If there are more than `most` states: a search that was cut short proves nothing.
pub fn search<M: Model>(model: &mut M, most: usize) -> Report {
    let mut seen = Seen::default();
    // For each state seen, by number: the one before it, and which of its steps led here.
    let mut origins: Vec<(u32, u16)> = Vec::new();
    let mut queue = VecDeque::new();
    let mut depth = 0;
    let starts = model.starts();
    for (choice, state) in starts.iter().enumerate() {
        if seen.insert(fingerprint(state)) {
            queue.push_back((origins.len() as u32, 0, *state));
            origins.push((u32::MAX, choice as u16));
        }
    }
    let mut found = Vec::new();
    while let Some((number, steps, state)) = queue.pop_front() {
        depth = steps;
        if let Some(fault) = model.fault(&state) {
            let trace = trace(model, &starts, &origins, number, fault);
            return Report { states: origins.len(), depth, counterexample: Some(trace) };
        }
        found.clear();
        model.next(&state, &mut found);
        for (choice, (_, next)) in found.iter().enumerate() {
            if seen.insert(fingerprint(next)) {
                assert!(
                    origins.len() < most,
                    "more than {most} states: the search is not finished"
                );
                queue.push_back((origins.len() as u32, steps + 1, *next));
                origins.push((number, choice as u16));
            }
        }
    }
    Report { states: origins.len(), depth, counterexample: None }
}

fn trace<M: Model>(
    model: &mut M,
    starts: &[M::State],
    origins: &[(u32, u16)],
    mut number: u32,
    fault: String,
) -> Vec<String> {
    let mut choices = Vec::new();
    while number != u32::MAX {
        let (before, choice) = origins[number as usize];
        choices.push(choice);
        number = before;
    }
    let mut choices = choices.into_iter().rev().map(usize::from);
    let mut state = starts[choices.next().unwrap_or(0)];
    let mut lines = vec![model.tell_start(&state)];
    for choice in choices {
        let mut found = Vec::new();
        model.next(&state, &mut found);
        let (step, next) = found[choice];
        lines.push(model.tell(&state, step, &next));
        state = next;
    }
    lines.push(fault);
    lines
}

type Seen = HashSet<u64, BuildHasherDefault<Mixer>>;

fn fingerprint(state: &impl Hash) -> u64 {
    let mut mixer = Mixer::default();
    state.hash(&mut mixer);
    mixer.finish()
}

/// One multiplication per word. The standard hasher resists attackers and is slower.
#[derive(Debug, Default)]
pub struct Mixer(u64);

impl Mixer {
    const fn mix(&mut self, word: u64) {
        let start = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let product = (start as u128).wrapping_mul(0xd6e8_feb8_6659_fd93_a076_1d64_78bd_642f);
        self.0 = (product >> 64) as u64 ^ (product as u64).rotate_left(23);
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0x2545_f491_4f6c_dd1d);
        last.0
    }

    fn write_u8(&mut self, number: u8) {
        self.mix(u64::from(number));
    }

    fn write_u16(&mut self, number: u16) {
        self.mix(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }
}
