//! Somebody fences a client off while everything fails: from the answer on, nothing of that client reaches a file, at whatever server.

use std::path::Path;
use std::time::Duration;

use dafs_client::{Clock, Config, Error, OpenOptions};
use dafs_proto::wire::FenceList;
use dafs_tests::sim::cluster::ClientsPlace;

use super::work::{Work, connect, insist};

/// How often the client is fenced off.
const ROUNDS: usize = 3;

/// Appends as long as the others work, as far as it may.
pub(super) fn append(work: &Work, place: &ClientsPlace, number: usize) {
    while !work.are_fences_done() {
        let ended = append_once(work, place, number);
        place.note(&format!("the client that is fenced off goes on: {ended:?}"));
        place.sleep(Duration::from_millis(200));
    }
}

fn append_once(work: &Work, place: &ClientsPlace, number: usize) -> dafs_client::Result<()> {
    let config = Config { operation_timeout: Some(Duration::from_secs(20)), ..ClientsPlace::config(number) };
    let session = place.connect(number, &config)?;
    let file = session.mount("data")?.open_with("fenced", OpenOptions::new().write(true).create(true))?;
    while !work.are_fences_done() {
        file.append(b"x")?;
        place.sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Fences that client off and lets it in again.
pub(super) fn administer(work: &Work, place: &ClientsPlace, number: usize, fenced: usize, path: &Path) {
    let session = connect(place, number, &ClientsPlace::administrator(number));
    let export = insist(|| session.mount("data"));
    let fenced = ClientsPlace::config(fenced).client_id.expect("it says who it is");
    let size = || std::fs::metadata(path.join("fenced")).map_or(0, |found| found.len());
    for _ in 0..ROUNDS {
        place.sleep(Duration::from_secs(2));
        let told = export.set_fence_list(&FenceList::of_clients(&[fenced]));
        place.note(&format!("fenced off: {told:?}"));
        let before = size();
        place.sleep(Duration::from_millis(1500));
        match told {
            Ok(()) => {
                assert_eq!(size(), before, "a client that was fenced off has written");
                work.count_fence();
            }
            // The store was away, or a server was not cut off in time.
            Err(Error::Status { .. } | Error::InDoubt { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        let told = export.set_fence_list(&FenceList::default());
        place.note(&format!("let in again: {told:?}"));
    }
    work.end_fences();
}
