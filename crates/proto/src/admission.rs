//! Which claims may hold a lock together: one rule for mutex, read-write lock and semaphore.

/// The mode in which a claim is to hold a lock.
///
/// A mutex asks [`Exclusive`](Mode::Exclusive), a reader [`Shared`](Mode::Shared), a semaphore
/// [`Permits`](Mode::Permits). All three wait in one queue and are admitted by one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with any number of other shared holders.
    Shared,
    /// Together with other permit holders, as long as no more than `of` permits are out.
    Permits {
        /// Permits this claim takes, at least one and at most `of`.
        take: u32,
        /// Permits there are in all, by this claim's count.
        of: u32,
    },
}

impl Mode {
    /// Whether the mode can ever be admitted: a semaphore must take between one permit and all.
    pub const fn is_sound(self) -> bool {
        match self {
            Self::Exclusive | Self::Shared => true,
            Self::Permits { take, of } => take >= 1 && take <= of,
        }
    }

    /// Whether it asks for permits of a semaphore.
    pub(crate) const fn is_permits(self) -> bool {
        matches!(self, Self::Permits { .. })
    }
}

/// What the present holders of a lock leave room for.
///
/// The kinds never mix: readers wait for permit holders and the other way round. Where claims on
/// one semaphore disagree about how many permits there are, each is admitted by its own number.
///
/// ```
/// use tenure_proto::{Mode, Occupancy};
///
/// let mut room = Occupancy::default();
/// room.enter(Mode::Shared);
/// assert!(room.admits(Mode::Shared));
/// assert!(!room.admits(Mode::Exclusive));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Occupancy {
    exclusive: u32,
    shared: u32,
    permits: u64,
}

impl Occupancy {
    /// Whether a claim of this mode may hold beside the present holders.
    pub const fn admits(&self, mode: Mode) -> bool {
        if self.exclusive > 0 {
            return false;
        }
        match mode {
            Mode::Exclusive => self.shared == 0 && self.permits == 0,
            Mode::Shared => self.permits == 0,
            Mode::Permits { take, of } => {
                mode.is_sound() && self.shared == 0 && self.permits + take as u64 <= of as u64
            }
        }
    }

    /// Counts one more holder. The caller has asked [`admits`](Self::admits) first, or is taking
    /// stock of holders that were admitted before.
    pub const fn enter(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = self.exclusive.saturating_add(1),
            Mode::Shared => self.shared = self.shared.saturating_add(1),
            Mode::Permits { take, .. } => {
                self.permits = self.permits.saturating_add(take as u64);
            }
        }
    }

    /// Counts one holder less.
    pub const fn leave(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = self.exclusive.saturating_sub(1),
            Mode::Shared => self.shared = self.shared.saturating_sub(1),
            Mode::Permits { take, .. } => {
                self.permits = self.permits.saturating_sub(take as u64);
            }
        }
    }

    /// Whether there is no holder.
    pub const fn is_empty(&self) -> bool {
        self.exclusive == 0 && self.shared == 0 && self.permits == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 6] = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Permits { take: 1, of: 1 },
        Mode::Permits { take: 1, of: 3 },
        Mode::Permits { take: 2, of: 3 },
        Mode::Permits { take: 3, of: 3 },
    ];

    /// What the rule must amount to, said another way: over the whole set of holders at once.
    fn may_hold_together(holders: &[Mode]) -> bool {
        let taken: u64 = holders
            .iter()
            .map(|mode| match mode {
                Mode::Permits { take, .. } => u64::from(*take),
                _ => 0,
            })
            .sum();
        let exclusive = holders.contains(&Mode::Exclusive);
        let shared = holders.contains(&Mode::Shared);
        let within = holders.iter().all(|mode| match mode {
            Mode::Permits { of, .. } => taken <= u64::from(*of),
            _ => true,
        });
        (!exclusive || holders.len() == 1) && !(shared && taken > 0) && within
    }

    #[test]
    fn every_sequence_of_four_arrivals_is_admitted_exactly_when_it_may_hold_together() {
        let sequences = (0..MODES.len().pow(4))
            .map(|n| [0, 1, 2, 3].map(|place| MODES[n / MODES.len().pow(place) % MODES.len()]));
        for sequence in sequences {
            let mut room = Occupancy::default();
            let mut inside: Vec<Mode> = Vec::new();
            for mode in sequence {
                let mut with = inside.clone();
                with.push(mode);
                // Of semaphores that disagree about their size, that of the new claim counts.
                let agree = with.iter().all(|m| !matches!(m, Mode::Permits { of: 1, .. }))
                    || with.iter().all(|m| matches!(m, Mode::Permits { of: 1, .. }));
                if agree {
                    assert_eq!(room.admits(mode), may_hold_together(&with), "{with:?}");
                }
                if room.admits(mode) {
                    room.enter(mode);
                    inside.push(mode);
                }
            }
            for mode in inside {
                room.leave(mode);
            }
            assert!(room.is_empty());
        }
    }

    #[test]
    fn a_semaphore_takes_between_one_permit_and_all() {
        assert!(!Mode::Permits { take: 0, of: 3 }.is_sound());
        assert!(!Mode::Permits { take: 4, of: 3 }.is_sound());
        assert!(!Occupancy::default().admits(Mode::Permits { take: 4, of: 3 }));
        assert!(!Occupancy::default().admits(Mode::Permits { take: 0, of: 3 }));
    }
}
