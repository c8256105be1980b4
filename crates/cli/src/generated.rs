//! `tenure man` and `tenure completions`: the manual page and completion scripts for shells, generated
//! from the same definitions as `--help`.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;

use crate::args::Completions;
use crate::exit::{self, Failure, Outcome};
use crate::{args, output, stores};

pub(crate) fn completions(arguments: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut args::command(), "tenure", &mut script);
    output::write(&script).map_or_else(|closed| closed.outcome(), |()| Ok(exit::OK))
}

pub(crate) fn manual() -> Outcome {
    let page = page().map_err(|error| Failure::system("write the manual page", &error))?;
    output::write(&page).map_or_else(|closed| closed.outcome(), |()| Ok(exit::OK))
}

fn page() -> io::Result<Vec<u8>> {
    let mut command = args::command();
    command.build();
    let mut page = Vec::new();
    let main = Man::new(command.clone()).manual("tenure");
    main.render_title(&mut page)?;
    main.render_name_section(&mut page)?;
    main.render_synopsis_section(&mut page)?;
    main.render_description_section(&mut page)?;
    main.render_options_section(&mut page)?;
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(shown) {
        write_subcommand(command, &mut page)?;
    }
    page.write_all(stores::manual().as_bytes())?;
    page.write_all(ENVIRONMENT.as_bytes())?;
    let codes = exit::TABLE.split_once('\n').map_or(exit::TABLE, |(_, codes)| codes);
    write!(page, ".SH \"EXIT STATUS\"\n.nf\n{}\n.fi\n", codes.replace('-', "\\-"))?;
    Ok(page)
}

/// Writes the section of one subcommand.
fn write_subcommand(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let title = command.get_name().to_uppercase();
    let mut part = Vec::new();
    // Global options are documented once, at the top.
    let command = command.clone().mut_args(|arg| match arg.is_global_set() {
        true => arg.hide(true),
        false => arg,
    });
    let man = Man::new(command);
    man.render_synopsis_section(&mut part)?;
    man.render_description_section(&mut part)?;
    man.render_options_section(&mut part)?;
    let part = String::from_utf8_lossy(&part);
    let part = part.replacen(".SH SYNOPSIS", &format!(".SH \"TENURE {title}\""), 1);
    let part = part.replace(".SH DESCRIPTION", ".PP").replace(".SH OPTIONS", ".PP");
    page.write_all(part.as_bytes())
}

const ENVIRONMENT: &str = "\
.SH ENVIRONMENT
.TP
\\fBTENURE_STORE\\fR
The URL of the store, if \\fB\\-\\-store\\fR is not given. In the environment of a command: the store of
its lock, without the password.
.TP
\\fBTENURE_PASSWORD\\fR
The password of a store whose URL has none.
.TP
\\fBTENURE_STORE_PASSWORD\\fR
In the environment of a command: the password of the store in \\fBTENURE_STORE_PASSWORD_FOR\\fR, and of
no other store. Processes of the same user can read it in /proc.
\\fBtenure run \\-\\-withhold\\-password\\fR passes on neither this nor \\fBTENURE_PASSWORD\\fR.
.TP
\\fBTENURE_DIR\\fR
The directory of the store \\fBlocal\\fR. Default: \\fB$XDG_STATE_HOME/tenure\\fR, or else
\\fB~/.local/state/tenure\\fR; without \\fB$HOME\\fR, \\fB$STATE_DIRECTORY/tenure\\fR.
.TP
\\fBTENURE_LOCK\\fR, \\fBTENURE_TOKEN\\fR, \\fBTENURE_OWNER\\fR
In the environment of a command: the name of its lock, its fencing token (unset if the store issues
none), and its owner id.
.TP
\\fBTENURE_HELD\\fR
In the environment of a command: all locks that it runs under, as a JSON list. A \\fBtenure\\fR that is
started without it (as by \\fBsudo\\fR) waits for these locks like any other process.
.TP
\\fBTENURE_TTL\\fR, \\fBTENURE_GRACE\\fR, \\fBTENURE_ON_LOST\\fR
Defaults for \\fB\\-\\-ttl\\fR, \\fB\\-\\-grace\\fR and \\fB\\-\\-on\\-lost\\fR.
.TP
\\fBNO_COLOR\\fR
If it is set and not empty, no colour is used.
";
