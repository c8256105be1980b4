//! What can be kept in a cell.

use crate::{Error, ErrorKind, Result};

/// A value that can be kept in a [`Cell`](crate::Cell).
///
/// Bytes, text and 64-bit integers are; with the feature `json`, so is everything that
/// `Json` can wrap.
pub trait CellValue: Sized {
    /// The bytes to be stored.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a value that has no such form.
    fn to_bytes(&self) -> Result<Vec<u8>>;

    /// The value that these bytes stand for.
    ///
    /// # Errors
    /// [`Damaged`](ErrorKind::Damaged) if they stand for none.
    fn from_bytes(bytes: &[u8]) -> Result<Self>;
}

fn damaged(what: &str) -> Error {
    let why = format!("the stored value is {what}: is the cell used with another type?");
    Error::new(ErrorKind::Damaged, "read the cell", why)
}

impl CellValue for Vec<u8> {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.clone())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Ok(bytes.to_vec())
    }
}

impl CellValue for String {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.clone().into_bytes())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::from_utf8(bytes.to_vec()).map_err(|_| damaged("no text"))
    }
}

/// Integers are kept as decimal digits, so that people can read them in the store.
macro_rules! integer {
    ($($integer:ty),*) => {$(
        impl CellValue for $integer {
            fn to_bytes(&self) -> Result<Vec<u8>> {
                Ok(self.to_string().into_bytes())
            }

            fn from_bytes(bytes: &[u8]) -> Result<Self> {
                let text = std::str::from_utf8(bytes).map_err(|_| damaged("no number"))?;
                text.parse().map_err(|_| damaged("no number of this type"))
            }
        }
    )*};
}

integer!(u64, i64);

/// A value that is kept as JSON.
///
/// ```
/// use tenure::{CellValue, Json};
///
/// let bytes = Json(vec![1, 2, 3]).to_bytes()?;
/// assert_eq!(bytes, b"[1,2,3]");
/// assert_eq!(Json::<Vec<u8>>::from_bytes(&bytes)?.0, [1, 2, 3]);
/// # Ok::<(), tenure::Error>(())
/// ```
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Json<T>(pub T);

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> CellValue for Json<T> {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.0).map_err(|error| {
            let why = format!("the value cannot be written as JSON ({error})");
            Error::new(ErrorKind::Invalid, "write the cell", why).caused_by(error)
        })
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let read = serde_json::from_slice(bytes).map(Self);
        read.map_err(|error| damaged("no JSON of this type").caused_by(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_and_others_are_refused_as_damaged() {
        for number in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(i64::from_bytes(&number.to_bytes().unwrap()).unwrap(), number);
        }
        assert_eq!(String::from_bytes("é".as_bytes()).unwrap(), "é");
        assert_eq!(String::from_bytes(&[0xff]).unwrap_err().kind(), ErrorKind::Damaged);
        for bad in [&b""[..], b"1.5", b"-1", b" 1", &[0xff], b"18446744073709551616"] {
            assert_eq!(u64::from_bytes(bad).unwrap_err().kind(), ErrorKind::Damaged, "{bad:?}");
        }
    }
}
