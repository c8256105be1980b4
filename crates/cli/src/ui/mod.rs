//! `tenure ui`: the locks of a store on a page, live.
//!
//! The page is rendered here. A script of a few lines replaces its changing part with what a stream of
//! server-sent events brings; without it the page reloads. Nothing is fetched from elsewhere.
//!
//! Who may do what: a page on a loopback address that cannot release anything is open to the users of this
//! machine, and to no other site, because requests must name a loopback host. Otherwise each request must bring
//! the token of the printed URL, which is in no cookie, so that another site cannot send it.

mod page;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Form, Query, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use tenure::{LockName, OwnerId};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::args;
use crate::exit::{self, Failure, Outcome, line};
use crate::live::board::{self, Sort};
use crate::live::{Forced, Live};
use crate::output::{Output, note, report};
use crate::signals::Signals;

/// How often a page is drawn though nothing has changed: ages grow.
const REDRAW_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two drawings of a page.
const REDRAW_AFTER: Duration = Duration::from_millis(200);
/// How many pages are kept up to date at a time.
const VIEWERS: usize = 64;

pub(crate) async fn execute(store: &str, arguments: &args::Ui, output: &Output) -> Outcome {
    if arguments.every.is_zero() {
        return Err(Failure::new(exit::USAGE, "--every must be above zero, such as 1s"));
    }
    let mut signals = Signals::listen()?;
    let live = Live::start(store, &arguments.prefix, arguments.every).await?;
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
        Failure::new(exit::USAGE, format!("cannot listen on {}: {error}", arguments.listen))
    })?;
    let address = listener.local_addr().map_err(|error| Failure::system("listen", &error))?;
    let url = crate::stores::registry().parse(store).map(|url| url.to_string());
    let site = Site::new(live, url.unwrap_or_default(), address, arguments.allow_release);
    if !address.ip().is_loopback() {
        report(&format!(
            "other machines can reach {address}, and the connection is not encrypted: anyone who has the \
             URL can {}",
            if arguments.allow_release { "see and release locks" } else { "see the locks" }
        ));
    }
    if let Err(closed) = output.result(&Listening { url: &site.address }, &site.address) {
        return closed.outcome();
    }
    note("^C ends it");
    let serving = axum::serve(listener, routes(Arc::new(site)));
    match signals.unless_interrupted(serving.into_future()).await {
        Ok(Err(error)) => Err(Failure::system("serve the page", &error)),
        Ok(Ok(())) | Err(_) => Ok(exit::OK),
    }
}

#[derive(Serialize)]
struct Listening<'a> {
    url: &'a str,
}

/// What all requests share.
struct Site {
    live: Live,
    store: String,
    /// The URL to open.
    address: String,
    /// Whether only this machine can reach the page.
    is_local: bool,
    may_release: bool,
    /// What each request must bring. `None`: nothing.
    token: Option<String>,
    viewers: Arc<Semaphore>,
}

impl Site {
    fn new(live: Live, store: String, address: SocketAddr, may_release: bool) -> Self {
        let is_local = address.ip().is_loopback();
        let token = (may_release || !is_local).then(|| OwnerId::random().to_string());
        let query = token.as_ref().map_or_else(String::new, |token| format!("?token={token}"));
        let address = format!("http://{address}/{query}");
        let viewers = Arc::new(Semaphore::new(VIEWERS));
        Self { live, store, address, is_local, may_release, token, viewers }
    }
}

/// The parts of a page's address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    token: Option<String>,
    filter: String,
    /// `on`: only locks that are waited for.
    contended: Option<String>,
    sort: String,
    page: usize,
    lock: Option<String>,
    /// What came of a release: a word of [`Said`].
    said: Option<String>,
}

impl View {
    fn query(&self) -> board::Query {
        let sort = Sort::ALL.into_iter().find(|sort| sort.as_str() == self.sort);
        let (filter, contended) = (self.filter.clone(), self.contended.is_some());
        board::Query { filter, contended, sort: sort.unwrap_or_default() }
    }

    fn lock(&self) -> Option<LockName> {
        LockName::new(self.lock.as_deref()?).ok()
    }

    fn said(&self) -> Option<Said> {
        Said::ALL.into_iter().find(|said| Some(said.word()) == self.said.as_deref())
    }
}

/// What came of a release. In an address it is a word, so that a link cannot make the page say anything else.
#[derive(Clone, Copy, Debug)]
enum Said {
    Forced(Forced),
    Misnamed,
    NoReason,
    Failed,
}

impl Said {
    const ALL: [Self; 7] = [
        Self::Forced(Forced::Evicted),
        Self::Forced(Forced::NotHeld),
        Self::Forced(Forced::Changed),
        Self::Forced(Forced::Unreached),
        Self::Misnamed,
        Self::NoReason,
        Self::Failed,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Forced(Forced::Evicted) => "evicted",
            Self::Forced(Forced::NotHeld) => "free",
            Self::Forced(Forced::Changed) => "changed",
            Self::Forced(Forced::Unreached) => "unreached",
            Self::Misnamed => "misnamed",
            Self::NoReason => "unexplained",
            Self::Failed => "failed",
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Forced(forced) => forced.as_str(),
            Self::Misnamed => "the name that was typed is another one: nothing was released",
            Self::NoReason => "a reason is needed: nothing was released",
            Self::Failed => {
                "the release failed, and may have been done in part: `tenure ui` has printed why"
            }
        }
    }
}

fn routes(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(whole))
        .route("/live", get(live))
        .route("/release", post(release))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), admit))
        // They say nothing of the store.
        .route("/style.css", get(style))
        .route("/script.js", get(script))
        .layer(middleware::map_response(protect))
        .with_state(site)
}

/// The part of an address that [`admit`] looks at. The others are the page's to judge.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
}

/// Refuses requests without the token, and those that another site has led here.
async fn admit(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let refuse = |why: &'static str| (StatusCode::FORBIDDEN, why).into_response();
    if site.is_local && !names_loopback(request.headers(), request.uri()) {
        return refuse("this page is for this machine: open it as localhost");
    }
    // A form sends its token in the body. `get` also answers HEAD, whose length tells of the locks.
    if request.method() != Method::POST {
        let query = Query::<Token>::try_from_uri(request.uri()).map(|query| query.0);
        if !query.is_ok_and(|query| is_token(&site, query.token.as_deref())) {
            return refuse("this page needs the token of the URL that `tenure ui` printed");
        }
    }
    next.run(request).await
}

/// Whether the request is for a loopback host: a name that another site has pointed to this machine is not.
fn names_loopback(headers: &HeaderMap, uri: &Uri) -> bool {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = named.and_then(|host| host.parse::<axum::http::uri::Authority>().ok());
    let host = host.as_ref().map(|authority| authority.host()).or_else(|| uri.host());
    host.is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

fn is_token(site: &Site, given: Option<&str>) -> bool {
    match (&site.token, given) {
        (None, _) => true,
        (Some(_), None) => false,
        // Takes the same time however many characters are right.
        (Some(token), Some(given)) => {
            let differs = token.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
            token.len() == given.len() && differs == 0
        }
    }
}

/// Headers that keep other sites out, and the token in.
async fn protect(mut response: Response) -> Response {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    response
}

async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("style.css"))
}

async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("script.js"))
}

async fn whole(State(site): State<Arc<Site>>, Query(view): Query<View>) -> Html<String> {
    Html(page::whole(&site, &view).into_string())
}

/// The changing part of a page, whenever it changes.
async fn live(State(site): State<Arc<Site>>, Query(view): Query<View>) -> Response {
    let Ok(permit) = Arc::clone(&site.viewers).try_acquire_owned() else {
        let why = "too many pages are open: close one";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let stream = Sse::new(drawings(site, view, permit));
    stream.keep_alive(KeepAlive::default()).into_response()
}

fn drawings(
    site: Arc<Site>,
    view: View,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let (changes, viewer) = (site.live.changes(), site.live.viewer());
    let state = (site, view, changes, permit);
    stream::unfold(state, move |(site, view, mut changes, permit)| async move {
        tokio::time::sleep(REDRAW_AFTER).await;
        let _ = tokio::time::timeout(REDRAW_EVERY - REDRAW_AFTER, changes.next()).await;
        let drawn = page::changing(&site, &view, viewer).into_string();
        Some((Ok(Event::default().data(drawn)), (site, view, changes, permit)))
    })
}

/// A release by force, as the form sends it.
#[derive(Default)]
struct Release {
    token: String,
    lock: String,
    /// The holders that were shown.
    owners: Vec<String>,
    reason: String,
    /// The lock's name, typed again.
    name: String,
    /// The list that the page came from.
    list: View,
}

impl From<Vec<(String, String)>> for Release {
    fn from(fields: Vec<(String, String)>) -> Self {
        let mut form = Self::default();
        for (field, value) in fields {
            match &*field {
                "token" => form.token = value,
                "lock" => form.lock = value,
                "owner" => form.owners.push(value),
                "reason" => form.reason = value,
                "name" => form.name = value,
                "filter" => form.list.filter = value,
                "sort" => form.list.sort = value,
                "contended" => form.list.contended = Some(value),
                "page" => form.list.page = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        form
    }
}

async fn release(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let form = Release::from(fields);
    let refuse = |why: &'static str| (StatusCode::FORBIDDEN, why).into_response();
    if !site.may_release {
        return refuse("this page may not release locks: start `tenure ui --allow-release`");
    }
    if !is_token(&site, Some(&form.token)) || !is_from_here(&headers) {
        return refuse("this request needs the token of the URL that `tenure ui` printed");
    }
    let said = force(&site, &form).await;
    let shown = View {
        token: site.token.clone(),
        lock: Some(form.lock),
        said: Some(said.word().into()),
        ..form.list
    };
    Redirect::to(&page::address("/", &shown)).into_response()
}

/// Whether a browser says that the request comes from this page, if it says anything.
fn is_from_here(headers: &HeaderMap) -> bool {
    let said = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = said(header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    // `no-referrer` makes the origin of a form `null`.
    let origin_fits = match (said(header::ORIGIN), origin) {
        (None | Some("null"), _) => true,
        (Some(_), origin) => origin.is_some() && origin == said(header::HOST),
    };
    let site = said(HeaderName::from_static("sec-fetch-site"));
    origin_fits && site.is_none_or(|site| site == "same-origin")
}

/// Evicts the holders that were shown.
async fn force(site: &Site, form: &Release) -> Said {
    if form.name != form.lock {
        return Said::Misnamed;
    }
    if form.reason.trim().is_empty() {
        return Said::NoReason;
    }
    let forced = match LockName::new(&form.lock) {
        Ok(lock) => site.live.evict(&lock, &form.owners, form.reason.trim()).await,
        Err(error) => Err(error),
    };
    forced.map_or_else(
        |error| {
            report(&line(&error));
            Said::Failed
        },
        Said::Forced,
    )
}
