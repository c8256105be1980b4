//! Jute, the encoding of ZooKeeper's protocol: big-endian numbers, and everything else with its
//! length in front.

/// The bytes are not what the protocol says they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends values to a buffer.
#[derive(Debug)]
pub(crate) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    pub(crate) fn int(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn long(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    /// Bytes. A length that does not fit is cut to one that no server takes; frames are bounded
    /// long before that.
    pub(crate) fn buffer(&mut self, bytes: &[u8]) {
        self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.buffer(text.as_bytes());
    }

    pub(crate) fn vector<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.int(i32::try_from(items.len()).unwrap_or(i32::MAX));
        for item in items {
            write(self, item);
        }
    }
}

/// Takes values from the front of a slice. Never panics, and never reserves more memory than the
/// slice is long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.take(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i32, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*bytes))
    }

    pub(crate) fn long(&mut self) -> Result<i64, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(i64::from_be_bytes(*bytes))
    }

    /// Bytes. Java's null, of length -1, is read as empty.
    pub(crate) fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.length()?;
        self.take(length)
    }

    pub(crate) fn string(&mut self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.buffer()?).map_err(|_| Malformed)
    }

    pub(crate) fn vector<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.length()?;
        // Each item takes at least one byte, so a larger count is malformed.
        if count > self.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| read(self)).collect()
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        match self.int()? {
            -1 => Ok(0),
            length => usize::try_from(length).map_err(|_| Malformed),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_that_cannot_be_are_refused_without_room_for_them() {
        for length in [i32::MAX, 2, -2, i32::MIN] {
            let mut out = Vec::new();
            Writer::new(&mut out).int(length);
            out.push(0);
            assert_eq!(Reader::new(&out).buffer(), Err(Malformed), "{length}");
            assert_eq!(Reader::new(&out).vector(Reader::bool), Err(Malformed), "{length}");
        }
        assert_eq!(Reader::new(&[0xff; 4]).buffer(), Ok(&b""[..]), "Java's null");
        assert_eq!(Reader::new(&[2]).bool(), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0xff]).string(), Err(Malformed));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            flag in any::<bool>(),
            int in any::<i32>(),
            long in any::<i64>(),
            buffer in prop::collection::vec(any::<u8>(), 0..50),
            texts in prop::collection::vec(".{0,20}", 0..10),
        ) {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out);
            writer.bool(flag);
            writer.int(int);
            writer.long(long);
            writer.buffer(&buffer);
            writer.vector(&texts, |writer, text| writer.string(text));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.bool(), Ok(flag));
            prop_assert_eq!(reader.int(), Ok(int));
            prop_assert_eq!(reader.long(), Ok(long));
            prop_assert_eq!(reader.buffer(), Ok(&*buffer));
            let read = reader.vector(|reader| reader.string().map(str::to_owned));
            prop_assert_eq!(read, Ok(texts));
            prop_assert_eq!(reader.rest(), b"");
        }
    }
}
