//! The names of locks.

use tenure_core::{LockName, Result};

use crate::inner::Inner;
use crate::rpc::RangeRequest;

/// How many keys are read at once.
const PAGE: i64 = 2_000;

impl Inner {
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let (mut key, range_end) = self.keyring.all(prefix);
        let mut names: Vec<LockName> = Vec::new();
        loop {
            let range_end = range_end.clone();
            let limit = PAGE;
            let page =
                RangeRequest { key, range_end, limit, keys_only: true, ..Default::default() };
            let page = self.members.range("list locks", page).await?;
            names.extend(page.kvs.iter().filter_map(|kv| self.keyring.lock_of(&kv.key)));
            names.dedup();
            match page.kvs.into_iter().last() {
                Some(last) if page.more => {
                    key = last.key;
                    key.push(0);
                }
                _ => break,
            }
        }
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        names.dedup();
        Ok(names)
    }
}
