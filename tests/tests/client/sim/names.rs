//! Names as they travel, and what is checked before anything is sent.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use dafs_client::{Error, FileKind, OpenOptions, Status};
use dafs_tests::sim::ScriptedWorld;

#[test]
fn names_that_are_no_text_travel_byte_for_byte() {
    let world = ScriptedWorld::new(1);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let name = OsStr::from_bytes(b"\xff\xfe name");
    export.create(name).unwrap();
    assert!(world.exists(name));
    export.rename(name, &export, "plain", false).unwrap();
    export.remove_file("/plain").unwrap();
    assert!(export.metadata("plain").unwrap_err().is_not_found());
}

#[test]
fn paths_and_options_that_cannot_be_are_refused_before_anything_is_sent() {
    let world = ScriptedWorld::new(3);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let before = world.log().len();
    let long = "x".repeat(4097);
    for path in ["a\0b", &long] {
        assert!(matches!(export.metadata(path), Err(Error::Invalid(_))));
    }
    for options in [
        OpenOptions::new(),
        OpenOptions::new().read(true).truncate(true).clone(),
        OpenOptions::new().append(true).truncate(true).clone(),
        OpenOptions::new().write(true).mode(0o10000).clone(),
    ] {
        assert!(matches!(export.open_with("f", &options), Err(Error::Invalid(_))), "{options:?}");
    }
    assert!(matches!(session.mount("a\0"), Err(Error::Invalid(_))));
    assert!(matches!(
        export.set_xattr("f", "user.x", &[0; 70_000], Default::default()),
        Err(Error::Invalid(_))
    ));
    assert_eq!(world.log().len(), before);
}

#[test]
fn errors_of_the_server_name_operation_and_path() {
    let world = ScriptedWorld::new(4);
    let session = world.session();
    assert_eq!(session.mount("other").unwrap_err().status(), Some(Status::NO_EXPORT));
    let export = session.mount("data").unwrap();
    let error = export.open("missing/file").unwrap_err();
    assert!(error.to_string().starts_with("cannot open missing/file: no such file"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
    export.create_dir("a", 0o755).unwrap();
    let a = export.open_dir("a").unwrap();
    assert!(a.open("b").unwrap_err().to_string().contains("a/b"));
    assert_eq!(export.metadata("a").unwrap().kind, FileKind::Directory);
    export.create_dir_all("a/b/c", 0o755).unwrap();
    export.create_dir_all("a/b/c", 0o755).unwrap();
    assert!(a.metadata("b/c").is_ok());
    assert_eq!(session.exports().unwrap(), ["data"]);
}
