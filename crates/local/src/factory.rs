//! From a URL to a local store.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::Result;
use tenure_core::store::{Connecting, Scheme, Store, StoreFactory, StoreUrl, UrlOption};

use crate::LocalOptions;
use crate::directory::default_directory;

/// The engine behind `local` and `local:/dir`.
#[derive(Debug)]
pub struct LocalFactory;

static SCHEMES: [Scheme; 1] = [Scheme::path(
    "local",
    "/dir",
    "the processes of this Linux machine, in a directory: without one, `$TENURE_DIR`, else \
     `$XDG_STATE_HOME/tenure`, else `~/.local/state/tenure`; without `$HOME`, \
     `$STATE_DIRECTORY/tenure` (systemd)",
)
.or_default_path(default_directory)];

static OPTIONS: [UrlOption; 3] = [
    UrlOption::new("group", "NAME", "share the directory with a group"),
    UrlOption::new("owner", "any", "accept a directory that belongs to another user"),
    UrlOption::new("filesystem", "any", "accept a file system that may reach other machines"),
];

#[async_trait]
impl StoreFactory for LocalFactory {
    fn name(&self) -> &'static str {
        "local"
    }

    fn schemes(&self) -> &'static [Scheme] {
        &SCHEMES
    }

    fn options(&self) -> &'static [UrlOption] {
        &OPTIONS
    }

    async fn connect(&self, url: &StoreUrl, _: &Connecting) -> Result<Arc<dyn Store>> {
        let options = options(url)?;
        let store = match url.file() {
            Some(directory) => options.open(directory)?,
            None => options.open(default_directory()?)?,
        };
        Ok(Arc::new(store))
    }
}

fn options(url: &StoreUrl) -> Result<LocalOptions> {
    let any = |name: &str| match url.option(name) {
        None => Ok(false),
        Some("any") => Ok(true),
        Some(_) => Err(url.invalid(format!("{name}= takes one value, `any`"))),
    };
    let options = LocalOptions::new().any_owner(any("owner")?).any_file_system(any("filesystem")?);
    Ok(match url.option("group") {
        Some(group) => options.group(group),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn parse(url: &str) -> StoreUrl {
        StoreUrl::parse(url, &[Arc::new(LocalFactory)]).unwrap()
    }

    #[test]
    fn a_url_says_what_may_be_unusual_about_the_directory() {
        let options = |url: &str| options(&parse(url));
        let shown = |url: &str| format!("{:?}", options(url).unwrap());
        assert_eq!(shown("local"), format!("{:?}", LocalOptions::new()));
        let all = LocalOptions::new().group("deploy").any_owner(true).any_file_system(true);
        let url = "local:/d?group=deploy&owner=any&filesystem=any";
        assert_eq!(shown(url), format!("{all:?}"));
        assert_eq!(parse(url).to_string(), url);
        for bad in ["local?owner=root", "local?filesystem=nfs", "local?owner"] {
            let error = options(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(error.to_string().contains("`any`"), "{error}");
        }
    }
}
