//! Durations as people write them on a command line or in a URL.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// Reads a duration: a whole number and its unit, `250ms`, `30s`, `5m` or `2h`.
///
/// A number without a unit is refused: half of the world reads it as seconds, the other half as
/// milliseconds.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tenure::parse_duration("250ms")?, Duration::from_millis(250));
/// assert!(tenure::parse_duration("30").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for everything else, with the forms that are known.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let milliseconds_each: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(invalid("write a whole number and a unit: 250ms, 30s, 5m or 2h")),
    };
    if number.is_empty() {
        return Err(invalid("the number is missing: write 250ms, 30s, 5m or 2h"));
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds_each))
        .map(Duration::from_millis)
        .ok_or_else(|| invalid("the number is too large"))
}

/// The shortest form that [`parse_duration`] reads back as the same number of milliseconds.
pub(crate) fn write_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    match milliseconds % 1_000 {
        0 => format!("{}s", milliseconds / 1_000),
        _ => format!("{milliseconds}ms"),
    }
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, "read the duration", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_units_are_read() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("007s", 7_000),
        ] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text).unwrap(), duration, "{text}");
            assert_eq!(parse_duration(&write_duration(duration)).unwrap(), duration);
        }
    }

    #[test]
    fn everything_else_is_refused_with_the_known_forms() {
        for bad in [
            "",
            "s",
            "5",
            "-5s",
            "+5s",
            "1.5s",
            "5 s",
            " 5s",
            "5s ",
            "5S",
            "5d",
            "5us",
            "٣s",
            "18446744073709551616s",
            "18446744073709551615h",
        ] {
            let error = parse_duration(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
        }
        let error = parse_duration("5 minutes").unwrap_err().to_string();
        assert!(error.contains("250ms, 30s, 5m or 2h"), "{error}");
    }
}
