//! From a URL to a local store.

use std::sync::Arc;

use tenure_core::store::Store;
use tenure_core::{Error, ErrorKind, Result};
use tenure_local::LocalOptions;

use crate::StoreUrl;
use crate::engine::{Engine, READ};

pub(crate) fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    let options = options(url)?;
    let url = url.clone().resolved()?;
    let directory = url.directory().ok_or_else(|| Engine::Local.missing())?;
    Ok(Arc::new(options.open(directory)?))
}

fn options(url: &StoreUrl) -> Result<LocalOptions> {
    let any = |name: &str| match url.option(name) {
        None => Ok(false),
        Some("any") => Ok(true),
        Some(_) => {
            let why = format!("{name}= takes one value, `any`");
            Err(Error::new(ErrorKind::Invalid, READ, why))
        }
    };
    let options = LocalOptions::new().any_owner(any("owner")?).any_file_system(any("filesystem")?);
    Ok(match url.option("group") {
        Some(group) => options.group(group),
        None => options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_may_be_unusual_about_the_directory() {
        let options = |url: &str| options(&url.parse().unwrap());
        let shown = |url: &str| format!("{:?}", options(url).unwrap());
        assert_eq!(shown("local"), format!("{:?}", LocalOptions::new()));
        let all = LocalOptions::new().group("deploy").any_owner(true).any_file_system(true);
        let url = "local:/d?group=deploy&owner=any&filesystem=any";
        assert_eq!(shown(url), format!("{all:?}"));
        for bad in ["local?owner=root", "local?filesystem=nfs", "local?owner"] {
            let error = options(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(error.to_string().contains("`any`"), "{error}");
        }
    }
}
