//! `tenure man`: the manual page, made from the same words as `--help`.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;

use crate::exit::{self, Failure, Outcome};
use crate::{args, output, stores};

pub(crate) fn execute() -> Outcome {
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
        describe(command, &mut page)?;
    }
    page.write_all(stores::manual().as_bytes())?;
    page.write_all(ENVIRONMENT.as_bytes())?;
    let codes = exit::TABLE.split_once('\n').map_or(exit::TABLE, |(_, codes)| codes);
    write!(page, ".SH \"EXIT STATUS\"\n.nf\n{}\n.fi\n", codes.replace('-', "\\-"))?;
    Ok(page)
}

/// One command as a section of its own, with its options.
fn describe(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let title = command.get_name().to_uppercase();
    let mut part = Vec::new();
    // Global options are told once, at the top.
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
The store, where \\fB\\-\\-store\\fR does not name it. In the environment of a command: the store its
lock is kept in, without its password.
.TP
\\fBTENURE_PASSWORD\\fR
The password for a store whose URL has none.
.TP
\\fBTENURE_STORE_PASSWORD\\fR
In the environment of a command: the password of the server in
\\fBTENURE_STORE_PASSWORD_FOR\\fR, for no other server. Processes of the same user can read it in /proc. \\fBtenure run \\-\\-withhold\\-password\\fR
passes on neither this nor \\fBTENURE_PASSWORD\\fR.
.TP
\\fBTENURE_DIR\\fR
The directory of the store \\fBlocal\\fR. Without it: \\fB$XDG_STATE_HOME/tenure\\fR, else
\\fB~/.local/state/tenure\\fR; without \\fB$HOME\\fR, \\fB$STATE_DIRECTORY/tenure\\fR.
.TP
\\fBTENURE_LOCK\\fR, \\fBTENURE_TOKEN\\fR, \\fBTENURE_OWNER\\fR
In the environment of a command: the lock it runs under, its fencing token (absent where the store
gives none), and the id of this hold.
.TP
\\fBTENURE_HELD\\fR
In the environment of a command: all the locks that it runs under, as a JSON list. A \\fBtenure\\fR
that is started without it (as by \\fBsudo\\fR) waits for these locks as any other would.
.TP
\\fBTENURE_TTL\\fR, \\fBTENURE_GRACE\\fR, \\fBTENURE_ON_LOST\\fR
Defaults for \\fB\\-\\-ttl\\fR, \\fB\\-\\-grace\\fR and \\fB\\-\\-on\\-lost\\fR.
.TP
\\fBNO_COLOR\\fR
Set to anything, no colour is used.
";
