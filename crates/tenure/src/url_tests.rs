use super::*;

fn parse(text: &str) -> Result<StoreUrl> {
    text.parse()
}

#[test]
fn every_documented_form_is_read_and_shown_again() {
    for text in [
        "local",
        "local?timeout=2s",
        "local:/var/lock",
        "local:/a%3Fb?timeout=250ms",
        "local:/var/lock?group=deploy&owner=any&filesystem=any",
        "memory:",
        "memory:?timeout=2s",
        "redis://cache",
        "redis://app@cache:6379/1",
        "rediss://cache:6379",
        "redis+sentinel://h1:26379,h2:26379/service/0",
        "redis+cluster://h1:7000,h2:7001",
        "rediss+sentinel://h1:26379/service/0",
        "rediss+cluster://h1:7000,h2:7001?server-name=cache.example",
        "redlocks://h1,h2,h3",
        "redis+unix:///run/a%3Fb.sock",
        "redis+unix://app@/run/redis.sock?db=1",
        "redis+sentinel://h1/service?sentinel-user=w&sentinel-password-file=/p",
        "redlock://h1:6379,h2:6379,h3:6379",
        "etcd://[::1]:2379,h2:2379",
        "etcds://h1",
        "zk://h1:2181,h2:2181/chroot",
        "zks://h1",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    assert_eq!(parse("memory").unwrap(), parse("memory:").unwrap());
    assert_eq!(parse("local:").unwrap(), parse("local").unwrap());
}

#[test]
fn the_timeout_is_read() {
    assert_eq!(parse("local").unwrap().timeout(), None);
    let url = parse("memory:?timeout=2s").unwrap();
    assert_eq!(url.timeout(), Some(Duration::from_secs(2)));
    for bad in ["memory:?timeout=0s", "memory:?timeout=", "memory:?timeout", "local?timeout=2"] {
        assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
    }
}

#[test]
fn an_unknown_scheme_lists_the_known_ones() {
    for bad in ["http://host", "", "LOCAL", "redsi://u:hunter2@h", "u:hunter2@h", "hunter2@h"] {
        let error = parse(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        let message = error.to_string();
        assert!(message.contains("local, memory, redis, rediss, redis+sentinel"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn an_unknown_option_lists_the_known_ones() {
    let error = parse("local:/d?ttl=5s").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.to_string();
    assert!(message.contains("\"ttl\"") && message.contains("timeout="), "{message}");
}

#[test]
fn a_password_is_never_shown() {
    for text in [
        "redis://app:hunter2@cache:6379/0?prefix=x",
        "redis://:hunter2@cache",
        "redis://app:hunter2@@cache",
        "redis://app:hunter2:hunter2@cache",
        "zk://app:hunter2@h1,h2,h3/chroot",
    ] {
        let url = parse(text).unwrap();
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(!shown.contains("hunter2") && !shown.contains("***"), "{shown}");
        }
        let again = parse(&url.to_string()).unwrap();
        assert!(again.same_store(&url) && again.password().is_none(), "{again:?}");
    }
    for malformed in [
        "redis://app:hunter2",
        "redis://app:hunter2/x@cache",
        "redis://app:1?hunter2@cache",
        "redis:app:hunter2@cache",
        "redis://app:hunter2@",
    ] {
        let error = parse(malformed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn a_hidden_password_is_not_taken_for_a_password() {
    for bad in ["redis://app:***@h", "redis://:***@h", "redis://***@h", "zk://u:***@h1,h2/c"] {
        let error = parse(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        let message = error.to_string();
        assert!(message.contains("hidden") && message.contains("TENURE_PASSWORD"), "{message}");
    }
    assert_eq!(parse("redis://app:%2A%2A%2A@h").unwrap().password(), Some("***"));
    assert_eq!(parse("redis://app:****@h").unwrap().password(), Some("****"));
}

#[test]
fn users_and_passwords_are_percent_decoded_and_may_be_empty() {
    let url = parse("etcd://a%40b%3Ac%25:p%2F%3A@h").unwrap();
    assert_eq!(url.servers().unwrap().user.as_deref(), Some("a@b:c%"));
    assert_eq!(url.password(), Some("p/:"));
    assert_eq!(url.to_string(), "etcd://a%40b%3Ac%25@h");
    for (text, user, password) in [
        ("redis://app:@h", Some("app"), Some("")),
        ("redis://app@h", Some("app"), None),
        ("redis://:@h", None, None),
        ("redis://@h", None, None),
    ] {
        let url = parse(text).unwrap();
        assert_eq!(url.servers().unwrap().user.as_deref(), user, "{text}");
        assert_eq!(url.password(), password, "{text}");
        assert_eq!(parse(&url.to_string()).unwrap(), url, "{text}");
    }
}

#[test]
fn a_resolved_url_names_files_from_anywhere() {
    let url = parse("rediss://h?ca=ca%26.pem&cert=/c.pem&key=../k.pem&prefix=ca").unwrap();
    let shown = url.resolved().unwrap().to_string();
    let here = std::env::current_dir().unwrap().display().to_string();
    let expected =
        format!("rediss://h?ca={here}/ca%26.pem&cert=/c.pem&key={here}/../k.pem&prefix=ca");
    assert_eq!(shown, expected);
}

#[test]
fn the_same_store_may_have_another_timeout_and_password() {
    let same = |one: &str, two: &str| parse(one).unwrap().same_store(&parse(two).unwrap());
    assert!(same("redis://a:x@h/1?timeout=1s&prefix=p", "redis://a@h/1?prefix=p"));
    assert!(same("redis://a@h/1?client-name=c&prefix=p", "redis://a@h/1?prefix=p"));
    assert!(!same("redis+unix:///a", "redis+unix:///b"));
    for other in ["redis://a@h/2?prefix=p", "redis://b@h/1?prefix=p", "redis://a@h/1"] {
        assert!(!same("redis://a@h/1?prefix=p", other), "{other}");
    }
}

#[test]
fn a_relative_directory_is_refused_and_an_odd_one_comes_back() {
    assert_eq!(parse("local:dir").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(parse("memory:/x").unwrap_err().kind(), ErrorKind::Invalid);
    let url = parse("local:/a%3Fb%FF%25").unwrap();
    let bytes = url.directory().unwrap().as_os_str().as_encoded_bytes();
    assert_eq!(bytes, b"/a?b\xff%");
    assert_eq!(parse(&url.to_string()).unwrap(), url);
}
