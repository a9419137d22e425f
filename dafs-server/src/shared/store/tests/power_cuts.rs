//! Power cuts: what a disk may be left with at any moment, and what the store makes of it.

use std::io;

use dafs_proto::wire::Crossovers;
use redb::StorageBackend;

use super::*;

/// Cuts of an ordinary run. `DAFS_POWER_CUTS` asks for more, and `DAFS_POWER_CUT_SEED` for others.
const CUTS: u64 = 300;

/// Writes of one life of a server at most, before the power is cut.
const STEPS_MAX: u64 = 60;
const LIVES: u64 = 12;

const SECTOR: usize = 512;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Len(usize),
}

/// A disk that knows what was not synced.
#[derive(Debug, Default)]
struct Disk {
    now: Vec<u8>,
    synced: Vec<u8>,
    since: Vec<Step>,
    steps_left: Option<u64>,
    is_off: bool,
}

#[derive(Clone, Debug)]
struct Power(Arc<Mutex<Disk>>);

impl Power {
    fn on(image: Vec<u8>, steps_left: Option<u64>) -> Self {
        let disk = Disk { now: image.clone(), synced: image, steps_left, ..Disk::default() };
        Self(Arc::new(Mutex::new(disk)))
    }

    fn is_off(&self) -> bool {
        lock(&self.0).is_off
    }

    fn step(disk: &mut Disk) -> io::Result<()> {
        match &mut disk.steps_left {
            Some(0) => disk.is_off = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if disk.is_off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// What is on the disk then. Of what was not synced any part may be there, in any order, a sector being the least. Sizes change in
    /// order; what lies behind the size that holds is not there.
    fn image(&self, random: &mut Random) -> Vec<u8> {
        let disk = lock(&self.0);
        let way = random.below(5);
        if way == 0 {
            return disk.now.clone();
        }
        let mut image = disk.synced.clone();
        if way == 1 {
            return image;
        }
        let is_in_order = way == 2;
        let kept = usize::try_from(random.below(disk.since.len() as u64 + 1)).unwrap();
        let first = &disk.since[..kept];
        let mut sizes =
            first.iter().rev().filter_map(|step| if let Step::Len(len) = step { Some(*len) } else { None });
        let size = sizes.next().unwrap_or(image.len());
        image.resize(size.max(image.len()), 0);
        for step in if is_in_order { first } else { &disk.since } {
            let Step::Write(at, data) = step else { continue };
            let unit = if way == 3 { data.len() } else { SECTOR };
            for (place, part) in data.chunks(unit.max(1)).enumerate() {
                let at = at + place * unit;
                let is_there = is_in_order || !random.is_one_in(2);
                if is_there && at < image.len() {
                    let part = &part[..part.len().min(image.len() - at)];
                    image[at..at + part.len()].copy_from_slice(part);
                }
            }
        }
        image.truncate(size);
        image
    }
}

impl Medium for Power {
    type Backend = Self;

    fn backend(&self) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl StorageBackend for Power {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (disk, offset) = (lock(&self.0), usize::try_from(offset).unwrap());
        let found = disk.now.get(offset..offset + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut disk, len) = (lock(&self.0), usize::try_from(len).unwrap());
        Self::step(&mut disk)?;
        disk.now.resize(len, 0);
        disk.since.push(Step::Len(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = lock(&self.0);
        Self::step(&mut disk)?;
        disk.synced = disk.now.clone();
        disk.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut disk, offset) = (lock(&self.0), usize::try_from(offset).unwrap());
        Self::step(&mut disk)?;
        disk.now[offset..offset + data.len()].copy_from_slice(data);
        disk.since.push(Step::Write(offset, data.to_vec()));
        Ok(())
    }
}

/// What should be kept, byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    sessions: BTreeMap<u64, Proof>,
    /// Who holds it, by file and offset.
    locks: BTreeMap<(FileName, u64), u64>,
    fences: BTreeMap<String, FenceList>,
    published: BTreeMap<PublishedName, PublishedEntry>,
}

impl Model {
    fn of(kept: Kept) -> Self {
        let sessions = kept.sessions.into_iter().map(|(session, proof)| (session.0, proof)).collect();
        let mut locks = BTreeMap::new();
        for (file, records) in kept.locks {
            for record in records {
                locks.extend((record.start..record.end).map(|at| ((file, at), record.owner)));
            }
        }
        Self { sessions, locks, fences: kept.fences, published: kept.published.into_iter().collect() }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Session(session, Some(proof)) => drop(self.sessions.insert(session.0, *proof)),
            Change::Session(session, None) => drop(self.sessions.remove(&session.0)),
            Change::Fence(export, list) if *list == FenceList::default() => {
                self.fences.remove(export);
            }
            Change::Fence(export, list) => drop(self.fences.insert(export.clone(), list.clone())),
            Change::Published(name, Some(entry)) => drop(self.published.insert(name.clone(), *entry)),
            Change::Published(name, None) => drop(self.published.remove(name)),
            Change::Locks(LocksChange { file, range, records }) => {
                self.locks.retain(|(of, at), _| of != file || !range.contains(at));
                for record in records {
                    self.locks.extend((record.start..record.end).map(|at| ((*file, at), record.owner)));
                }
            }
        }
    }
}

fn random_change(random: &mut Random) -> Change {
    match random.below(9) {
        0 | 1 => {
            let proof = (!random.is_one_in(3)).then(|| [u8::try_from(random.below(256)).unwrap(); 32]);
            Change::Session(SessionId(random.below(40)), proof)
        }
        8 => {
            let crossovers = Crossovers {
                read_registered: u32::try_from(random.below(1 << 17)).unwrap(),
                read_unregistered: 1,
                write_registered: 2,
                write_unregistered: u32::MAX,
            };
            let entry = PublishedEntry { order: random.below(u64::MAX), crossovers };
            let name =
                ("dafs+tcp".to_owned(), ["key a", "local"][usize::from(random.is_one_in(2))].to_owned());
            Change::Published(name, (!random.is_one_in(3)).then_some(entry))
        }
        2 => {
            let clients = (0..random.below(4)).map(|_| [u8::try_from(random.below(256)).unwrap(); 16]);
            let list = FenceList { clients: clients.collect(), ..FenceList::default() };
            Change::Fence(["data", "other"][usize::try_from(random.below(2)).unwrap()].to_owned(), list)
        }
        _ => {
            let file = (random.below(20), 7);
            let start = random.below(200);
            let len_max = if random.is_one_in(5) { 200 } else { 5 };
            let range = start..start + 1 + random.below(len_max);
            let owner = random.below(1000);
            let record = |start| Record {
                start,
                end: start + 1,
                session: 1,
                owner,
                client: [3; 16],
                is_mandatory: false,
            };
            let records = match random.below(3) {
                0 => Vec::new(),
                _ => range.clone().step_by(2).map(record).collect(),
            };
            Change::Locks(LocksChange { file, range, records })
        }
    }
}

/// A server writes until the power is cut. Returns what was acknowledged, and what was under way.
fn live(power: &Power, database: Database, model: &Model, random: &mut Random) -> (Model, Model) {
    let unsettled = Arc::new(Mutex::new(Unsettled::default()));
    let mut keeper = Keeper::new(power.clone(), Some(database), Path::new("state"), unsettled);
    let mut acknowledged = model.clone();
    loop {
        let count = if random.is_one_in(10) { 1 + random.below(100) } else { 1 + random.below(3) };
        let group: Vec<Change> = (0..count).map(|_| random_change(random)).collect();
        let mut under_way = acknowledged.clone();
        group.iter().for_each(|change| under_way.apply(change));
        let (tell, told) = channel();
        keeper.write_together(group.into_iter().map(|change| {
            let tell = tell.clone();
            let tell: Tell = Box::new(move |status| tell.send(status).unwrap());
            Sent { change, number: None, has_happened: false, tell: Some(tell) }
        }));
        match told.try_iter().all(|status| status == Status::OK) {
            true => acknowledged = under_way,
            false => return (acknowledged, under_way),
        }
    }
}

// [STATE-1]
#[test]
fn power_cut_at_any_write_keeps_all_that_was_acknowledged() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let wanted = number("DAFS_POWER_CUTS").unwrap_or(CUTS);
    let mut random = Random(number("DAFS_POWER_CUT_SEED").unwrap_or(36));
    let (mut cuts, mut of_recoveries, mut whole, mut grown) = (0, 0, 0, 0);
    while cuts < wanted {
        // A file gets its name once it is durable.
        let new = Power::on(Vec::new(), None);
        drop(open_database(new.clone()).unwrap());
        let mut image = lock(&new.0).now.clone();
        let mut models = [Model::default(), Model::default()];
        for _ in 0..LIVES {
            // The power may be cut while a server opens it, again and again.
            let (power, database, kept) = loop {
                let steps_left = (!random.is_one_in(3)).then(|| random.below(40));
                let power = Power::on(image.clone(), steps_left);
                match open_database(power.clone()) {
                    Ok((database, kept)) => break (power, database, kept),
                    Err(fault) => assert!(power.is_off(), "cut {cuts}: {fault}"),
                }
                (cuts, of_recoveries) = (cuts + 1, of_recoveries + 1);
                image = power.image(&mut random);
            };
            let found = Model::of(kept);
            let place = models.iter().rposition(|model| *model == found);
            let place = place.unwrap_or_else(|| panic!("cut {cuts}: {found:?} is none of {models:?}"));
            whole += u64::from(place == 1 && models[0] != models[1]);
            let before = lock(&power.0).now.len();
            lock(&power.0).steps_left = Some(random.below(STEPS_MAX));
            let (acknowledged, under_way) = live(&power, database, &found, &mut random);
            grown += u64::from(lock(&power.0).now.len() > before);
            models = [acknowledged, under_way];
            cuts += 1;
            image = power.image(&mut random);
        }
    }
    println!(
        "{cuts} cuts, {of_recoveries} of them while it was opened; {whole} groups were there unacknowledged; {grown} grew"
    );
    assert!(of_recoveries > wanted / 20 && whole > 0 && grown > 0, "{of_recoveries}, {whole}, {grown}");
}
