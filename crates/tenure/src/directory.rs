//! Where local locks are, unless a URL says so.

use std::ffi::OsString;
use std::path::PathBuf;

use tenure_core::{Error, ErrorKind, Result};

/// `$TENURE_DIR`, else `tenure` in `$XDG_STATE_HOME`, else `~/.local/state/tenure`.
pub(crate) fn default_directory() -> Result<PathBuf> {
    directory_in(|name| std::env::var_os(name))
}

fn directory_in(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let invalid = |why: &str| Error::new(ErrorKind::Invalid, "find the local store", why);
    let path = |name: &str| Some(PathBuf::from(variable(name).filter(|value| !value.is_empty())?));
    if let Some(directory) = path("TENURE_DIR") {
        // What was asked for by name must not be passed over in silence.
        return match directory.is_absolute() {
            true => Ok(directory),
            false => Err(invalid("TENURE_DIR is not absolute: let it begin with a slash")),
        };
    }
    let absolute = |name: &str| path(name).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .map(|state| state.join("tenure"))
        .ok_or_else(|| invalid("no home directory is known: set TENURE_DIR, or use local:/dir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let directory = directory_in(|name| find(name).map(|(_, value)| OsString::from(value)));
        directory.ok().map(|path| path.display().to_string())
    }

    #[test]
    fn the_first_variable_that_says_where_decides() {
        let (ours, state, home) = (("TENURE_DIR", "/t"), ("XDG_STATE_HOME", "/s"), ("HOME", "/h"));
        assert_eq!(directory(&[ours, state, home]).unwrap(), "/t");
        assert_eq!(directory(&[state, home]).unwrap(), "/s/tenure");
        assert_eq!(directory(&[home]).unwrap(), "/h/.local/state/tenure");
        assert_eq!(directory(&[]), None);
        assert_eq!(directory(&[("TENURE_DIR", "here"), home]), None);
        let odd = [("TENURE_DIR", ""), ("XDG_STATE_HOME", "here"), home];
        assert_eq!(directory(&odd).unwrap(), "/h/.local/state/tenure");
    }
}
