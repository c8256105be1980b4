use async_trait::async_trait;

use super::*;
use crate::Store;
use crate::store::{Connecting, MemoryFactory};

/// An engine with every form of URL there is.
#[derive(Debug)]
struct Cache;

/// An engine whose servers know users only.
#[derive(Debug)]
struct Tree;

/// An engine without servers.
#[derive(Debug)]
struct Folder;

static CACHE: [Scheme; 3] = [
    Scheme::servers("cache", "[user:pass@]host[:6379][/db]", "one server", 6379)
        .or_with_tls("caches")
        .or_password_alone(),
    Scheme::servers("cache+watch", "h1,h2/service", "several", 26379)
        .or_with_tls("caches+watch")
        .or_password_alone(),
    Scheme::socket("cache+unix", "/path", "a socket").or_password_alone(),
];
static CACHE_OPTIONS: [UrlOption; 7] = [
    UrlOption::PREFIX.formerly("namespace"),
    UrlOption::PASSWORD_FILE,
    UrlOption::new("client-name", "NAME", "a name").cosmetic(),
    UrlOption::new("db", "N", "a database"),
    UrlOption::new("ca", "FILE", "a file").file().only_with_tls(),
    UrlOption::new("cert", "FILE", "a file").file().only_with_tls(),
    UrlOption::new("key", "FILE", "a file").file().only_with_tls(),
];
static TREE: [Scheme; 1] = [Scheme::servers("tree", "h1,h2", "a tree", 2379)];
static FOLDER: [Scheme; 2] = [
    Scheme::path("folder", "/dir", "a directory").or_default_path(default_folder),
    Scheme::path("file", "/file", "a file"),
];
static FOLDER_OPTIONS: [UrlOption; 1] = [UrlOption::new("group", "NAME", "a group")];

fn default_folder() -> Result<PathBuf> {
    Ok("/default".into())
}

macro_rules! engine {
    ($engine:ident, $schemes:expr, $options:expr) => {
        #[async_trait]
        impl StoreFactory for $engine {
            fn name(&self) -> &'static str {
                stringify!($engine)
            }

            fn schemes(&self) -> &'static [Scheme] {
                $schemes
            }

            fn options(&self) -> &'static [UrlOption] {
                $options
            }

            async fn connect(&self, url: &StoreUrl, _: &Connecting) -> Result<Arc<dyn Store>> {
                Err(url.invalid("nothing is there"))
            }
        }
    };
}

engine!(Cache, &CACHE, &CACHE_OPTIONS);
engine!(Tree, &TREE, &[]);
engine!(Folder, &FOLDER, &FOLDER_OPTIONS);

/// Parses a URL of one of these engines, of `memory:` or of its like, `here:`.
pub(crate) fn parse(text: &str) -> Result<StoreUrl> {
    #[derive(Debug)]
    struct Here;
    engine!(Here, const { &[Scheme::nothing("here", "this process")] }, &[]);
    let engines: [Arc<dyn StoreFactory>; 5] = [
        Arc::new(Folder),
        Arc::new(MemoryFactory),
        Arc::new(Here),
        Arc::new(Cache),
        Arc::new(Tree),
    ];
    StoreUrl::parse(text, &engines)
}

#[test]
fn every_documented_form_is_read_and_shown_again() {
    for text in [
        "folder",
        "folder?timeout=2s",
        "folder:/var/lock",
        "folder:/a%3Fb?timeout=250ms",
        "folder:/ключ?timeout=2s&group=deploy",
        "memory:",
        "memory:?timeout=2s",
        "cache://h",
        "cache://app@h:6379/1",
        "caches://h:6379",
        "cache+watch://h1:26379,h2:26379/service/0",
        "caches+watch://h1:26379/service/0?ca=/ca.pem",
        "cache+unix:///run/a%3Fb.sock",
        "cache+unix://app@/run/redis.sock?db=1",
        "tree://[::1]:2379,h2:2379",
        "tree://h1:2181,h2:2181/chroot",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    assert_eq!(parse("memory").unwrap(), parse("memory:").unwrap());
    assert_eq!(parse("folder:").unwrap(), parse("folder").unwrap());
}

#[test]
fn the_timeout_is_read() {
    assert_eq!(parse("folder").unwrap().timeout(), None);
    let url = parse("memory:?timeout=2s").unwrap();
    assert_eq!(url.timeout(), Some(Duration::from_secs(2)));
    for bad in ["memory:?timeout=0s", "memory:?timeout=", "memory:?timeout", "folder?timeout=2"] {
        assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
    }
}

#[test]
fn an_unknown_scheme_lists_the_known_ones() {
    for bad in ["http://host", "", "FOLDER", "cahce://u:hunter2@h", "u:hunter2@h", "hunter2@h"] {
        let error = parse(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        let message = error.to_string();
        assert!(
            message
                .contains("folder, file, memory, here, cache, caches, cache+watch, caches+watch"),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn an_unknown_option_lists_the_known_ones() {
    let error = parse("folder:/d?ttl=5s").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.to_string();
    assert!(message.contains("\"ttl\"") && message.contains("timeout=, group="), "{message}");
}

#[test]
fn a_password_is_never_shown() {
    for text in [
        "cache://app:hunter2@h:6379/0?prefix=x",
        "cache://:hunter2@h",
        "cache://app:hunter2@@h",
        "cache://app:hunter2:hunter2@h",
        "tree://app:hunter2@h1,h2,h3/chroot",
    ] {
        let url = parse(text).unwrap();
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(!shown.contains("hunter2") && !shown.contains("***"), "{shown}");
        }
        let again = parse(&url.to_string()).unwrap();
        assert!(again.same_store(&url) && again.password().is_none(), "{again:?}");
    }
    for malformed in [
        "cache://app:hunter2",
        "cache://app:hunter2/x@h",
        "cache://app:1?hunter2@h",
        "cache:app:hunter2@h",
        "cache://app:hunter2@",
    ] {
        let error = parse(malformed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn a_hidden_password_is_not_taken_for_a_password() {
    for bad in ["cache://app:***@h", "cache://:***@h", "cache://***@h", "tree://u:***@h1,h2/c"] {
        let error = parse(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        let message = error.to_string();
        assert!(message.contains("hidden") && message.contains("TENURE_PASSWORD"), "{message}");
    }
    assert_eq!(parse("cache://app:%2A%2A%2A@h").unwrap().password(), Some("***"));
    assert_eq!(parse("cache://app:****@h").unwrap().password(), Some("****"));
}

#[test]
fn users_and_passwords_are_percent_decoded_and_may_be_empty() {
    let url = parse("tree://a%40b%3Ac%25:p%2F%3A@h").unwrap();
    assert_eq!(url.user(), Some("a@b:c%"));
    assert_eq!(url.password(), Some("p/:"));
    assert_eq!(url.to_string(), "tree://a%40b%3Ac%25@h");
    for (text, user, password) in [
        ("cache://app:@h", Some("app"), Some("")),
        ("cache://app@h", Some("app"), None),
        ("cache://:@h", None, None),
        ("cache://@h", None, None),
    ] {
        let url = parse(text).unwrap();
        assert_eq!(url.user(), user, "{text}");
        assert_eq!(url.password(), password, "{text}");
        assert_eq!(parse(&url.to_string()).unwrap(), url, "{text}");
    }
}

#[test]
fn a_resolved_url_names_files_from_anywhere() {
    let url = parse("caches://h?ca=ca%26.pem&cert=/c.pem&key=../k.pem&prefix=ca").unwrap();
    let shown = url.resolved().unwrap().to_string();
    let here = std::env::current_dir().unwrap().display().to_string();
    let expected =
        format!("caches://h?ca={here}/ca%26.pem&cert=/c.pem&key={here}/../k.pem&prefix=ca");
    assert_eq!(shown, expected);
}

#[test]
fn the_same_store_may_have_another_timeout_and_password() {
    let same = |one: &str, two: &str| parse(one).unwrap().same_store(&parse(two).unwrap());
    assert!(same("cache://a:x@h/1?timeout=1s&prefix=p", "cache://a@h/1?prefix=p"));
    assert!(same("cache://a@h/1?client-name=c&prefix=p", "cache://a@h/1?prefix=p"));
    assert!(!same("cache+unix:///a", "cache+unix:///b"));
    for other in ["cache://a@h/2?prefix=p", "cache://b@h/1?prefix=p", "cache://a@h/1"] {
        assert!(!same("cache://a@h/1?prefix=p", other), "{other}");
    }
}

#[test]
fn a_relative_directory_is_refused_and_an_odd_one_comes_back() {
    for bad in ["folder:dir", "memory:/x", "file", "file:", "file:a"] {
        assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
    }
    let url = parse("folder:/a%3Fb%FF%25").unwrap();
    let bytes = url.file().unwrap().as_os_str().as_encoded_bytes();
    assert_eq!(bytes, b"/a?b\xff%");
    assert_eq!(parse(&url.to_string()).unwrap(), url);
}

#[test]
fn a_path_that_may_be_left_out_comes_from_the_environment() {
    let url = parse("folder?group=x").unwrap();
    assert_eq!((url.file(), url.has_servers()), (None, false));
    let url = url.resolved().unwrap();
    assert_eq!(url.file(), Some(Path::new("/default")));
    assert_eq!(url.to_string(), "folder:/default?group=x");
}

#[test]
fn a_url_says_where_the_servers_are() {
    let url = parse("caches+watch://app:pw@a,[::1]:7000/main%20one/2").unwrap();
    assert_eq!((url.scheme().name(), url.tls()), ("cache+watch", true));
    assert_eq!(url.servers(), [("a".into(), 26379), ("::1".into(), 7000)]);
    assert_eq!((url.hosts(), url.path()), ("a,[::1]:7000", "/main one/2"));
    assert_eq!(url.to_string(), "caches+watch://app@a,[::1]:7000/main one/2");
    let socket = parse("cache+unix:///run/a%40b").unwrap();
    assert_eq!((socket.servers(), socket.hosts()), (vec![], ""));
    assert_eq!(socket.file(), Some(Path::new("/run/a@b")));
    assert_eq!(parse(&socket.to_string()).unwrap(), socket);
}

#[test]
fn a_password_without_a_user_is_for_engines_that_know_it() {
    assert_eq!(parse("cache://:pw@h").unwrap().password(), Some("pw"));
    let error = parse("tree://:hunter2@h").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.to_string();
    assert!(message.contains("tree://[user:password@]"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn an_option_that_needs_tls_names_the_schemes_that_have_it() {
    for bad in ["cache://h?ca=x", "cache+unix:///s?ca=x"] {
        let message = parse(bad).unwrap_err().to_string();
        assert!(message.contains("ca= needs caches:// or caches+watch://"), "{message}");
    }
}

#[test]
fn an_earlier_name_of_an_option_is_refused_with_the_new_one() {
    let error = parse("cache://h?namespace=x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("namespace= of cache is called prefix= now"), "{error}");
}

#[test]
fn encoded_text_decodes_to_the_same_bytes() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for bytes in [&every_byte[..], b"/a b?c%20", "ключ\u{85}".as_bytes(), b"", b"%", b"100%"] {
        for special in [PLAIN, PATH, VALUE, USER] {
            let text = encode(bytes, special);
            assert_eq!(percent_decode_str(&text).collect::<Vec<_>>(), bytes);
            assert!(!text.contains(|c: char| c == '?' || c.is_control()), "{text:?}");
        }
    }
    assert_eq!(encode("ключ".as_bytes(), USER), "ключ");
}
