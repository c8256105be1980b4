//! Checks that a command can be started, before its lock is waited for.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::exit::{self, Failure};
use crate::output::printable;

/// Fails unless the program exists and is executable. Searches the PATH as the system does.
pub(crate) fn check_program(program: &OsStr) -> Result<(), Failure> {
    check_in(program, env::var_os("PATH").as_deref().unwrap_or(OsStr::new("/bin:/usr/bin")))
}

/// The failure of a program that could not be started although it passed the check.
pub(crate) fn start_failure(program: &OsStr, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_EXECUTE,
    };
    let program = printable(&program.to_string_lossy());
    Failure::new(code, format!("cannot execute {program}: {error}"))
}

fn check_in(program: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let candidates: Vec<_> = match program.as_encoded_bytes().contains(&b'/') {
        true => vec![program.into()],
        false if program.is_empty() => Vec::new(),
        false => env::split_paths(path).map(|directory| directory.join(program)).collect(),
    };
    let shown = printable(&program.to_string_lossy());
    if candidates.iter().any(|file| is_executable(file)) {
        Ok(())
    } else if candidates.iter().any(|file| file.exists()) {
        let why = format!(
            "cannot execute {shown}: not an executable file; use `chmod +x` if it should be one"
        );
        Err(Failure::new(exit::CANNOT_EXECUTE, why))
    } else {
        let why = format!("command not found: {shown}; check its spelling and the PATH");
        Err(Failure::new(exit::NOT_FOUND, why))
    }
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_searched_in_the_path_unless_its_name_has_a_slash() {
        let code = |program: &str, path: &str| {
            check_in(program.as_ref(), path.as_ref()).map_err(|failure| failure.code)
        };
        assert_eq!(code("sh", "/nowhere:/bin"), Ok(()));
        assert_eq!(code("/bin/sh", ""), Ok(()));
        assert_eq!(code("sh", "/nowhere"), Err(127));
        assert_eq!(code("/nowhere/sh", "/bin"), Err(127));
        assert_eq!(code("", "/bin"), Err(127));
        assert_eq!(code("/etc/passwd", ""), Err(126));
        assert_eq!(code("passwd", "/etc"), Err(126));
        assert_eq!(code("/bin/", ""), Err(126), "a directory cannot be executed");
    }
}
