//! `tenure top`: the locks of a store, live, in the terminal.

mod draw;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tenure::LockName;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::live::Live;
use crate::live::board::{Board, Query};
use crate::output::{colour_is_allowed, printable};
use crate::signals::Signals;

/// How often the screen is drawn though nothing has changed: ages grow.
const REDRAW_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn execute(store: &str, arguments: &args::Top) -> Outcome {
    if arguments.every.is_zero() {
        return Err(Failure::new(exit::USAGE, "--every must be above zero, such as 1s"));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "top needs a terminal: use `tenure ls`, `tenure watch` or `tenure blame`";
        return Err(Failure::new(exit::USAGE, why));
    }
    let mut signals = Signals::listen()?;
    let live = Live::start(store, &arguments.prefix, arguments.every).await?;
    // It restores the terminal also if this panics.
    let terminal =
        ratatui::try_init().map_err(|error| Failure::system("set up the terminal", &error))?;
    let shown = signals.unless_interrupted(show(terminal, live, store)).await;
    ratatui::restore();
    shown.unwrap_or(Ok(exit::OK))
}

async fn show(mut terminal: DefaultTerminal, live: Live, store: &str) -> Outcome {
    let mut keys = keys();
    let (mut changes, viewer) = (live.changes(), live.viewer());
    let url = crate::stores::registry().parse(store).map(|url| url.to_string());
    let mut screen = Screen::new(url.unwrap_or_default(), colour_is_allowed());
    let mut ticks = interval(REDRAW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let shown = screen.refresh(&live.board());
        live.focus(viewer, shown);
        let drawn = terminal.draw(|frame| draw::screen(frame, &mut screen, &live.board()));
        drawn.map_err(|error| Failure::system("write to the terminal", &error))?;
        tokio::select! {
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match screen.press(key) {
                        Action::Stay => {}
                        Action::Quit => return Ok(exit::OK),
                        Action::Evict { lock, owners, reason } => {
                            let forced = live.evict(&lock, &owners, &reason).await;
                            screen.message = Some(match forced {
                                Ok(forced) => forced.as_str().into(),
                                Err(error) => exit::line(&error),
                            });
                        }
                    }
                }
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(exit::OK),
            },
            () = changes.next() => {}
            _ = ticks.tick() => {}
        }
    }
}

/// The terminal's events, read on a thread that ends with the process.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// What is on the screen, and what has been typed.
pub(crate) struct Screen {
    url: String,
    has_colour: bool,
    query: Query,
    /// The locks that are listed, in order.
    locks: Vec<LockName>,
    selected: usize,
    /// The holders that are shown of the lock that `x` would release.
    owners: Vec<String>,
    /// The first lock on the screen, and how many there is room for.
    first: usize,
    room: usize,
    mode: View,
    message: Option<String>,
}

/// What keys are for.
#[derive(Debug, PartialEq, Eq)]
enum View {
    List,
    Help,
    /// The filter is typed.
    Filter,
    /// One lock, scrolled down by so many lines.
    Lock(LockName, u16),
    /// A release by force is typed.
    Force(Force),
}

/// A release by force, while it is typed.
#[derive(Debug, PartialEq, Eq)]
struct Force {
    lock: LockName,
    /// The holders when it was opened.
    owners: Vec<String>,
    reason: String,
    /// The name, typed again. `None`: the reason is being typed.
    name: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Stay,
    Quit,
    Evict { lock: LockName, owners: Vec<String>, reason: String },
}

impl Screen {
    fn new(url: String, has_colour: bool) -> Self {
        Self {
            url,
            has_colour,
            query: Query::default(),
            locks: Vec::new(),
            selected: 0,
            owners: Vec::new(),
            first: 0,
            room: 0,
            mode: View::List,
            message: None,
        }
    }

    /// Lists the locks anew; the selection stays on its lock. Returns the locks that are looked at.
    fn refresh(&mut self, board: &Board) -> Vec<LockName> {
        let selected = self.locks.get(self.selected).cloned();
        self.locks = board.select(&self.query);
        let place = selected.and_then(|name| self.locks.iter().position(|lock| *lock == name));
        // The top of the list is where to look, until another line is chosen.
        self.select(if self.selected == 0 { 0 } else { place.unwrap_or(self.selected) });
        let released = match &self.mode {
            View::Lock(lock, _) => Some(lock),
            _ => self.locks.get(self.selected),
        };
        self.owners = released.map(|lock| board.owners(lock)).unwrap_or_default();
        let visible = self.locks.iter().skip(self.first).take(self.room.max(1));
        let looked_at = match &self.mode {
            View::Lock(lock, _) | View::Force(Force { lock, .. }) => Some(lock.clone()),
            _ => None,
        };
        visible.cloned().chain(looked_at).collect()
    }

    fn select(&mut self, place: usize) {
        self.selected = place.min(self.locks.len().saturating_sub(1));
        let last = self.first + self.room.max(1) - 1;
        if self.selected < self.first {
            self.first = self.selected;
        } else if self.selected > last {
            self.first += self.selected - last;
        }
    }

    fn press(&mut self, key: KeyEvent) -> Action {
        self.message = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match &mut self.mode {
            View::List => return self.press_in_list(key.code),
            View::Help => self.mode = View::List,
            View::Filter => match key.code {
                KeyCode::Enter => self.mode = View::List,
                KeyCode::Esc => {
                    self.query.filter.clear();
                    self.mode = View::List;
                }
                code => edit(&mut self.query.filter, code),
            },
            View::Lock(lock, scroll) => match key.code {
                KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter | KeyCode::Left => {
                    self.mode = View::List;
                }
                KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::PageDown => *scroll = scroll.saturating_add(10),
                KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                KeyCode::Char('x') => {
                    self.mode = View::Force(Force::new(lock.clone(), self.owners.clone()));
                }
                _ => {}
            },
            View::Force(force) => match force.press(key.code) {
                Typed::More => {}
                Typed::Given(action) => {
                    self.mode = View::List;
                    return action;
                }
                Typed::Refused(why) => {
                    self.mode = View::List;
                    self.message = Some(why);
                }
            },
        }
        Action::Stay
    }

    fn press_in_list(&mut self, code: KeyCode) -> Action {
        let page = self.room.max(2) - 1;
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::PageDown => self.select(self.selected.saturating_add(page)),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Char('/') => self.mode = View::Filter,
            KeyCode::Char('s') => self.query.sort = self.query.sort.next(),
            KeyCode::Char('w') => self.query.contended ^= true,
            KeyCode::Char('?' | 'h') => self.mode = View::Help,
            KeyCode::Enter | KeyCode::Right => {
                if let Some(lock) = self.locks.get(self.selected) {
                    self.mode = View::Lock(lock.clone(), 0);
                }
            }
            KeyCode::Char('x') => {
                if let Some(lock) = self.locks.get(self.selected) {
                    self.mode = View::Force(Force::new(lock.clone(), self.owners.clone()));
                }
            }
            _ => {}
        }
        Action::Stay
    }
}

/// What came of a key that was typed into a release by force.
enum Typed {
    More,
    Given(Action),
    Refused(String),
}

impl Force {
    const fn new(lock: LockName, owners: Vec<String>) -> Self {
        Self { lock, owners, reason: String::new(), name: None }
    }

    fn press(&mut self, code: KeyCode) -> Typed {
        match (code, &mut self.name) {
            (KeyCode::Esc, _) => return Typed::Refused("nothing was released".into()),
            (KeyCode::Enter, None) if self.reason.trim().is_empty() => {}
            (KeyCode::Enter, None) => self.name = Some(String::new()),
            (KeyCode::Enter, Some(name)) if name == self.lock.as_str() => {
                let (lock, owners) = (self.lock.clone(), self.owners.clone());
                let reason = self.reason.trim().to_owned();
                return Typed::Given(Action::Evict { lock, owners, reason });
            }
            (KeyCode::Enter, Some(_)) => {
                let why = "the name that was typed is another one: nothing was released";
                return Typed::Refused(why.into());
            }
            (code, None) => edit(&mut self.reason, code),
            (code, Some(name)) => edit(name, code),
        }
        Typed::More
    }
}

fn edit(text: &mut String, code: KeyCode) {
    const LONGEST: usize = 400;
    match code {
        KeyCode::Char(typed) if text.len() < LONGEST => text.push(typed),
        KeyCode::Backspace => drop(text.pop()),
        _ => {}
    }
}

/// The first so many columns of a text that comes from other processes. A cut is marked.
fn fit(text: &str, columns: usize) -> String {
    use ratatui::text::Span;
    let text = printable(text);
    if Span::raw(text.as_str()).width() <= columns {
        return text;
    }
    let mut cut = String::new();
    for c in text.chars() {
        let next = format!("{cut}{c}~");
        if Span::raw(next.as_str()).width() > columns {
            break;
        }
        cut.push(c);
    }
    if columns > 0 { cut + "~" } else { cut }
}
