//! A timeline: a lane for each client's beliefs, one for what the servers say, one for the resource, and a line for
//! each fault.

use std::fmt::Write as _;

use super::escape;
use super::story::{describe, describe_stored};
use crate::history::{Access, Grant, History, Kind, Stamp, Stored};
use crate::judge::{Finding, Judgement, belief_end};

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const LANE: f64 = 46.0;
const BAR: f64 = 22.0;

/// The picture of a history.
pub(super) fn svg(judgement: &Judgement, history: &History) -> String {
    draw(judgement, history, 0.0, "")
}

/// The same with a style of its own, and with the faults in words.
pub(super) fn picture(judgement: &Judgement, history: &History, style: &str) -> String {
    let mut words = format!("<style>{style}</style>\n");
    let below = Picture::of(history).height();
    for (number, fault) in (1..).zip(&history.faults) {
        let y = below + 18.0 * f64::from(number);
        let text = escape(&format!("{number}  {}", fault.what));
        let _ = writeln!(words, "<text x=\"{LEFT}\" y=\"{y:.1}\">{text}</text>");
    }
    draw(judgement, history, 18.0 * history.faults.len() as f64 + 12.0, &words)
}

fn draw(judgement: &Judgement, history: &History, below: f64, more: &str) -> String {
    let picture = Picture::of(history);
    let height = picture.height();
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"group\" aria-label=\"timeline\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n",
        height + below
    );
    for (place, client) in
        picture.clients.iter().map(String::as_str).chain(["servers", "resource"]).enumerate()
    {
        let middle = picture.lane(place);
        let _ = writeln!(
            text,
            "<text x=\"0\" y=\"{:.1}\">{}</text><line class=\"lane\" x1=\"{LEFT}\" x2=\"{:.1}\" \
             y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>",
            middle + 4.0,
            escape(client),
            WIDTH - RIGHT
        );
    }
    text += &picture.faults(height - 24.0);
    history.grants.iter().for_each(|grant| text += &picture.grant(grant));
    text += &picture.truth();
    for finding in &judgement.findings {
        text += &picture.overlap(finding);
    }
    // Marks that would cover each other step aside.
    let mut last = f64::MIN;
    for (index, access) in history.accesses.iter().enumerate() {
        let is_stale = judgement.findings.contains(&Finding::StaleAccepted(index));
        last = picture.x(access.at).max(last + 18.0);
        text += &picture.access(access, last, is_stale);
    }
    text += &picture.axis(height - 8.0);
    text + more + "</svg>\n"
}

struct Picture<'a> {
    history: &'a History,
    clients: Vec<String>,
    begin: Stamp,
    end: Stamp,
}

impl<'a> Picture<'a> {
    fn of(history: &'a History) -> Self {
        let mut clients: Vec<String> =
            history.grants.iter().map(|grant| grant.client.clone()).collect();
        clients.sort();
        clients.dedup();
        // Servers start before the first event.
        let first = history.grants.iter().map(|grant| grant.invoked);
        let first = first.chain(history.faults.iter().map(|fault| fault.at)).min();
        let begin = first.unwrap_or(history.begin);
        Self { history, clients, begin, end: history.end.max(begin + 1) }
    }

    fn height(&self) -> f64 {
        TOP + LANE * (self.clients.len() + 2) as f64 + 30.0
    }

    fn x(&self, at: Stamp) -> f64 {
        let at = at.clamp(self.begin, self.end);
        let share = (at - self.begin) as f64 / (self.end - self.begin) as f64;
        LEFT + 8.0 + share * (WIDTH - LEFT - RIGHT - 16.0)
    }

    fn lane(&self, place: usize) -> f64 {
        TOP + LANE * (place as f64 + 0.5)
    }

    fn lane_of(&self, client: &str) -> f64 {
        self.lane(self.clients.iter().position(|one| one == client).unwrap_or(0))
    }

    fn faults(&self, bottom: f64) -> String {
        let mut text = String::new();
        // Marks that would cover each other step aside.
        let mut last = f64::MIN;
        for (number, fault) in (1..).zip(&self.history.faults) {
            let x = self.x(fault.at);
            let mark = x.max(last + 20.0);
            last = mark;
            let tell = escape(&format!("{number}. {} s: {}", self.seconds(fault.at), fault.what));
            let _ = writeln!(
                text,
                "<line class=\"fault\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"22\" y2=\"{bottom:.1}\"/>\
                 <g tabindex=\"0\" role=\"img\" aria-label=\"{tell}\" data-tell=\"{tell}\"><title>{tell}</title>\
                 <circle class=\"fault-mark\" cx=\"{mark:.1}\" cy=\"13\" r=\"9\"/>\
                 <text class=\"fault-number\" x=\"{mark:.1}\" y=\"17\" text-anchor=\"middle\">{number}</text></g>"
            );
        }
        text
    }

    fn grant(&self, grant: &Grant) -> String {
        let lane = self.lane_of(&grant.client);
        let (from, to) = (self.x(grant.held), self.x(belief_end(grant)));
        let token = grant.token.map_or_else(|| "no token".into(), |token| format!("token {token}"));
        let until = match belief_end(grant) {
            end if end < self.end => format!("until {} s", self.seconds(end)),
            _ => "to the end".into(),
        };
        let tell = escape(&format!(
            "{} believes that it holds {} from {} s {until}; {token}",
            grant.id,
            grant.lock,
            self.seconds(grant.held)
        ));
        let asked = self.x(grant.invoked);
        format!(
            "<line class=\"wait\" x1=\"{asked:.1}\" x2=\"{from:.1}\" y1=\"{lane:.1}\" y2=\"{lane:.1}\"/>\
             <rect class=\"belief\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"3\" \
             tabindex=\"0\" role=\"img\" aria-label=\"{tell}\" data-tell=\"{tell}\"><title>{tell}</title></rect>\n",
            lane - BAR / 2.0,
            (to - from).max(2.0)
        )
    }

    /// What the servers say, from each answer to the next.
    fn truth(&self) -> String {
        let lane = self.lane(self.clients.len());
        let mut text = String::new();
        let ends = self.history.truth.iter().skip(1).map(|next| next.at).chain([self.end]);
        for (truth, end) in self.history.truth.iter().zip(ends) {
            let (class, label) = match &truth.state {
                _ if end <= self.begin => continue,
                Stored::Free => continue,
                Stored::Held(client) if client.is_empty() => ("stored", "taken"),
                Stored::Held(client) => ("stored", &**client),
                Stored::Silent => ("silent", ""),
            };
            let (from, to) = (self.x(truth.at), self.x(end));
            let tell = format!("{} s: {}", self.seconds(truth.at), describe_stored(&truth.state));
            let tell = escape(&tell);
            let _ = write!(
                text,
                "<g tabindex=\"0\" role=\"img\" aria-label=\"{tell}\" data-tell=\"{tell}\"><title>{tell}</title>\
                 <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"3\"/>",
                lane - BAR / 2.0,
                (to - from).max(2.0)
            );
            if to - from > 12.0 + 7.0 * label.len() as f64 {
                let (x, y) = ((from + to) / 2.0, lane + 4.0);
                let label = escape(label);
                let _ = write!(
                    text,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
                );
            }
            text += "</g>\n";
        }
        text
    }

    fn overlap(&self, finding: &Finding) -> String {
        let Finding::Overlap { first, second, from, until } = finding else { return String::new() };
        let (left, right) = (self.x(*from), self.x(*until));
        let tell = escape(&super::story::explain(finding, self.history));
        let lanes = [first, second].map(|id| {
            let grant = self.history.grants.iter().find(|grant| grant.id == *id);
            grant.map_or(0.0, |grant| self.lane_of(&grant.client))
        });
        let bars = lanes.map(|lane| {
            format!(
                "<rect class=\"overlap\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>",
                lane - BAR / 2.0,
                (right - left).max(2.0)
            )
        });
        format!(
            "<g tabindex=\"0\" role=\"img\" aria-label=\"{tell}\" data-tell=\"{tell}\"><title>{tell}</title>{}</g>\n",
            bars.concat()
        )
    }

    fn access(&self, access: &Access, x: f64, is_stale: bool) -> String {
        let y = self.lane(self.clients.len() + 1);
        let tell = format!("{} s: {}", self.seconds(access.at), describe(access));
        let tell = escape(&if is_stale { tell + ", although it is stale" } else { tell });
        let shape = match (access.kind, access.accepted) {
            (_, false) => format!(
                "<rect class=\"rejected\" x=\"{:.1}\" y=\"{:.1}\" width=\"13\" height=\"13\" \
                 transform=\"rotate(45 {x:.1} {y:.1})\"/>",
                x - 6.5,
                y - 6.5
            ),
            (Kind::Read, true) => {
                format!("<circle class=\"read\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>")
            }
            (Kind::Write, true) => {
                let class = if is_stale { "stale" } else { "accepted" };
                format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\"/>")
            }
        };
        let client: String = access.grant.chars().take_while(|c| c.is_alphabetic()).collect();
        format!(
            "<g tabindex=\"0\" role=\"img\" aria-label=\"{tell}\" data-tell=\"{tell}\"><title>{tell}</title>{shape}\
             <text class=\"small\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>\n",
            y + 21.0,
            escape(&client)
        )
    }

    fn axis(&self, y: f64) -> String {
        let mut text = String::new();
        for tick in 0..=5 {
            let at = self.begin + (self.end - self.begin) / 5 * tick;
            let _ = write!(
                text,
                "<text class=\"small\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{} s</text>",
                self.x(at),
                self.seconds(at)
            );
        }
        text + "\n"
    }

    fn seconds(&self, at: Stamp) -> String {
        format!("{:.2}", at.saturating_sub(self.begin) as f64 / 1e9)
    }
}
