//! Where local locks are, unless a URL says so.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use tenure_core::{Error, ErrorKind, Result};

/// `$TENURE_DIR`, else `$XDG_STATE_HOME/tenure`, else `$HOME/.local/state/tenure`; without `$HOME`,
/// `$STATE_DIRECTORY/tenure` (which systemd sets for a service), else `.local/state/tenure` in the
/// home directory that the user database names.
///
/// `$HOME` comes before `$STATE_DIRECTORY`, so that a service and a cron job of one user exclude each
/// other.
pub(crate) fn default_directory() -> Result<PathBuf> {
    // Consults the user database where `$HOME` is not set or empty.
    directory_in(|name| std::env::var_os(name), std::env::home_dir)
}

fn directory_in(
    variable: impl Fn(&str) -> Option<OsString>,
    home: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf> {
    let invalid = |why: &str| Error::new(ErrorKind::Invalid, "find the local store", why);
    let path = |name: &str| Some(PathBuf::from(variable(name).filter(|value| !value.is_empty())?));
    if let Some(directory) = path("TENURE_DIR") {
        // What was asked for by name must not be passed over in silence.
        return match directory.is_absolute() {
            true => Ok(directory),
            false => Err(invalid("TENURE_DIR is not absolute: let it begin with a slash")),
        };
    }
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let below = |home: PathBuf| home.join(".local/state");
    absolute(path("XDG_STATE_HOME"))
        .or_else(|| absolute(path("HOME")).map(below))
        .or_else(|| absolute(first(&variable("STATE_DIRECTORY")?)))
        .or_else(|| absolute(home()).map(below))
        .map(|state| state.join("tenure"))
        .ok_or_else(|| {
            invalid(
                "none of TENURE_DIR, XDG_STATE_HOME, HOME and STATE_DIRECTORY has an absolute \
                 path, and the user database has no home directory for this user: set \
                 TENURE_DIR, or use local:/dir",
            )
        })
}

/// The first of several directories with colons between.
fn first(directories: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(directories).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], home: Option<&str>) -> Result<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let variable = |name: &str| find(name).map(|(_, value)| OsString::from(value));
        let directory = directory_in(variable, || home.map(PathBuf::from));
        directory.map(|path| path.display().to_string())
    }

    #[test]
    fn the_first_variable_that_says_where_decides() {
        let (ours, xdg) = (("TENURE_DIR", "/t"), ("XDG_STATE_HOME", "/s"));
        let (service, home) = (("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), Some("/h"));
        let own = ("HOME", "/u");
        assert_eq!(found(&[ours, xdg, own, service], home).unwrap(), "/t");
        assert_eq!(found(&[xdg, own, service], home).unwrap(), "/s/tenure");
        assert_eq!(found(&[own, service], home).unwrap(), "/u/.local/state/tenure");
        assert_eq!(found(&[service], home).unwrap(), "/var/lib/a/tenure");
        assert_eq!(found(&[], home).unwrap(), "/h/.local/state/tenure");
        let odd = [("TENURE_DIR", ""), ("XDG_STATE_HOME", "here"), ("STATE_DIRECTORY", "a:/b")];
        assert_eq!(found(&odd, home).unwrap(), "/h/.local/state/tenure");
        assert!(found(&[("TENURE_DIR", "here")], home).is_err());
    }

    #[test]
    fn an_error_says_where_the_directory_was_looked_for() {
        for home in [None, Some(""), Some("here")] {
            let error = found(&[], home).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            for name in ["TENURE_DIR", "XDG_STATE_HOME", "STATE_DIRECTORY", "HOME", "user database"]
            {
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}
