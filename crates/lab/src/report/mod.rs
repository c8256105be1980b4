//! One page that shows all experiments: a table of verdicts, and a timeline for each. It needs no network.

mod story;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::{Outcome, Result, algorithms, hazards};

pub(crate) use story::explain;
pub use story::story;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of these results, as HTML.
pub fn page(results: &[Result]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Hazards against lock algorithms</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Hazards against lock algorithms</h1>\n"
    );
    page += &summary(results);
    page += &table(results);
    for result in results.iter().filter(|result| result.outcome.word() != "-") {
        page += &section(result);
    }
    let _ = write!(page, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

/// The timeline of an experiment as a picture of its own. `None` if it was not played.
pub fn picture(result: &Result) -> Option<String> {
    let Outcome::Played { judgement, history } = &result.outcome else { return None };
    let style = format!("{STYLE}svg {{ background: var(--paper); }}");
    Some(timeline::picture(judgement, history, &style))
}

fn summary(results: &[Result]) -> String {
    let count = |word| results.iter().filter(|result| result.outcome.word() == word).count();
    format!(
        "<p class=\"legend\"><span class=\"mark safe\">{} safe</span> at most one client believed that it held \
         the lock. <span class=\"mark fenced\">{} fenced</span> beliefs overlapped or a stale write was sent, \
         and the resource rejected it by its token. <span class=\"mark broken\">{} broken</span> a stale write \
         was accepted, tokens did not rise, or clients were stuck. A dot: not applicable. \
         Choose a cell to see what happened.</p>\n",
        count("safe"),
        count("fenced"),
        count("broken")
    )
}

fn table(results: &[Result]) -> String {
    let played: BTreeSet<&str> = results.iter().map(|result| result.algorithm).collect();
    let columns: Vec<_> =
        algorithms::all().iter().filter(|info| played.contains(info.id)).collect();
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr><td></td>");
    for info in &columns {
        let kind = if info.is_specimen { "specimen" } else { "tenure" };
        let (id, title) = (info.id, escape(info.title));
        let _ = write!(
            text,
            "<th scope=\"col\" class=\"{kind}\" title=\"{title}\"><span>{id}</span></th>"
        );
    }
    text += "</tr></thead>\n<tbody>\n";
    for hazard in hazards::all() {
        let row: Vec<Option<&Result>> = columns
            .iter()
            .map(|info| results.iter().find(|it| it.hazard == hazard.id && it.algorithm == info.id))
            .collect();
        if row.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(
            text,
            "<tr><th scope=\"row\" title=\"{}\">{}</th>",
            escape(hazard.story),
            hazard.title
        );
        row.into_iter().for_each(|result| text += &cell(result));
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

fn cell(result: Option<&Result>) -> String {
    let Some(result) = result else { return "<td></td>".into() };
    let word = result.outcome.word();
    if let Outcome::NotApplicable(why) | Outcome::Missing(why) = &result.outcome {
        return format!("<td class=\"none\" title=\"{}\">·</td>", escape(why));
    }
    let (hazard, algorithm) = (result.hazard, result.algorithm);
    let letter = word.chars().next().unwrap_or('?').to_uppercase();
    format!(
        "<td class=\"{word}\"><a href=\"#{hazard}.{algorithm}\" title=\"{hazard} against {algorithm}: {word}\">\
         {letter}</a></td>"
    )
}

fn section(result: &Result) -> String {
    let (id, word) = (format!("{}.{}", result.hazard, result.algorithm), result.outcome.word());
    let (title, told) = hazards::find(result.hazard).map_or(("", ""), |it| (it.title, it.story));
    let algorithm = algorithms::find(result.algorithm).map_or("", |info| info.title);
    let mut text = format!(
        "<section id=\"{id}\" aria-label=\"{}\">\n<h2>{}: {} <span class=\"mark {word}\">{word}</span></h2>\n\
         <p>{}</p>\n",
        escape(title),
        escape(algorithm),
        escape(title),
        escape(told)
    );
    match &result.outcome {
        Outcome::Played { judgement, history } => {
            text += &timeline::svg(judgement, history);
            text += "<p class=\"tell\" aria-live=\"polite\">Point at a mark, or move to it with Tab.</p>\n";
            if !history.faults.is_empty() {
                text += "<ol>";
                for fault in &history.faults {
                    let _ = write!(text, "<li>{}</li>", escape(&fault.what));
                }
                text += "</ol>\n";
            }
            if !judgement.findings.is_empty() {
                text += "<ul class=\"findings\">";
                for finding in &judgement.findings {
                    let _ = write!(text, "<li>{}</li>", escape(&story::explain(finding, history)));
                }
                text += "</ul>\n";
            }
            let lines = story(result);
            let events = lines.lines().skip(1).filter(|line| !line.starts_with("  =>"));
            let events: Vec<&str> = events.collect();
            let _ = writeln!(
                text,
                "<details><summary>Every event</summary><pre>{}</pre></details>",
                escape(&events.join("\n"))
            );
        }
        Outcome::NotApplicable(why) | Outcome::Missing(why) | Outcome::Void(why) => {
            let _ = writeln!(text, "<p>{}</p>", escape(why));
        }
    }
    text + "<p><a href=\"#\">Back to the table</a></p>\n</section>\n"
}

/// Text that is neither markup nor the end of an attribute.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
