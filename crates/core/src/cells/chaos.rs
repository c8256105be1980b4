//! The cells of a store around a store: with the same faults as its locks.

use std::time::Duration;

use async_trait::async_trait;

use super::contract::{
    Add, Added, CellClock, CellKey, Cells, Stored, Swap, Swapped, Take, Taken, Version,
};
use crate::{Chaos, Result};

#[async_trait]
impl Cells for Chaos {
    fn max_value_bytes(&self) -> usize {
        self.inner().cells().map_or(0, |cells| cells.max_value_bytes())
    }

    fn clock(&self) -> CellClock {
        self.inner().cells().map_or(CellClock::PerClient, |cells| cells.clock())
    }

    async fn time(&self) -> Result<Duration> {
        let cells = self.inner().cells()?;
        self.call(|| cells.time()).await
    }

    async fn read(&self, key: &CellKey) -> Result<Option<Stored>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.read(key)).await
    }

    async fn swap(&self, key: &CellKey, swap: &Swap) -> Result<Swapped> {
        let cells = self.inner().cells()?;
        self.call(|| cells.swap(key, swap)).await
    }

    async fn add(&self, key: &CellKey, add: &Add) -> Result<Option<Added>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.add(key, add)).await
    }

    async fn take(&self, key: &CellKey, take: &Take) -> Result<Option<Taken>> {
        let cells = self.inner().cells()?;
        self.call(|| cells.take(key, take)).await
    }

    async fn changed(&self, key: &CellKey, seen: Option<Version>) -> Result<()> {
        let cells = self.inner().cells()?;
        self.message(cells.changed(key, seen)).await
    }
}
