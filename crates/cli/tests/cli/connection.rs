//! Connections to a server: TLS with the system's certificate authorities, and Unix sockets.

use tenure_testkit::{Certificates, RedisServer, lacks};

use crate::common::{Ran, Store};

#[test]
fn without_a_ca_option_the_certificate_authorities_of_the_system_are_trusted() {
    if lacks(
        "redis-server",
        "without_a_ca_option_the_certificate_authorities_of_the_system_are_trusted",
    ) {
        return;
    }
    let (files, others) = (Certificates::make().unwrap(), Certificates::make().unwrap());
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let (certificate, key) = files.of("server");
    let path = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (ca, certificate, key) = (path(files.ca()), path(certificate), path(key));
    let tls = ["--tls-port", &port, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate];
    let tls = [&tls[..], &["--tls-key-file", &key, "--tls-auth-clients", "no"]].concat();
    let _server = RedisServer::start(&tls).unwrap();
    let store = Store::new();
    let run = |authorities: std::path::PathBuf| {
        let url = format!("rediss://localhost:{port}");
        let mut command = store.tenure(&["--store", &url, "run", "a", "--", "echo", "held"]);
        // Replaces the system's certificate authorities, as for OpenSSL.
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
        Ran::from(command.output().unwrap())
    };
    assert_eq!(run(files.ca()).ok(), "held\n");
    let denied = run(others.ca()).failed(77);
    assert!(denied.contains("`ca`"), "{denied}");
}

#[test]
fn a_server_is_reached_through_its_unix_socket() {
    if lacks("redis-server", "a_server_is_reached_through_its_unix_socket") {
        return;
    }
    let store = Store::new();
    let socket = store.scratch().join("a b.sock");
    let _server = RedisServer::start(&["--unixsocket", socket.to_str().unwrap()]).unwrap();
    let url = format!("redis+unix://{}?db=3", socket.to_str().unwrap().replace(' ', "%20"));
    let script = "tenure=$0; \"$tenure\" status a && \"$tenure\" run b -- echo held";
    let words = ["--store", &url, "run", "a", "--", "sh", "-c", script];
    let printed = store.run(&[&words[..], &[env!("CARGO_BIN_EXE_tenure")]].concat()).ok();
    assert!(printed.ends_with("held\n"), "{printed}");
    let missing = ["--store", "redis+unix:///nowhere.sock", "status", "a"];
    let missing = store.run(&missing).failed(69);
    assert!(missing.contains("/nowhere.sock"), "{missing}");
}
