//! A tower layer by which an HTTP service refuses late requests.
//!
//! A client sends `Fencing-Token: <lock>;<token>` with each request that its lock protects
//! ([`header_value`] writes it). The layer answers for the service if the request must not reach it:
//!
//! | answer | when |
//! |---|---|
//! | 428 Precondition Required | the header is missing |
//! | 400 Bad Request | the header is malformed, or names a lock that does not protect this service |
//! | 412 Precondition Failed | the token is out of date |
//! | 503 Service Unavailable | the record of tokens cannot be read or written |
//!
//! The check comes before the service, not in one step with its write: a request that was admitted and then
//! stands still inside the service can still be overtaken. Where that matters, let the service hand the token
//! on to its database ([`Admitted`], in the request's extensions).
//!
//! ```
//! use std::sync::Arc;
//! use tenure::LockName;
//! use tenure::gate::MemoryRegister;
//! use tenure::gate::http::FencingLayer;
//!
//! # fn main() -> tenure::Result<()> {
//! let layer = FencingLayer::new([LockName::new("payouts")?], Arc::new(MemoryRegister::new()));
//! // axum: Router::new().route("/payouts", post(pay)).layer(layer)
//! # Ok(())
//! # }
//! ```

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as try_ready};

use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tenure_core::{LockName, Token};
use tower_layer::Layer;
use tower_service::Service;

use crate::{GateError, Register};

/// The header that carries a lock's name and token.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The value of the header for this hold of a lock.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) if the lock's name has characters that a header
/// cannot carry.
pub fn header_value(lock: &LockName, token: Token) -> tenure_core::Result<HeaderValue> {
    HeaderValue::from_str(&format!("{lock};{token}")).map_err(|_| {
        let why = "a header carries ASCII only: name the lock with ASCII characters";
        tenure_core::Error::new(tenure_core::ErrorKind::Invalid, "send the token of", why)
            .about(lock)
    })
}

/// What a request was admitted with, in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admitted {
    /// The lock.
    pub lock: LockName,
    /// Its token.
    pub token: Token,
}

/// Puts a gate in front of a service.
pub struct FencingLayer<R> {
    locks: Arc<[LockName]>,
    register: Arc<R>,
}

/// A service behind a gate.
pub struct Fenced<S, R> {
    inner: S,
    locks: Arc<[LockName]>,
    register: Arc<R>,
}

impl<R: Register> FencingLayer<R> {
    /// A gate for a service that these locks protect. The register is called on the thread that calls the
    /// service, so one that blocks, such as a [`FileRegister`](crate::FileRegister), blocks that thread.
    pub fn new(locks: impl IntoIterator<Item = LockName>, register: Arc<R>) -> Self {
        Self { locks: locks.into_iter().collect(), register }
    }
}

impl<S, R> Layer<S> for FencingLayer<R> {
    type Service = Fenced<S, R>;

    fn layer(&self, inner: S) -> Fenced<S, R> {
        Fenced { inner, locks: Arc::clone(&self.locks), register: Arc::clone(&self.register) }
    }
}

impl<S, R: Register> Fenced<S, R> {
    /// The answer instead of the service's, or what the request was admitted with.
    fn check<B>(&self, request: &Request<B>) -> Result<Admitted, (StatusCode, String)> {
        let mut values = request.headers().get_all(FENCING_TOKEN).iter();
        let Some(value) = values.next() else {
            let why = format!("send the header {FENCING_TOKEN}: <lock>;<token>");
            return Err((StatusCode::PRECONDITION_REQUIRED, why));
        };
        let malformed = || {
            let why = format!("the header {FENCING_TOKEN} is not <lock>;<token>, once");
            (StatusCode::BAD_REQUEST, why)
        };
        let text = value.to_str().ok().filter(|_| values.next().is_none());
        let (name, token) = text.and_then(|text| text.rsplit_once(';')).ok_or_else(malformed)?;
        let digits = token.bytes().all(|byte| byte.is_ascii_digit());
        let token = token.parse().ok().filter(|_| digits).map(Token::new).ok_or_else(malformed)?;
        let lock = self.locks.iter().find(|lock| lock.as_str() == name).ok_or_else(|| {
            let why = format!("the lock in {FENCING_TOKEN} does not protect this service");
            (StatusCode::BAD_REQUEST, why)
        })?;
        self.register.admit(lock, token).map_err(|error| match error {
            stale @ GateError::Stale { .. } => (StatusCode::PRECONDITION_FAILED, stale.to_string()),
            // The cause is not shown to clients.
            _ => (StatusCode::SERVICE_UNAVAILABLE, "the token cannot be checked now".into()),
        })?;
        Ok(Admitted { lock: lock.clone(), token })
    }
}

impl<S, R, Q, B> Service<Request<Q>> for Fenced<S, R>
where
    S: Service<Request<Q>, Response = Response<B>>,
    R: Register,
    B: From<String>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Answer<S::Future, Response<B>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        match self.check(&request) {
            Ok(admitted) => {
                request.extensions_mut().insert(admitted);
                Answer::Service(Box::pin(self.inner.call(request)))
            }
            Err((status, why)) => {
                let mut response = Response::new(B::from(why + "\n"));
                *response.status_mut() = status;
                Answer::Gate(ready(Ok(response)))
            }
        }
    }
}

/// The service's response, or the gate's.
pub enum Answer<F, T, E> {
    /// The request was admitted.
    Service(Pin<Box<F>>),
    /// The request was refused.
    Gate(Ready<Result<T, E>>),
}

impl<F: Future<Output = Result<T, E>>, T, E> Future for Answer<F, T, E>
where
    Self: Unpin,
{
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut *self {
            Self::Service(service) => try_ready!(service.as_mut().poll(context)),
            Self::Gate(gate) => try_ready!(Pin::new(gate).poll(context)),
        })
    }
}

impl<R> Clone for FencingLayer<R> {
    fn clone(&self) -> Self {
        Self { locks: Arc::clone(&self.locks), register: Arc::clone(&self.register) }
    }
}

impl<S: Clone, R> Clone for Fenced<S, R> {
    fn clone(&self) -> Self {
        let (locks, register) = (Arc::clone(&self.locks), Arc::clone(&self.register));
        Self { inner: self.inner.clone(), locks, register }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRegister;
    use std::convert::Infallible;

    /// Answers with the token that it was called with.
    #[derive(Clone)]
    struct Echo;

    impl Service<Request<()>> for Echo {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            let admitted: &Admitted = request.extensions().get().expect("the gate admitted it");
            ready(Ok(Response::new(format!("{} {}", admitted.lock, admitted.token))))
        }
    }

    fn layer() -> FencingLayer<MemoryRegister> {
        let lock = LockName::new("a;b").unwrap();
        FencingLayer::new([lock], Arc::new(MemoryRegister::new()))
    }

    async fn ask(service: &mut Fenced<Echo, MemoryRegister>, values: &[&str]) -> (u16, String) {
        let mut request = Request::new(());
        for value in values {
            request.headers_mut().append(FENCING_TOKEN, HeaderValue::from_str(value).unwrap());
        }
        let response = service.call(request).await.unwrap();
        (response.status().as_u16(), response.into_body())
    }

    #[tokio::test]
    async fn requests_are_admitted_in_the_order_of_their_tokens() {
        let layer = layer();
        let (mut one, mut other) = (layer.layer(Echo), layer.clone().layer(Echo).clone());
        assert_eq!(ask(&mut one, &["a;b;3"]).await, (200, "a;b 3".into()));
        assert_eq!(ask(&mut other, &["a;b;5"]).await, (200, "a;b 5".into()));
        let (status, why) = ask(&mut one, &["a;b;4"]).await;
        assert_eq!(status, 412);
        assert!(why.contains("has seen 5"), "{why}");
        assert_eq!(ask(&mut one, &["a;b;5"]).await.0, 200);
    }

    #[tokio::test]
    async fn a_request_without_a_sound_header_does_not_reach_the_service() {
        let mut service = layer().layer(Echo);
        assert_eq!(ask(&mut service, &[]).await.0, 428);
        let malformed =
            ["", "7", "a;b", "a;b;", "a;b;x", "a;b;+7", "a;b;-1", "a;b;99999999999999999999"];
        for value in malformed {
            assert_eq!(ask(&mut service, &[value]).await.0, 400, "{value:?}");
        }
        assert_eq!(ask(&mut service, &["a;b;7", "a;b;8"]).await.0, 400);
        assert_eq!(ask(&mut service, &["other;7"]).await.0, 400);
        // None of them was recorded.
        assert_eq!(ask(&mut service, &["a;b;1"]).await.0, 200);
    }

    #[tokio::test]
    async fn a_register_that_fails_admits_nothing() {
        struct Broken;
        impl Register for Broken {
            fn admit(&self, lock: &LockName, _: Token) -> Result<(), GateError> {
                let source = std::io::Error::other("secret path");
                Err(GateError::Resource { lock: lock.clone(), source })
            }
        }
        let lock = LockName::new("a").unwrap();
        let mut service = FencingLayer::new([lock.clone()], Arc::new(Broken)).layer(Echo);
        let mut request = Request::new(());
        let value = header_value(&lock, Token::new(1)).unwrap();
        request.headers_mut().insert(FENCING_TOKEN, value);
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!response.body().contains("secret"));
    }
}
