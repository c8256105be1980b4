//! What `tenure top` draws.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};
use tenure::{Change, ChangedClaim, LockName, Severity};

use super::{Force, Screen, View, fit};
use crate::live::board::{Activity, Board, Lane, Row, Term};
use crate::show;

/// The columns besides those of the name and the holder, with a space before each.
const MODE: usize = 9;
const TOKEN: usize = 7;
const AGE: usize = 6;
const TERM: usize = 8;
const WAITERS: usize = 5;
const TIME: usize = 6;
const RATE: usize = 5;
const FIXED: usize = MODE + TOKEN + AGE + TERM + WAITERS + TIME + RATE + TIME + 8;

pub(super) fn screen(frame: &mut Frame<'_>, screen: &mut Screen, board: &Board) {
    let [head, body, strip, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let colours = Colours(screen.has_colour);
    frame.render_widget(heading(screen, board, head.width), head);
    match &screen.mode {
        View::Lock(lock, scroll) => {
            let (lock, scroll) = (lock.clone(), *scroll);
            let lines = details(&lock, board, usize::from(body.width), colours);
            let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
            frame.render_widget(Paragraph::new(lines).scroll((scroll.min(most), 0)), body);
            screen.mode = View::Lock(lock, scroll.min(most));
        }
        View::Help => frame.render_widget(Paragraph::new(HELP), body),
        View::List | View::Filter | View::Force(_) => list(frame, screen, board, body, colours),
    }
    frame.render_widget(health(board, strip.width, colours), strip);
    frame.render_widget(Line::raw(fit(&footing(screen), usize::from(foot.width))), foot);
    if let View::Force(force) = &screen.mode {
        ask(frame, force);
    }
}

/// The styles. Without colour, only bold and reversed text.
#[derive(Clone, Copy)]
struct Colours(bool);

impl Colours {
    const fn of(self, colour: Color) -> Style {
        if self.0 { Style::new().fg(colour) } else { Style::new().add_modifier(Modifier::BOLD) }
    }
}

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

const HELP: &str = "\
  up, down, PgUp, PgDn, Home, End   choose a lock
  Enter                             the lock: its queue, tokens, events and holds; Esc goes back
  /                                 show locks whose name or holder contains a text; Esc shows all
  s                                 sort by: worst, name, age, waiters, hand-offs
  w                                 show only locks that are waited for
  x                                 release the lock by force
  q                                 quit

  TERM    how much of its lease the holder has left: `!` when less than half, so that it was
          not renewed in time
  OLDEST  how long the first waiter has waited
  H/S     hand-offs a second, of the last ten seconds, as far as they were seen
  P99     99 % of the waits that were seen were shorter than this
  sampled: the store is asked at each interval, and what comes and goes in between is not seen;
  pushed: the store also says at once which locks have changed

  Any key goes back.";

fn heading(screen: &Screen, board: &Board, width: u16) -> Line<'static> {
    let (locks, contended) = board.count();
    let colours = Colours(screen.has_colour);
    let state = match &board.outage {
        Some(outage) => {
            let since = show::duration(outage.since.elapsed());
            let what = if outage.is_refusal { "REFUSED" } else { "NO ANSWER" };
            Span::styled(format!("{what} for {since}"), colours.of(Color::Red).patch(REVERSED))
        }
        None if !board.is_ready => Span::raw("connecting"),
        None => {
            let source = board.source.map_or("", |source| source.as_str());
            Span::raw(format!("{locks} locks, {contended} contended, {source}"))
        }
    };
    let sort = format!("  by {}", screen.query.sort.as_str());
    let only = if screen.query.contended { "  contended only" } else { "" };
    let rest = usize::from(width).saturating_sub(state.width() + sort.len() + only.len() + 14);
    Line::from(vec![
        Span::styled("tenure top  ", BOLD),
        Span::raw(fit(&screen.url, rest)),
        Span::raw("  "),
        state,
        Span::raw(sort),
        Span::raw(only),
    ])
}

fn list(frame: &mut Frame<'_>, screen: &mut Screen, board: &Board, area: Rect, colours: Colours) {
    let room = usize::from(area.height).saturating_sub(1);
    screen.room = room;
    screen.select(screen.selected);
    let widths = Widths::of(usize::from(area.width));
    let mut lines = vec![Line::styled(widths.headings(), REVERSED)];
    if screen.locks.is_empty() {
        lines.push(Line::raw(nothing(screen, board)));
    }
    let visible = screen.locks.iter().enumerate().skip(screen.first).take(room);
    for (place, row) in visible.filter_map(|(place, lock)| Some((place, board.row(lock)?))) {
        let line = widths.line(&row, colours);
        lines.push(if place == screen.selected { line.style(REVERSED) } else { line });
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Why no lock is listed.
fn nothing(screen: &Screen, board: &Board) -> String {
    match (&*screen.query.filter, &board.outage) {
        (_, Some(outage)) if !board.is_ready => outage.error.clone(),
        _ if !board.is_ready => String::new(),
        ("", _) if screen.query.contended => "no lock is waited for".into(),
        ("", _) => "no lock is held or waited for".into(),
        (filter, _) => format!("no lock matches {filter:?}"),
    }
}

/// How many columns the name and the holder have.
struct Widths {
    name: usize,
    holder: usize,
}

impl Widths {
    fn of(width: usize) -> Self {
        let rest = width.saturating_sub(FIXED);
        // Names are worth more than holders, which are on the lock's own screen.
        Self { name: rest.div_ceil(2).max(4), holder: (rest / 2).saturating_sub(1).max(4) }
    }

    fn headings(&self) -> String {
        let Self { name, holder } = *self;
        format!(
            "{:name$} {:MODE$} {:holder$} {:>TOKEN$} {:>AGE$} {:TERM$} {:>WAITERS$} {:>TIME$} {:>RATE$} {:>TIME$}",
            "NAME", "MODE", "HOLDER", "TOKEN", "AGE", "TERM", "WAIT", "OLDEST", "H/S", "P99"
        )
    }

    fn line(&self, row: &Row, colours: Colours) -> Line<'static> {
        let Self { name, holder } = *self;
        let none = || String::from("-");
        let time = |time: Option<Duration>| time.map_or_else(none, show::duration);
        let token = row.token.map_or_else(none, |token| last_digits(&token.to_string(), TOKEN));
        let begin = format!(
            "{} {} {} {token:>TOKEN$} {:>AGE$} ",
            padded(&row.name, name),
            padded(&row.mode, MODE),
            padded(&row.holder, holder),
            time(row.age),
        );
        let danger = row.term.is_some_and(Term::is_in_danger);
        let bar_style = if danger { colours.of(Color::Yellow) } else { Style::new() };
        let hand_offs = if row.hand_offs > 0.0 { format!("{:.1}", row.hand_offs) } else { none() };
        let waits = format!(
            " {:>WAITERS$} {:>TIME$} {hand_offs:>RATE$} {:>TIME$}",
            row.waiters,
            time(row.oldest_wait),
            time(row.p99_wait),
        );
        let wait_style = if row.waiters > 0 { colours.of(Color::Cyan) } else { Style::new() };
        Line::from(vec![
            Span::raw(begin),
            Span::styled(bar(row.term, TERM), bar_style),
            Span::styled(waits, wait_style),
        ])
    }
}

/// The text in so many columns.
fn padded(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    let width = Span::raw(text.as_str()).width();
    text + &" ".repeat(columns.saturating_sub(width))
}

/// A number by its last digits, which differ between neighbours.
fn last_digits(number: &str, columns: usize) -> String {
    match number.len() > columns {
        true => format!("~{}", &number[number.len() - (columns - 1)..]),
        false => number.into(),
    }
}

/// `[===...]`; a `!` at its end where the term is in danger.
fn bar(term: Option<Term>, columns: usize) -> String {
    let Some(term) = term else { return format!("{:columns$}", "-") };
    let room = columns.saturating_sub(2);
    let full = (term.share() * room as f64).round() as usize;
    let end = if term.is_in_danger() { '!' } else { ']' };
    format!("[{}{}{end}", "=".repeat(full), ".".repeat(room - full.min(room)))
}

/// The worst that the doctor has found.
fn health(board: &Board, width: u16, colours: Colours) -> Line<'static> {
    if let Some(outage) = &board.outage {
        let text = fit(&outage.error, usize::from(width));
        return Line::styled(text, colours.of(Color::Red));
    }
    let count = |severity| board.findings.iter().filter(|one| one.severity == severity).count();
    let dangers = count(Severity::Unsafe);
    let advice = count(Severity::Advice);
    let worst = board.findings.iter().max_by_key(|finding| finding.severity);
    let ago = board.diagnosed.map_or(Duration::ZERO, |at| at.elapsed());
    let ago = show::duration(Duration::from_secs(ago.as_secs()));
    let text = match worst {
        None => "doctor: not answered yet".into(),
        Some(_) if dangers + advice == 0 => format!("doctor, {ago} ago: fine"),
        Some(worst) => {
            format!("doctor, {ago} ago: {dangers} unsafe, {advice} advice: {}", worst.what)
        }
    };
    let style = if dangers > 0 { colours.of(Color::Red) } else { Style::new() };
    Line::styled(fit(&text, usize::from(width)), style)
}

fn footing(screen: &Screen) -> String {
    if let Some(message) = &screen.message {
        return message.clone();
    }
    match &screen.mode {
        View::Filter => format!("/{}_", screen.query.filter),
        View::Lock(..) => "Esc back  x release by force  up/down scroll".into(),
        View::Force(_) => "Enter next  Esc cancel".into(),
        View::List | View::Help if screen.query.filter.is_empty() => {
            "q quit  Enter lock  / filter  s sort  w contended  x release  ? help".into()
        }
        View::List | View::Help => {
            format!("filter: {}   / and Esc to show all", screen.query.filter)
        }
    }
}

/// Asks for the reason of a release by force, and for the name.
fn ask(frame: &mut Frame<'_>, force: &Force) {
    let area = frame.area();
    let height = 7.min(area.height);
    let width = area.width.saturating_sub(4).min(90);
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect::new(x, y, width, height);
    let room = usize::from(width);
    let end = |text: &str| {
        let text = crate::output::printable(text);
        let skip = text.chars().count().saturating_sub(room.saturating_sub(12));
        text.chars().skip(skip).collect::<String>()
    };
    let mut lines = vec![
        Line::styled(padded(&format!(" Release {} by force", force.lock), room), REVERSED),
        Line::raw(fit(" Its holders lose it at once, beside the next holder. Only the", room)),
        Line::raw(fit(" fencing token protects what they still write to.", room)),
        Line::raw(""),
    ];
    let cursor = |is_here: bool| if is_here { "_" } else { "" };
    lines.push(Line::raw(format!(
        " Reason: {}{}",
        end(&force.reason),
        cursor(force.name.is_none())
    )));
    if let Some(name) = &force.name {
        lines.push(Line::raw(format!(" Name:   {}_", end(name))));
        lines.push(Line::raw(fit(" Type the lock's name, then Enter.", room)));
    }
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines), area);
}

/// One lock: holders, queue, tokens, holds and events.
fn details(lock: &LockName, board: &Board, width: usize, colours: Colours) -> Vec<Line<'static>> {
    let title = |text: &str| Line::styled(padded(text, width), REVERSED);
    let line = |text: String| Line::raw(fit(&text, width));
    let state = board.lock(lock);
    let mut lines = vec![title(&format!("LOCK {lock}"))];
    match &state {
        None => lines.push(line("free".into())),
        Some(state) => {
            for holder in &state.holders {
                let none = || String::from("-");
                let process = show::process(holder.host.as_deref(), holder.pid, &holder.label);
                let token = holder.token.map_or_else(none, |token| token.to_string());
                let age = holder.age.map_or_else(none, show::duration);
                let left = holder.expires_in.map_or_else(none, show::duration);
                let mode = show::mode(holder.mode);
                lines.push(line(format!("held ({mode}) by {process}")));
                lines.push(line(format!("  token {token}, for {age}, {left} of the term left")));
            }
            lines.push(title(&format!("QUEUE: {} waiting", state.waiters.len())));
            const LISTED: usize = 100;
            for (place, waiter) in state.waiters.iter().take(LISTED).enumerate() {
                let process = show::process(waiter.host.as_deref(), waiter.pid, &waiter.label);
                let (mode, age) = (show::mode(waiter.mode), show::duration(waiter.age));
                lines.push(line(format!("{:>4}  {age:>6}  {mode:9}  {process}", place + 1)));
            }
            if state.waiters.len() > LISTED {
                lines.push(line(format!("      and {} more", state.waiters.len() - LISTED)));
            }
        }
    }
    if let Some(activity) = board.activity(lock) {
        lines.push(title("HOLDS, as they were seen: the last minute"));
        lines.extend(activity.lanes.iter().rev().take(8).map(|one| lane(one, width, colours)));
        lines.push(title("TOKENS, newest first"));
        lines.extend(tokens(activity).map(line));
        lines.push(title("EVENTS, newest first"));
        lines.extend(activity.events.iter().rev().map(|change| line(event(change))));
    }
    lines
}

fn tokens(activity: &Activity) -> impl Iterator<Item = String> {
    activity.lanes.iter().rev().filter_map(|lane| {
        let end = lane.to.map_or("holds it", |(_, how)| how.as_str());
        Some(format!("{:>20}  {end:12}  {}", lane.token?.to_string(), lane.holder))
    })
}

/// A hold on a line that is a minute long.
fn lane(lane: &Lane, width: usize, colours: Colours) -> Line<'static> {
    const MINUTE: Duration = Duration::from_secs(60);
    let room = width.saturating_sub(34).max(10);
    let now = Instant::now();
    // The column of a moment, from the left.
    let column = |at: Instant| {
        let ago = now.saturating_duration_since(at).min(MINUTE).as_secs_f64();
        room - (ago / MINUTE.as_secs_f64() * room as f64).round() as usize
    };
    let (from, to) = (column(lane.from), lane.to.map_or(room, |(at, _)| column(at)));
    let to = to.max(from + 1).min(room);
    let from = from.min(to - 1);
    let mark = if lane.to.is_some() { "-" } else { "=" };
    let text = format!("{}{}{}", " ".repeat(from), mark.repeat(to - from), " ".repeat(room - to));
    let style = if lane.to.is_none() { colours.of(Color::Green) } else { Style::new() };
    Line::from(vec![
        Span::raw(padded(&lane.holder, 32)),
        Span::raw(" |"),
        Span::styled(text, style),
    ])
}

fn event(change: &Change) -> String {
    let process =
        |claim: &ChangedClaim| show::process(claim.host.as_deref(), claim.pid, &claim.label);
    let ago = change.at.elapsed().unwrap_or_default();
    let from = change.from.as_ref().map(|from| format!(" from {}", process(from)));
    let by = change.by.as_ref().map(|by| format!(" by {}:{}: {}", by.host, by.pid, by.reason));
    format!(
        "{:>6} ago  {:12}  {}{}{}",
        show::duration(ago),
        change.kind,
        process(&change.claim),
        from.unwrap_or_default(),
        by.unwrap_or_default()
    )
}
