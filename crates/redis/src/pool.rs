//! One of a thing for each address.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::Result;
use tokio::sync::OnceCell;

/// Host and port.
pub(crate) type Address = (String, u16);

/// Things that are made when they are first asked for. To make one holds up nobody who wants
/// another.
pub(crate) struct Pool<T>(Mutex<HashMap<Address, Arc<OnceCell<Arc<T>>>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pool<T> {
    pub(crate) async fn get(
        &self,
        address: &Address,
        make: impl Future<Output = Result<T>>,
    ) -> Result<Arc<T>> {
        let cell = Arc::clone(self.0.lock().entry(address.clone()).or_default());
        cell.get_or_try_init(async || make.await.map(Arc::new)).await.cloned()
    }

    pub(crate) fn retain(&self, keep: impl Fn(&Address) -> bool) {
        self.0.lock().retain(|address, _| keep(address));
    }
}
