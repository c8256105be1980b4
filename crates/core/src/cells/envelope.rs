//! What is stored around a value: the ids of the swaps that wrote it last.
//!
//! A swap whose reply was lost is sent again with the same id. If the cell has changed by then, the ids
//! tell whether the first one took effect, as long as no more than [`HISTORY`] others came after it.

use super::contract::SwapId;

/// How many swaps a cell remembers.
pub(crate) const HISTORY: usize = 16;
/// The bytes that an envelope adds to a value, at the most.
pub(crate) const OVERHEAD: usize = HEAD + HISTORY * 8;

const HEAD: usize = 4;
const MARK: [u8; 2] = [b'T', 1];
const REMOVED: u8 = 1;

/// A value with its history. `T`, 1, flags, the number of ids; the ids, newest first, eight bytes each;
/// the value. The Redis scripts for counters read and write the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// `None`: the cell was removed.
    pub(crate) payload: Option<Vec<u8>>,
    /// The swaps that wrote it, newest first.
    ids: Vec<SwapId>,
}

impl Envelope {
    /// This value, written by the swap `id` after those of `before`.
    pub(crate) fn after(before: &Self, id: SwapId, payload: Option<Vec<u8>>) -> Self {
        let older = before.ids.iter().copied().filter(|older| *older != id);
        let ids = std::iter::once(id).chain(older).take(HISTORY).collect();
        Self { payload, ids }
    }

    pub(crate) fn wrote(&self, id: SwapId) -> bool {
        self.ids.contains(&id)
    }

    /// Whether a swap that came after all of `before` would be among the ids.
    pub(crate) fn covers(&self, before: &Self) -> bool {
        match before.ids.first() {
            Some(last) => self.wrote(*last),
            None => self.ids.len() < HISTORY,
        }
    }

    pub(crate) fn seal(&self) -> Vec<u8> {
        let payload = self.payload.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEAD + self.ids.len() * 8 + payload.len());
        let flags = if self.payload.is_none() { REMOVED } else { 0 };
        // HISTORY fits a byte.
        bytes.extend([MARK[0], MARK[1], flags, self.ids.len() as u8]);
        bytes.extend(self.ids.iter().flat_map(|id| id.get().to_be_bytes()));
        bytes.extend(payload);
        bytes
    }

    /// `None`: tenure did not write this.
    pub(crate) fn open(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let [first, second, flags, count] = *head else { return None };
        let count = usize::from(count);
        if [first, second] != MARK || flags > REMOVED || count > HISTORY {
            return None;
        }
        let (ids, payload) = rest.split_at_checked(count * 8)?;
        let ids = ids.as_chunks().0.iter().map(|id| SwapId::new(u64::from_be_bytes(*id)));
        let payload = (flags & REMOVED == 0).then(|| payload.to_vec());
        Some(Self { payload, ids: ids.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(times: u64) -> Envelope {
        (1..=times).fold(Envelope::default(), |before, id| {
            Envelope::after(&before, SwapId::new(id), Some(vec![7; 3]))
        })
    }

    #[test]
    fn a_sealed_value_is_read_back_within_its_overhead() {
        for times in [1, 2, 16, 40] {
            let envelope = written(times);
            let sealed = envelope.seal();
            assert!(sealed.len() <= OVERHEAD + 3);
            assert_eq!(Envelope::open(&sealed), Some(envelope));
        }
        let removed = Envelope::after(&written(2), SwapId::new(9), None);
        assert_eq!(Envelope::open(&removed.seal()), Some(removed));
    }

    #[test]
    fn data_that_tenure_did_not_write_is_not_read() {
        let sealed = written(3).seal();
        for bad in [&b""[..], b"T", b"hello, world", &sealed[..20], b"T\x02\0\0", b"T\x01\x02\0"] {
            assert_eq!(Envelope::open(bad), None, "{bad:?}");
        }
        assert_eq!(Envelope::open(b"T\x01\0\x11"), None, "more ids than are ever kept");
    }

    #[test]
    fn a_history_tells_whether_a_swap_took_place_until_it_is_full() {
        let before = written(3);
        let covered = |times| written(times).covers(&before);
        assert!(covered(4) && covered(18), "up to fifteen swaps after it");
        assert!(!covered(19), "the last swap that was known then is forgotten");
        assert!(written(15).covers(&Envelope::default()));
        assert!(!written(16).covers(&Envelope::default()));
        assert!(written(18).wrote(SwapId::new(3)) && !written(19).wrote(SwapId::new(3)));
    }
}
