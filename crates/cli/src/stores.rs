//! The help on store URLs, generated from the registry of engines.

use std::fmt::Write as _;
use std::sync::LazyLock;

use tenure::Registry;

/// The engines of this command.
pub(crate) fn registry() -> &'static Registry {
    static ENGINES: LazyLock<Registry> = LazyLock::new(Registry::default);
    &ENGINES
}

/// The help of `--store`.
pub(crate) fn summary() -> String {
    let names: Vec<_> = registry().schemes().flat_map(|scheme| scheme.names()).collect();
    format!(
        "URL of the store of the locks. Schemes: {}; `tenure --help` lists their forms and options. \
         A password on the command line is visible to all users of this machine (`ps`): set \
         TENURE_STORE or TENURE_PASSWORD instead, or name a file with `?password-file=…`",
        names.join(", ")
    )
}

/// The part of `--help` on URLs and their options.
pub(crate) fn help() -> String {
    let mut text = String::from("Store URLs:\n");
    for (form, meaning) in urls() {
        describe(&mut text, &form, &meaning);
    }
    text += "\nOptions of store URLs, as in ?timeout=5s&prefix=app:\n";
    for (option, meaning) in options() {
        describe(&mut text, &option, &meaning);
    }
    text
}

/// The sections of the manual page on URLs and their options.
pub(crate) fn manual() -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace('-', "\\-");
    let mut text = String::new();
    for (title, entries) in [("STORE URLS", urls()), ("OPTIONS OF STORE URLS", options())] {
        let _ = writeln!(text, ".SH \"{title}\"");
        for (term, meaning) in entries {
            let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", escape(&term), escape(&meaning));
        }
    }
    text
}

/// Each form of URL, and what it names.
fn urls() -> Vec<(String, String)> {
    let entry = |scheme: &tenure::store::Scheme| {
        let bare = scheme.has_default_path().then(|| format!("{}, ", scheme.name()));
        let tls = scheme.tls_name().map(|name| format!("; with TLS, {name}://"));
        let meaning = format!("{}{}", scheme.meaning(), tls.unwrap_or_default());
        (bare.unwrap_or_default() + &scheme.form(), plain(&meaning))
    };
    registry().schemes().map(entry).collect()
}

/// Each option, and what it is for.
fn options() -> Vec<(String, String)> {
    let options = registry().options().into_iter().enumerate();
    let entries = options.map(|(index, (option, engines))| {
        let engines = if index == 0 { "all stores".into() } else { engines.join(", ") };
        let tls = if option.needs_tls() { ", with TLS" } else { "" };
        let default = option.default().map(|default| format!(" [default: {default}]"));
        let meaning = format!("{engines}{tls}: {}{}", option.help(), default.unwrap_or_default());
        (format!("{}={}", option.name(), option.value()), plain(&meaning))
    });
    entries.collect()
}

/// The text without the backticks that mark code in documentation.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// Appends a term on a line of its own, and its meaning below it in lines that fit a terminal.
fn describe(text: &mut String, term: &str, meaning: &str) {
    const WIDTH: usize = 96;
    const INDENT: &str = "          ";
    let _ = writeln!(text, "  {term}");
    let mut line = String::from(INDENT);
    for word in meaning.split(' ') {
        if line.chars().count() + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = String::from(INDENT);
        }
        line += word;
        line.push(' ');
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_and_option_is_in_the_help_and_in_the_manual() {
        let (help, manual) = (help(), manual().replace('\\', ""));
        for text in [&help, &manual] {
            for name in registry().schemes().flat_map(|scheme| scheme.names()) {
                assert!(text.contains(name), "{name}");
            }
            for (option, _) in registry().options() {
                assert!(text.contains(&format!("{}=", option.name())), "{}", option.name());
            }
        }
        assert!(help.lines().all(|line| line.chars().count() <= 96), "{help}");
    }
}
