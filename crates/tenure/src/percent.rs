//! Percent-encoding: how a URL carries the bytes that would end one of its parts.

/// The bytes behind `text`. A percent sign that two hexadecimal digits do not follow is itself.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, bytes.get(at + 1..at + 3).and_then(hex_byte)) {
            (b'%', Some(value)) => {
                decoded.push(value);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// [`encode`], for the value of an option: it may not hold what ends one either.
pub(crate) fn encode_value(value: &str) -> String {
    encode(value.as_bytes()).replace('&', "%26").replace('#', "%23")
}

/// [`encode`], for a user's name: it may not hold what ends one either.
pub(crate) fn encode_user(user: &str) -> String {
    let text = encode(user.as_bytes());
    text.replace(':', "%3A").replace('@', "%40").replace('/', "%2F").replace('#', "%23")
}

/// A text that [`decode`] turns into the same bytes, and that holds neither `?` nor anything a
/// terminal would act on.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, byte: u8| text.push_str(&format!("%{byte:02X}"));
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || matches!(character, '%' | '?') {
                let mut buffer = [0; 4];
                let encoded = character.encode_utf8(&mut buffer);
                encoded.bytes().for_each(|byte| escape(&mut text, byte));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|&byte| escape(&mut text, byte));
    }
    text
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let value = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(value(*high)? * 16 + value(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_encoded_decodes_to_the_same_bytes() {
        let every_byte: Vec<u8> = (0..=255).collect();
        for bytes in [&every_byte[..], b"/a b?c%20", "ключ\u{85}".as_bytes(), b""] {
            let text = encode(bytes);
            assert_eq!(decode(&text), bytes);
            assert!(!text.contains(|c: char| c == '?' || c.is_control()), "{text:?}");
        }
    }

    #[test]
    fn a_percent_sign_alone_is_itself() {
        for text in ["%", "100%", "%g0", "%0"] {
            assert_eq!(decode(text), text.as_bytes());
        }
        assert_eq!(decode("%2f%2F"), b"//");
    }
}
