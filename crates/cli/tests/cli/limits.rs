//! Where the system has little to give, `tenure` fails at once, or holds what it says it holds.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tenure_testkit::{GENEROUS, Process, with_default_signals};

use crate::common::Store;

/// The command with this limit on open files.
fn limited(store: &Store, files: usize, arguments: &[&str]) -> Command {
    let tenure = store.tenure(arguments);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {files}; exec \"$0\" \"$@\""));
    shell.arg(tenure.get_program()).args(tenure.get_args());
    store.set_environment(&mut shell);
    with_default_signals(&mut shell);
    shell.process_group(0);
    shell
}

#[tokio::test]
async fn with_too_few_descriptors_a_hold_is_refused_or_renewed_and_never_lost_in_silence() {
    let store = Store::new();
    let (mut refused, mut held) = (0, 0);
    for files in 5..40 {
        let mut hold = limited(&store, files, &["hold", "--ttl", "500ms", "--stdin", "a"]);
        hold.stderr(Stdio::null());
        let mut holder = Process::spawn(hold).unwrap();
        let Some(_says_that_it_holds) = holder.line(GENEROUS).await else {
            refused += 1;
            continue;
        };
        held += 1;
        // Three terms later it still holds, or a rival would be let in.
        store.run(&["run", "-w", "1500ms", "a", "--", "true"]).failed(75);
        if held == 3 {
            break;
        }
    }
    assert!(refused > 0 && held == 3, "{refused} refused, {held} held");
}
