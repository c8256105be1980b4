//! What an engine says about itself, so that a URL can name it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use crate::store::{Connecting, StoreUrl};
use crate::{Result, Store};

/// An engine, as a registry of stores knows it: the URLs it understands, and how to connect.
///
/// Everything that users read about URLs (help, documentation, error messages) is made from what a
/// factory says here.
#[async_trait]
pub trait StoreFactory: fmt::Debug + Send + Sync + 'static {
    /// What messages and documents call the engine.
    fn name(&self) -> &'static str;

    /// The schemes of its URLs.
    fn schemes(&self) -> &'static [Scheme];

    /// The options of its URLs, beside `timeout=`, which all engines have.
    fn options(&self) -> &'static [UrlOption];

    /// Connects to the store behind `url`, which has one of [`schemes`](Self::schemes) and only known
    /// options.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a URL that makes no sense, made by [`StoreUrl::invalid`];
    /// otherwise what kept it from connecting, with the cause.
    async fn connect(&self, url: &StoreUrl, context: &Connecting) -> Result<Arc<dyn Store>>;
}

/// One form of an engine's URLs.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    pub(crate) name: &'static str,
    pub(crate) tls_name: Option<&'static str>,
    pub(crate) rest: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) shape: Shape,
    pub(crate) needs_user: bool,
}

/// What follows the scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Nothing: `memory:`.
    Nothing,
    /// An absolute path: `local:/dir`.
    Path { default: Option<fn() -> Result<PathBuf>> },
    /// `//[user[:password]@]host[:port],…[/path]`.
    Servers { default_port: u16 },
    /// `//[user[:password]@]/path/of/socket`.
    Socket,
}

impl Scheme {
    /// A URL that is only a scheme. `meaning` says in half a sentence what store it names.
    pub const fn nothing(name: &'static str, meaning: &'static str) -> Self {
        Self { name, tls_name: None, rest: "", meaning, shape: Shape::Nothing, needs_user: false }
    }

    /// A URL with the absolute path of a file or a directory. `rest` is the path as documentation
    /// shows it.
    pub const fn path(name: &'static str, rest: &'static str, meaning: &'static str) -> Self {
        let shape = Shape::Path { default: None };
        Self { name, tls_name: None, rest, meaning, shape, needs_user: false }
    }

    /// A URL with one or more servers. `rest` is what follows `//`, as documentation shows it.
    pub const fn servers(
        name: &'static str,
        rest: &'static str,
        meaning: &'static str,
        default_port: u16,
    ) -> Self {
        let shape = Shape::Servers { default_port };
        Self { name, tls_name: None, rest, meaning, shape, needs_user: true }
    }

    /// A URL with a server's socket in the file system. `rest` is what follows `//`, as documentation
    /// shows it.
    pub const fn socket(name: &'static str, rest: &'static str, meaning: &'static str) -> Self {
        Self { name, tls_name: None, rest, meaning, shape: Shape::Socket, needs_user: true }
    }

    /// The same URL is also known by another scheme, which asks for TLS.
    pub const fn or_with_tls(mut self, name: &'static str) -> Self {
        self.tls_name = Some(name);
        self
    }

    /// The path may be left out: then it is what this function finds in the environment.
    pub const fn or_default_path(mut self, find: fn() -> Result<PathBuf>) -> Self {
        self.shape = Shape::Path { default: Some(find) };
        self
    }

    /// A password may come without a user.
    pub const fn or_password_alone(mut self) -> Self {
        self.needs_user = false;
        self
    }

    /// Its name without TLS, which tells the schemes of an engine apart.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The name that asks for TLS, if it has one.
    pub const fn tls_name(&self) -> Option<&'static str> {
        self.tls_name
    }

    /// Both names, the one with TLS last.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.tls_name].into_iter().flatten()
    }

    /// What store it names.
    pub const fn meaning(&self) -> &'static str {
        self.meaning
    }

    /// The whole URL, as documentation shows it.
    pub fn form(&self) -> String {
        self.form_of(self.name)
    }

    /// Whether the path may be left out.
    pub const fn has_default_path(&self) -> bool {
        matches!(self.shape, Shape::Path { default: Some(_) })
    }

    pub(crate) fn form_of(&self, name: &str) -> String {
        match self.shape {
            Shape::Nothing | Shape::Path { .. } => format!("{name}:{}", self.rest),
            Shape::Servers { .. } | Shape::Socket => format!("{name}://{}", self.rest),
        }
    }
}

/// An option in the query of a URL: `name=value`.
#[derive(Clone, Copy, Debug)]
pub struct UrlOption {
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    pub(crate) default: Option<&'static str>,
    pub(crate) help: &'static str,
    pub(crate) is_file: bool,
    pub(crate) needs_tls: bool,
    pub(crate) is_cosmetic: bool,
    pub(crate) formerly: Option<&'static str>,
}

impl UrlOption {
    /// `timeout=`, which all engines have.
    pub const TIMEOUT: Self =
        Self::new("timeout", "DURATION", "how long one call may take").defaults_to("2s").cosmetic();

    /// `prefix=`, for engines that share their server with other programs. Its default is the
    /// engine's own.
    pub const PREFIX: Self =
        Self::new("prefix", "TEXT", "what every key begins with; may be empty");

    /// `password-file=`, which [`Connecting`] reads for all engines whose servers ask for a password.
    pub const PASSWORD_FILE: Self =
        Self::new("password-file", "FILE", "a file whose first line is the password").file();

    /// An option. `value` stands for its value where `help`, half a sentence, is shown.
    pub const fn new(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self {
            name,
            value,
            default: None,
            help,
            is_file: false,
            needs_tls: false,
            is_cosmetic: false,
            formerly: None,
        }
    }

    /// What counts where the option is left out, as documentation shows it.
    pub const fn defaults_to(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// Its value names a file. A relative name is resolved before the URL is passed on to another
    /// process.
    pub const fn file(mut self) -> Self {
        self.is_file = true;
        self
    }

    /// It is refused where the scheme asks for no TLS.
    pub const fn only_with_tls(mut self) -> Self {
        self.needs_tls = true;
        self
    }

    /// It does not change which locks the URL leads to: see [`StoreUrl::same_store`].
    pub const fn cosmetic(mut self) -> Self {
        self.is_cosmetic = true;
        self
    }

    /// Its earlier name, which is refused with a hint.
    pub const fn formerly(mut self, name: &'static str) -> Self {
        self.formerly = Some(name);
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What stands for its value.
    pub const fn value(&self) -> &'static str {
        self.value
    }

    /// What counts where it is left out, if something does.
    pub const fn default(&self) -> Option<&'static str> {
        self.default
    }

    /// What it is for.
    pub const fn help(&self) -> &'static str {
        self.help
    }

    /// Whether it is refused where the scheme asks for no TLS.
    pub const fn needs_tls(&self) -> bool {
        self.needs_tls
    }
}
