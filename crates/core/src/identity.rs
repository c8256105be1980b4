//! Which store a client talks to, as far as its process can tell.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use crate::{Store, StoreUrl};

/// Two clients with equal identities have the same locks. Clients with different ones may have the same locks
/// nevertheless: a server has many addresses.
#[derive(Clone, Debug)]
pub(crate) enum StoreIdentity {
    /// The store behind a URL, without what only says how to reach it.
    Url(Arc<str>),
    /// A store that no URL tells from others. It is not kept alive, but its address is.
    Object(Weak<dyn Store>),
}

impl StoreIdentity {
    pub(crate) fn of(store: &Arc<dyn Store>) -> Self {
        Self::Object(Arc::downgrade(store))
    }

    /// `None`: each connection with this URL makes a store of its own, or the URL depends on an environment
    /// that does not say where the store is.
    pub(crate) fn of_url(url: &StoreUrl) -> Option<Self> {
        Some(Self::Url(url.identity()?.into()))
    }

    /// The canonical order of stores, which is the same in all processes. Stores without a URL have none.
    pub(crate) fn order(&self) -> Option<&str> {
        match self {
            Self::Url(url) => Some(url),
            Self::Object(_) => None,
        }
    }
}

impl PartialEq for StoreIdentity {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Url(one), Self::Url(other)) => one == other,
            (Self::Object(one), Self::Object(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for StoreIdentity {}

impl Hash for StoreIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Url(url) => url.hash(state),
            Self::Object(store) => store.as_ptr().cast::<()>().hash(state),
        }
    }
}
