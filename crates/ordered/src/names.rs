//! Lock names as parts of keys and paths.

use percent_encoding::{percent_decode_str, percent_encode_byte};
use tenure_core::LockName;

/// Writes a lock's name as one part of a key, as URLs do: `a/b` is `a%2Fb`.
///
/// A slash would end the part, and a `%` would look like an encoded character. `also` says which
/// characters the engine refuses besides, by their place in the name.
pub fn encode_name(name: &str, also: impl Fn(usize, char) -> bool) -> String {
    let mut encoded = String::with_capacity(name.len());
    for (place, c) in name.char_indices() {
        if matches!(c, '%' | '/') || also(place, c) {
            encoded.extend(c.encode_utf8(&mut [0; 4]).bytes().map(percent_encode_byte));
        } else {
            encoded.push(c);
        }
    }
    encoded
}

/// The lock whose name `encode` writes like this. Every name has one spelling, so a key that another
/// program has spelled differently belongs to no lock.
pub fn decode_name(encoded: &str, encode: impl Fn(&str) -> String) -> Option<LockName> {
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    (encode(&name) == encoded).then(|| LockName::new(&name).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(name: &str) -> String {
        encode_name(name, |place, c| c == 'é' || (c == 'z' && place == 0))
    }

    #[test]
    fn names_are_encoded_in_one_way_and_decoded_again() {
        for (name, encoded) in [
            ("a", "a"),
            ("a/b", "a%2Fb"),
            ("%2F", "%252F"),
            ("100%", "100%25"),
            ("é", "%C3%A9"),
            ("zz", "%7Az"),
            ("ключ", "ключ"),
        ] {
            assert_eq!(encode(name), encoded);
            assert_eq!(decode_name(encoded, encode).unwrap().as_str(), name);
        }
        for other in ["%2f", "%41", "%", "%2", "%zz", "a/b", "%FF", "%C3", ""] {
            assert_eq!(decode_name(other, encode), None, "{other}");
        }
    }
}
