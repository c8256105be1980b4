//! The default directory where the environment says nothing.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use tenure::Registry;

const ALONE: &str = "TENURE_TEST_WITHOUT_ENVIRONMENT";

#[test]
fn without_home_the_user_database_says_where_the_default_directory_is() {
    if std::env::var_os(ALONE).is_some() {
        let url = Registry::default().parse("local").unwrap().resolved().unwrap();
        println!("resolved {url}");
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let test = "without_home_the_user_database_says_where_the_default_directory_is";
    again.args(["--exact", test, "--nocapture"]).env_clear().env(ALONE, "1");
    let output = again.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let user = Command::new("sh").args(["-c", "getent passwd $(id -u)"]).output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let home = user.split(':').nth(5).unwrap();
    let expected = format!("resolved local:{home}/.local/state/tenure\n");
    assert!(said.contains(&expected), "{said} does not contain {expected}");
}
