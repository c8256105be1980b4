//! What connecting to a store needs beside its URL.

use std::time::Duration;

use crate::Result;
use crate::store::{CALL_TIMEOUT, Password, StoreUrl};

/// What a [`StoreFactory`](crate::store::StoreFactory) is told beside the URL: decisions that are the
/// same for all engines.
#[derive(Clone, Debug)]
pub struct Connecting {
    timeout: Duration,
    password: Option<Password>,
}

impl Connecting {
    /// What this URL and the environment of this process say.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) where the URL has a password and names a file with one,
    /// or has a user and neither it nor the environment has a password.
    pub fn new(url: &StoreUrl) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::in_environment(url, variable)
    }

    /// How long one call may take.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The password to log in with: from the URL, a file or the environment.
    pub const fn password(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    fn in_environment(url: &StoreUrl, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let password = match url.option(PASSWORD_FILE) {
            Some(_) if url.password().is_some() => {
                let why = "there is a password in the URL and a password-file=: leave one out";
                return Err(url.invalid(why));
            }
            Some(path) => Some(Password::File(path.into())),
            None => url.password_in(variable).map(Password::Text),
        };
        if url.user().is_some() && password.is_none() {
            return Err(url.invalid(
                "a user needs a password: in the URL, in TENURE_PASSWORD, or password-file=",
            ));
        }
        Ok(Self { timeout: url.timeout().unwrap_or(CALL_TIMEOUT), password })
    }
}

pub(crate) const PASSWORD_FILE: &str = crate::store::UrlOption::PASSWORD_FILE.name();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::url::tests::parse;

    fn connecting(url: &str, variables: &[(&str, &str)]) -> Result<Connecting> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let url = parse(url).unwrap();
        Connecting::in_environment(&url, |name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn password(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let password = connecting(url, variables).ok()?.password?;
        Some(password.read().unwrap())
    }

    #[test]
    fn the_password_nearest_to_the_server_is_used() {
        let store = ("TENURE_STORE_PASSWORD_FOR", "caches://app@h:1/2?prefix=x");
        let (bound, any) = (("TENURE_STORE_PASSWORD", "bound"), ("TENURE_PASSWORD", "any"));
        let all = [store, bound, any];
        assert_eq!(password("caches://app:own@h:1", &all).as_deref(), Some("own"));
        assert_eq!(password("caches://app:@h:1", &all).as_deref(), Some(""));
        assert_eq!(password("caches://app@h:1/3?timeout=1s", &all).as_deref(), Some("bound"));
        for other in ["cache://app@h:1", "caches://app@h:2", "caches://h:1", "tree://app@h:1"] {
            assert_eq!(password(other, &all).as_deref(), Some("any"), "{other}");
            assert_eq!(password(other, &[store, bound]), None, "{other}");
        }
        let socket = ("TENURE_STORE_PASSWORD_FOR", "cache+unix:///run/a.sock?db=1");
        let at = |url: &str| password(url, &[socket, bound]);
        assert_eq!(at("cache+unix:///run/a.sock").as_deref(), Some("bound"));
        assert_eq!(at("cache+unix:///run/b.sock"), None);
        let changed = [bound, ("TENURE_STORE", "caches://app@h:1")];
        assert_eq!(password("caches://app@h:1", &changed), None, "bound to no server");
        assert_eq!(password("caches://app@h:1", &[store, any]).as_deref(), Some("any"));
        assert_eq!(
            password("tree://h", &[any]),
            None,
            "this engine has no password without a user"
        );
    }

    #[test]
    fn a_password_file_takes_the_place_of_a_password_in_the_url() {
        let url = parse("cache://app@h?password-file=/p").unwrap();
        assert!(url.says_password());
        let file = Some(Password::File("/p".into()));
        let any = [("TENURE_PASSWORD", "any")];
        assert_eq!(connecting("cache://app@h?password-file=/p", &any).unwrap().password, file);
        let both = connecting("cache://app:x@h?password-file=/p", &[]).unwrap_err();
        assert_eq!(both.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_user_without_a_password_is_refused() {
        for url in ["cache://app@h", "tree://app@h"] {
            let error = connecting(url, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("TENURE_PASSWORD"), "{error}");
        }
    }

    #[test]
    fn one_place_decides_how_long_a_call_may_take() {
        assert_eq!(connecting("here:", &[]).unwrap().timeout(), CALL_TIMEOUT);
        let shorter = connecting("here:?timeout=250ms", &[]).unwrap().timeout();
        assert_eq!(shorter, Duration::from_millis(250));
    }
}
