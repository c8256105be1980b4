//! One server of a cluster, and its channels.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::store::Background;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::dial::Dialer;

/// One server, with two channels, each of which connects when it is first used.
///
/// Calls of the runtime that connected use the first, which that runtime serves. Renewals, watches and
/// all other calls use the second, which the background thread serves: they must go on when the
/// program's runtime is blocked or has ended.
pub(super) struct Server {
    pub(super) dialer: Dialer,
    pub(super) for_caller: Mutex<Numbered>,
    pub(super) for_background: Mutex<Numbered>,
    /// Its member id, if the cluster named it. `None`: the configuration or DNS did.
    pub(super) found: Option<u64>,
}

/// A channel, and how many there were before it.
pub(super) type Numbered = (u64, Channel);

impl Server {
    pub(super) fn new(dialer: Dialer, background: &Background, found: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            for_caller: Mutex::new((0, dialer.channel())),
            for_background: Mutex::new((0, channel_in(background, &dialer))),
            dialer,
            found,
        })
    }
}

/// A channel whose connection is served by the background thread.
pub(super) fn channel_in(background: &Background, dialer: &Dialer) -> Channel {
    let _inside = background.runtime().enter();
    dialer.channel()
}

/// A channel to one server, which adds the login to each call.
pub(crate) type Link = InterceptedService<Channel, Headers>;

/// Adds the login to every call, and asks a server without a leader to fail at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers(pub(super) Option<MetadataValue<Ascii>>);

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.0 {
            metadata.insert("token", token.clone());
        }
        Ok(request)
    }
}
