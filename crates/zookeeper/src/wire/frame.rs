//! Frames: each message is preceded by its length.

use super::jute::{Malformed, Reader, Writer};

/// The longest frame that is read or written. Servers send at most 1 MiB unless they are told
/// otherwise.
const LONGEST_FRAME: usize = 64 << 20;

/// About how much memory is kept for input between frames.
const SPARE: usize = 1 << 20;

/// Appends a frame: its length, and what `write` adds.
///
/// # Errors
/// If it would be too long. Then nothing is appended.
pub(super) fn frame(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Writer<'_>),
) -> Result<(), Malformed> {
    let start = out.len();
    let mut writer = Writer::new(out);
    writer.int(0);
    write(&mut writer);
    let length = out.len() - start - size_of::<i32>();
    let Some(length) = i32::try_from(length).ok().filter(|_| length <= LONGEST_FRAME) else {
        out.truncate(start);
        return Err(Malformed);
    };
    out[start..start + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// The content of the frame that `input` begins with. `None`: it has not arrived in full.
///
/// # Errors
/// If no frame is this long.
pub(super) fn unframe(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut reader = Reader::new(input);
    let Ok(length) = reader.int() else { return Ok(None) };
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    if length > LONGEST_FRAME {
        return Err(Malformed);
    }
    Ok(reader.rest().get(..length))
}

/// Removes frames that were dispatched. The memory of a long frame, such as a large listing, is not
/// kept.
pub(super) fn discard(input: &mut Vec<u8>, taken: usize) {
    input.drain(..taken);
    if taken > 0 && input.len() < SPARE && input.capacity() > 2 * SPARE {
        input.shrink_to(SPARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_long_frame_is_not_kept() {
        let mut input = vec![1; 10 * SPARE];
        let capacity = input.capacity();
        discard(&mut input, 0);
        assert_eq!(input.capacity(), capacity, "the frame has not arrived in full");
        discard(&mut input, 10 * SPARE - 3);
        assert_eq!(input, [1; 3]);
        assert!(input.capacity() <= 2 * SPARE, "{}", input.capacity());
    }
}
