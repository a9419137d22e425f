//! A token opens a file to whoever has it: no log has it, however much is logged.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_client::{Background, Config, OpenOptions, Status};
use dafs_proto::wire::Token;
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::program::Program;
use dafs_tests::suite::assert_status;
use tracing::Level;

on_each_provider! {
    token_stands_in_no_log_of_either_side,
}

/// What the client says.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a part of a token may be shown: a quarter of it is one too many.
fn forms(token: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for part in token.chunks_exact(8) {
        let number = |number: u64| [format!("{number}"), format!("{number:x}")];
        forms.extend(number(u64::from_le_bytes(part.try_into().unwrap())));
        forms.extend(number(u64::from_be_bytes(part.try_into().unwrap())));
        for separator in ["", " ", ":", ", "] {
            let joined = |show: fn(&u8) -> String| part.iter().map(show).collect::<Vec<_>>().join(separator);
            forms.push(joined(|byte| format!("{byte:02x}")));
            // Without a separator digits mean nothing.
            forms.extend((!separator.is_empty()).then(|| joined(|byte| byte.to_string())));
        }
    }
    forms
}

fn shows(log: &str, token: &[u8]) -> bool {
    let log = log.to_lowercase();
    forms(token).iter().any(|form| log.contains(form))
}

#[test]
fn token_in_a_log_is_found_in_each_form() {
    let token: Vec<u8> = (100..100 + 16).collect();
    let mut hex = String::new();
    token.iter().for_each(|byte| write!(hex, "{byte:02X}").unwrap());
    let [low, high] = [&token[..8], &token[8..]].map(|part| u64::from_be_bytes(part.try_into().unwrap()));
    for log in [
        format!("token {hex}"),
        format!("token={token:?}"),
        format!("{token:x?}"),
        format!("{low}"),
        format!("{high:#x}"),
    ] {
        assert!(shows(&log, &token), "{log}");
    }
    assert!(!shows("token 100 of 16 bytes", &token));
}

// [SESS-109]
fn token_stands_in_no_log_of_either_side(on: On) {
    let server = Program::start(on, &["--log", "trace", "--log-lines-max", "1000000"]);
    let said = Lines::default();
    let writer = said.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(move || writer.clone()).finish();
    let tokens = tracing::subscriber::with_default(subscriber, || {
        // All that the client does is done on this thread.
        let quiet = Config { background: Background::None, ..Config::default() };
        let (first, second) = (server.session_with(&quiet), server.session_with(&quiet));
        let file = first.mount("data").unwrap().create("f").unwrap();
        let token = file.share(true, true, Duration::ZERO).unwrap();
        let other = second.mount("data").unwrap();
        let options = OpenOptions::new().read(true).write(true).clone();
        let opened = other.open_token(&token, "f", &options).unwrap();
        opened.write_all_at(b"data", 0).unwrap();
        let mut wrong: Vec<u8> = token.as_bytes().to_vec();
        wrong[0] ^= 1;
        let wrong = Token::decode(&wrong).unwrap();
        assert_status(other.open_token(&wrong, "f", &options).map(drop), Status::NO_TOKEN, "none is known");
        [token, wrong]
    });
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    assert!(server.log().contains("TRACE"), "the server says all that it can");
    for (log, whose) in [(server.log(), "server"), (said, "client")] {
        for token in &tokens {
            assert!(!shows(&log, token.as_bytes()), "the {whose} tells a token:\n{log}");
        }
    }
}
