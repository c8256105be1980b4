//! The page, as HTML.

use std::time::{Duration, Instant};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tenure::{Change, ChangedClaim, LockName, Severity};

use super::{Site, View};
use crate::live::board::{Activity, Board, Lane, Row, Sort, Term};
use crate::output::printable;
use crate::show;

/// How many locks are on a page.
const PER_PAGE: usize = 50;
/// How many waiters are listed.
const LISTED: usize = 100;

pub(super) fn whole(site: &Site, view: &View) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "tenure: " (printable(&site.store)) }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="style.css";
                script src="script.js" defer {}
                // A form would lose what was typed.
                @if !site.may_release || view.lock.is_none() {
                    noscript { meta http-equiv="refresh" content="3"; }
                }
            }
            body {
                header {
                    h1 { a href=(link(view, &View::default())) { "tenure" } }
                    p.store { (printable(&site.store)) }
                }
                @if view.lock.is_none() { (choice(view)) }
                @if let Some(said) = view.said() { p.said role="status" { (said.as_str()) } }
                main id="changing" data-live=(live_address(view)) { (changing(site, view, site.live.viewer())) }
                @if let (true, Some(lock)) = (site.may_release, view.lock()) { (release(site, view, &lock)) }
                footer {
                    p { "Where the store is sampled, what comes and goes between two looks is not seen. "
                        kbd { "/" } " goes to the filter." }
                }
            }
        }
    }
}

/// What is replaced whenever the store has changed.
pub(super) fn changing(site: &Site, view: &View, viewer: u64) -> Markup {
    let lock = view.lock();
    if let Some(lock) = &lock {
        site.live.focus(viewer, vec![lock.clone()]);
    }
    let board = site.live.board();
    html! {
        (state(&board))
        @match lock {
            Some(lock) => (details(&lock, view, &board)),
            None => (list(site, view, viewer, &board)),
        }
    }
}

fn state(board: &Board) -> Markup {
    let (locks, contended) = board.count();
    let count = |severity| board.findings.iter().filter(|one| one.severity == severity).count();
    let worst = board.findings.iter().max_by_key(|finding| finding.severity);
    html! {
        @match &board.outage {
            Some(outage) => {
                p.outage role="alert" {
                    @if outage.is_refusal { "The store has refused for " } @else { "The store has not answered for " }
                    (show::duration(outage.since.elapsed())) ": "
                    (printable(&outage.error))
                }
            }
            None if !board.is_ready => p { "connecting" },
            None => p.counts {
                b { (locks) } " locks, " b { (contended) } " contended"
                @if let Some(source) = board.source { ", " span id="source" { (source.as_str()) } }
            },
        }
        @if let Some(worst) = worst {
            @let dangers = count(Severity::Unsafe);
            details.health.bad[dangers > 0] id="health" {
                summary {
                    "doctor"
                    @if let Some(at) = board.diagnosed { ", " (show::duration(at.elapsed())) " ago" }
                    ": " (dangers) " unsafe, " (count(Severity::Advice)) " advice"
                    @if worst.severity != Severity::Fine { ": " (printable(&worst.what)) }
                }
                ul {
                    @for finding in &board.findings {
                        li {
                            (finding.severity) ": " (printable(&finding.what))
                            @if !finding.remedy.is_empty() { " Remedy: " (printable(&finding.remedy)) }
                        }
                    }
                }
            }
        }
    }
}

/// The filter, the order, and whether only contended locks are shown.
fn choice(view: &View) -> Markup {
    let chosen = view.query().sort;
    html! {
        form.choice method="get" action="/" role="search" {
            @if let Some(token) = &view.token { input type="hidden" name="token" value=(token); }
            label { "Filter " input id="filter" type="search" name="filter" value=(view.filter) autocomplete="off"; }
            label { "Sort by "
                select name="sort" {
                    @for sort in Sort::ALL {
                        option value=(sort.as_str()) selected[sort == chosen] { (sort.as_str()) }
                    }
                }
            }
            label { input type="checkbox" name="contended" checked[view.contended.is_some()]; " contended only" }
            button { "Show" }
        }
    }
}

fn list(site: &Site, view: &View, viewer: u64, board: &Board) -> Markup {
    let locks = board.select(&view.query());
    let pages = locks.len().div_ceil(PER_PAGE).max(1);
    let page = view.page.min(pages - 1);
    let visible: Vec<LockName> =
        locks.iter().skip(page * PER_PAGE).take(PER_PAGE).cloned().collect();
    site.live.focus(viewer, visible.clone());
    let to_page = |page| link(view, &View { page, ..view.clone() });
    html! {
        @if locks.is_empty() && board.is_ready { p.none { (nothing(view)) } }
        @else if board.is_ready {
            table {
                thead { tr {
                    th { "Name" } th { "Mode" } th { "Holder" } th.number { "Token" } th.number { "Age" }
                    th { "Term" } th.number { "Waiters" } th.number { "Oldest wait" }
                    th.number { "Hand-offs/s" } th.number { "p99 wait" }
                } }
                tbody {
                    @for name in &visible {
                        @if let Some(row) = board.row(name) { (line(&row, view)) }
                    }
                }
            }
        }
        @if pages > 1 {
            nav aria-label="Pages" {
                @if page > 0 { a id="previous" rel="prev" href=(to_page(page - 1)) { "Previous" } }
                span { "Page " (page + 1) " of " (pages) }
                @if page + 1 < pages { a id="next" rel="next" href=(to_page(page + 1)) { "Next" } }
            }
        }
    }
}

fn nothing(view: &View) -> String {
    match (&*view.filter, view.contended.is_some()) {
        ("", true) => "No lock is waited for.".into(),
        ("", false) => "No lock is held or waited for.".into(),
        (filter, _) => format!("No lock matches {filter:?}."),
    }
}

fn line(row: &Row, view: &View) -> Markup {
    let time = |time: Option<Duration>| time.map_or_else(|| "-".into(), show::duration);
    let lock = View { lock: Some(row.name.clone()), ..view.clone() };
    // The focus stays on the lock when the lines change places.
    let id = format!("lock-{}", utf8_percent_encode(&row.name, NON_ALPHANUMERIC));
    html! {
        tr.contended[row.waiters > 0] {
            th scope="row" { a id=(id) href=(link(view, &lock)) { bdi { (printable(&row.name)) } } }
            td data-label="Mode" { (row.mode) }
            td data-label="Holder" { bdi { (row.holder) } }
            td.number data-label="Token" { (row.token.map_or_else(|| "-".into(), |token| token.to_string())) }
            td.number data-label="Age" { (time(row.age)) }
            td data-label="Term" { (bar(row.term)) }
            td.number data-label="Waiters" { (row.waiters) }
            td.number data-label="Oldest wait" { (time(row.oldest_wait)) }
            td.number data-label="Hand-offs/s" { @if row.hand_offs > 0.0 { (format!("{:.1}", row.hand_offs)) } @else { "-" } }
            td.number data-label="p99 wait" { (time(row.p99_wait)) }
        }
    }
}

fn bar(term: Option<Term>) -> Markup {
    html! {
        @if let Some(term) = term {
            meter min="0" max="1" low="0.5" optimum="1" value=(format!("{:.2}", term.share())) {}
            " " span.danger[term.is_in_danger()] {
                (show::duration(term.left)) @if term.is_in_danger() { " !" }
            }
        } @else { "-" }
    }
}

fn details(lock: &LockName, view: &View, board: &Board) -> Markup {
    let state = board.lock(lock);
    let process =
        |host: &Option<String>, pid, label: &str| show::process(host.as_deref(), pid, label);
    let time = |time: Option<Duration>| time.map_or_else(|| "-".into(), show::duration);
    html! {
        p { a id="back" href=(link(view, &View { lock: None, ..view.clone() })) { "All locks" } }
        h2 { bdi { (printable(lock.as_str())) } }
        @match &state {
            None => p.none { "The lock is free." },
            Some(state) => {
                h3 { "Held by" }
                ul {
                    @for holder in &state.holders {
                        li {
                            bdi { (process(&holder.host, holder.pid, &holder.label)) } ", " (show::mode(holder.mode))
                            ", token " (holder.token.map_or_else(|| "-".into(), |token| token.to_string()))
                            ", for " (time(holder.age)) ", " (time(holder.expires_in)) " of the term left"
                        }
                    }
                }
                h3 { "Queue: " (state.waiters.len()) " waiting" }
                ol {
                    @for waiter in state.waiters.iter().take(LISTED) {
                        li {
                            bdi { (process(&waiter.host, waiter.pid, &waiter.label)) } ", " (show::mode(waiter.mode))
                            ", for " (show::duration(waiter.age))
                        }
                    }
                }
                @if state.waiters.len() > LISTED { p { "and " (state.waiters.len() - LISTED) " more" } }
            }
        }
        @if let Some(activity) = board.activity(lock) { (history(activity)) }
    }
}

fn history(activity: &Activity) -> Markup {
    html! {
        h3 { "Holds in the last minute, as they were seen" }
        (lanes(activity))
        h3 { "Tokens, newest first" }
        ol.plain {
            @for lane in activity.lanes.iter().rev() {
                @if let Some(token) = lane.token {
                    li { code { (token) } " " (lane.to.map_or("holds it", |(_, how)| how.as_str())) " " bdi { (lane.holder) } }
                }
            }
        }
        h3 { "Events, newest first" }
        ol.plain { @for change in activity.events.iter().rev() { li { (event(change)) } } }
    }
}

/// Each hold as a bar on a line that is a minute long.
fn lanes(activity: &Activity) -> Markup {
    const HEIGHT: usize = 22;
    let lanes: Vec<&Lane> = activity.lanes.iter().rev().take(12).collect();
    let now = Instant::now();
    let column =
        |at: Instant| 600.0 - now.saturating_duration_since(at).as_secs_f64().min(60.0) * 10.0;
    let mut bars = String::new();
    for (place, lane) in lanes.iter().enumerate() {
        let (from, to) = (column(lane.from), lane.to.map_or(600.0, |(at, _)| column(at)));
        let class = if lane.to.is_none() { "now" } else { "past" };
        let (y, width) = (place * HEIGHT + 2, (to - from).max(2.0));
        let height = HEIGHT - 6;
        bars += &format!(
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"/>"
        );
    }
    html! {
        div.lanes {
            ol.plain { @for lane in &lanes { li { bdi { (lane.holder) } } } }
            // Made of numbers alone.
            (PreEscaped(format!(
                "<svg viewBox=\"0 0 600 {0}\" width=\"600\" height=\"{0}\" role=\"img\" \
                 aria-label=\"holds over the last minute\">{bars}</svg>",
                lanes.len().max(1) * HEIGHT
            )))
        }
    }
}

fn event(change: &Change) -> Markup {
    let process =
        |claim: &ChangedClaim| show::process(claim.host.as_deref(), claim.pid, &claim.label);
    html! {
        (show::duration(change.at.elapsed().unwrap_or_default())) " ago: " b { (change.kind) } " "
        bdi { (process(&change.claim)) }
        @if let Some(from) = &change.from { " from " bdi { (process(from)) } }
        @if let Some(by) = &change.by {
            " by " bdi { (printable(&by.host)) ":" (by.pid) } ": " bdi { (printable(&by.reason)) }
        }
    }
}

/// The form that releases a lock by force.
fn release(site: &Site, view: &View, lock: &LockName) -> Markup {
    let owners = site.live.board().owners(lock);
    html! {
        form.release method="post" action="/release" {
            h3 { "Release by force" }
            p { "Its holders lose it at once, beside the next holder. Only the fencing token protects what they \
                 still write to." }
            input type="hidden" name="token" value=(view.token.as_deref().unwrap_or_default());
            input type="hidden" name="lock" value=(lock);
            input type="hidden" name="filter" value=(view.filter);
            input type="hidden" name="sort" value=(view.sort);
            input type="hidden" name="page" value=(view.page);
            @if let Some(contended) = &view.contended { input type="hidden" name="contended" value=(contended); }
            // Only these are evicted, whatever holds the lock by then.
            @for owner in &owners { input type="hidden" name="owner" value=(owner); }
            label { "Reason " input name="reason" required autocomplete="off"; }
            label { "The lock's name, typed again " input name="name" required autocomplete="off"; }
            button { "Release" }
        }
    }
}

/// The address of a page, with the token of this one.
fn link(here: &View, to: &View) -> String {
    address("/", &View { token: here.token.clone(), said: None, ..to.clone() })
}

fn live_address(view: &View) -> String {
    address("/live", &View { said: None, ..view.clone() })
}

pub(super) fn address(path: &str, view: &View) -> String {
    let page = (view.page > 0).then(|| view.page.to_string());
    let parts = [
        ("token", view.token.as_deref()),
        ("filter", Some(&*view.filter)),
        ("contended", view.contended.as_deref()),
        ("sort", Some(&*view.sort)),
        ("page", page.as_deref()),
        ("lock", view.lock.as_deref()),
        ("said", view.said.as_deref()),
    ];
    let part = |(name, value): (&str, Option<&str>)| {
        let value = value.filter(|value| !value.is_empty())?;
        Some(format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
    };
    let parts: Vec<_> = parts.into_iter().filter_map(part).collect();
    if parts.is_empty() { path.into() } else { format!("{path}?{}", parts.join("&")) }
}
