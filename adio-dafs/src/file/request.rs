//! Transfers that nobody waits for. They continue while the program computes: over shm and RDMA the server does that alone.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_client::Direction;

use super::access::{Moved, call_limits};
use super::account::{Chosen, Why};
use super::counters::Count;
use super::raw::{self, Started};
use super::view::{Viewed, is_forgotten};
use super::worker::{Handed, Worker};
use super::{File, Transfer};
use crate::error::Result;
use crate::hint::{MemoryMode, Method, Settings};
use crate::layout::{Group, Segment, Segments, Source, Stretch, next_group};

/// Calls of the client library that a request has under way at most; the next begins when one has ended.
const UNDER_WAY_MAX: usize = 64;

/// A transfer under way. Dropping it gives the transfer up, and blocks while the server may be at its memory.
pub struct Request {
    file: Arc<File>,
    direction: Direction,
    /// What is not begun yet.
    rest: Option<Rest>,
    /// All of it, where it goes through a view.
    shown: Option<Source<'static>>,
    /// When those under way have ended, the rest goes by lists: a write through the view came short, or the server does not know that.
    goes_by_lists: bool,
    /// It does not.
    is_forgotten: bool,
    settings: Arc<Settings>,
    /// In the order of the transfer.
    under_way: VecDeque<(Started, Asked)>,
    /// Instead of all that: in atomic mode.
    handed: Option<Handed>,
    moved: u64,
    result: Result<()>,
    /// Nothing more counts: an error, or the end of the file.
    is_over: bool,
}

/// What a call was asked for.
enum Asked {
    Segment(Segment, MemoryMode),
    /// To write.
    List(Group, MemoryMode),
    /// So many bytes of anything else.
    Other(u64),
}

impl Asked {
    fn len(&self) -> u64 {
        match self {
            Self::Segment(segment, _) => segment.len,
            Self::List(group, _) => group.len,
            Self::Other(len) => *len,
        }
    }
}

/// What of a transfer is not begun.
enum Rest {
    Segments(Segments<'static>),
    Viewed(Viewed<'static>),
}

impl File {
    /// Starts to move data. Does not block: a file type that was not described to the server goes by lists. In atomic mode it blocks where
    /// there can be no thread.
    pub fn submit(self: &Arc<Self>, transfer: Transfer<'_>) -> Result<Request> {
        self.counters.add(Count::Nonblocking, 1);
        let direction = transfer.direction();
        let mut request = Request {
            file: Arc::clone(self),
            direction,
            rest: None,
            shown: None,
            goes_by_lists: false,
            is_forgotten: false,
            settings: self.settings(),
            under_way: VecDeque::new(),
            handed: None,
            moved: 0,
            result: Ok(()),
            is_over: false,
        };
        self.begin(&transfer)?;
        if self.is_atomic() {
            request.handed = Some(Worker::hand(self, transfer.into_owned()));
            return Ok(request);
        }
        match transfer.single()? {
            Some(segment) if segment.len == 0 => {}
            Some(segment) => {
                let mode = self.choose_mode_unmeasured(&request.settings, direction, segment.len, true);
                self.counters.on_call(Method::Multiple, mode);
                self.note(
                    &request.settings,
                    Chosen { direction, method: None, mode, why: Why::OnePiece },
                    1,
                    segment.len,
                );
                let started = raw::start(self.by(mode), direction, &segment);
                request.under_way.push_back((started, Asked::Segment(segment, mode)));
            }
            None => {
                let source = transfer.into_owned().into_source();
                let by_view = self.method(&request.settings, direction).0 == Method::View;
                let viewed = if by_view { self.viewed_at_once(&source).ok() } else { None };
                request.rest = Some(match viewed {
                    Some(viewed) => {
                        request.shown = Some(source);
                        Rest::Viewed(viewed)
                    }
                    None => Rest::Segments(Segments::new(source)?),
                });
                request.begin_more();
            }
        }
        Ok(request)
    }
}

impl Request {
    /// Whether it has ended; moves it along. Does not block.
    pub fn test(&mut self) -> bool {
        if let Some(handed) = &mut self.handed {
            return handed.test();
        }
        loop {
            self.begin_more();
            let Some((started, _)) = self.under_way.front_mut() else { return true };
            if !started.test() {
                return false;
            }
            self.collect_first();
        }
    }

    /// Waits for its end. Blocks.
    pub fn wait(&mut self) {
        if let Some(handed) = &mut self.handed {
            return handed.wait();
        }
        loop {
            self.begin_more();
            if self.under_way.is_empty() {
                return;
            }
            self.collect_first();
        }
    }

    /// What it moved, when it has ended.
    pub fn outcome(&self) -> Moved {
        match &self.handed {
            Some(handed) => handed.outcome(),
            None => (self.moved, self.result.clone()),
        }
    }

    /// Begins what may be under way together.
    fn begin_more(&mut self) {
        while !self.is_over && self.under_way.len() < UNDER_WAY_MAX {
            let (file, direction) = (&self.file, self.direction);
            let segments = match &mut self.rest {
                None => return,
                Some(Rest::Segments(segments)) => segments,
                Some(Rest::Viewed(viewed)) => {
                    let next = viewed.next_group();
                    match next {
                        Some(Ok(group)) => {
                            let in_one_piece = group.memory.len() == 1;
                            let mode = file.choose_mode_unmeasured(
                                &self.settings,
                                direction,
                                group.len,
                                in_one_piece,
                            );
                            file.note_view(&self.settings, direction, mode, &group);
                            let started = raw::start_view(file.plain(mode), direction, viewed, &group);
                            self.under_way.push_back((started, Asked::Other(group.len)));
                        }
                        Some(Err(error)) => {
                            self.rest = None;
                            self.fail(error);
                        }
                        None => self.rest = None,
                    }
                    continue;
                }
            };
            let (method, why) = match file.method(&self.settings, direction) {
                // Its windows would have to be copied while nobody is there.
                (Method::Sieve, _) => (Method::List, Why::SieveWaits),
                (Method::View, _) => (Method::List, Why::ViewRefused),
                other => other,
            };
            let next = match method {
                Method::Multiple => segments.next_segment().transpose().map(|next| {
                    next.map(|segment| {
                        let mode = file.choose_mode_unmeasured(&self.settings, direction, segment.len, true);
                        file.counters.on_call(method, mode);
                        file.counters.add(Count::Segments, 1);
                        file.note(
                            &self.settings,
                            Chosen { direction, method: Some(method), mode, why },
                            1,
                            segment.len,
                        );
                        (raw::start(file.by(mode), direction, &segment), Asked::Segment(segment, mode))
                    })
                }),
                _ => next_group(segments, call_limits(&self.settings)).transpose().map(|next| {
                    next.map(|group| {
                        let mode = file.choose_mode_unmeasured(&self.settings, direction, group.len, false);
                        file.counters.on_call(method, mode);
                        file.counters.add(Count::Segments, group.segments as u64);
                        file.note(
                            &self.settings,
                            Chosen { direction, method: Some(method), mode, why },
                            group.segments,
                            group.len,
                        );
                        let started = raw::start_list(file.by(mode), direction, &group);
                        match direction {
                            Direction::Read => (started, Asked::Other(group.len)),
                            Direction::Write => (started, Asked::List(group, mode)),
                        }
                    })
                }),
            };
            match next {
                Ok(Some(started)) => self.under_way.push_back(started),
                Ok(None) => self.rest = None,
                Err(error) => {
                    self.rest = None;
                    self.fail(error.into());
                }
            }
        }
    }

    /// Takes the first of those under way, which blocks until it has ended.
    fn collect_first(&mut self) {
        let Some((started, asked)) = self.under_way.pop_front() else { return };
        let outcome = started.wait();
        self.file.on_moved(self.direction);
        if self.is_over {
            return;
        }
        match outcome {
            // It begins again behind the first that came short.
            _ if self.goes_by_lists => {}
            Err(error) if self.shown.is_some() && is_forgotten(&error) => {
                (self.goes_by_lists, self.is_forgotten, self.rest) = (true, true, None);
            }
            Ok(count) => {
                self.moved += count;
                self.file.counters.on_moved(self.direction, count);
                match self.direction {
                    _ if count == asked.len() => {}
                    // The file ends.
                    Direction::Read => self.is_over = true,
                    Direction::Write => self.go_on(asked, count),
                }
            }
            Err(error) => self.fail(self.file.failed(self.direction, error)),
        }
        if self.goes_by_lists && self.under_way.is_empty() {
            self.go_on_by_lists();
        }
    }

    /// A write came short: what is left of it is tried again, for its reason.
    fn go_on(&mut self, asked: Asked, count: u64) {
        let (file, direction) = (&self.file, self.direction);
        let again = match asked {
            _ if self.shown.is_some() => {
                (self.goes_by_lists, self.rest) = (true, None);
                return;
            }
            Asked::Segment(mut segment, mode) if count > 0 => {
                segment.advance(count);
                (raw::start(file.by(mode), direction, &segment), Asked::Segment(segment, mode))
            }
            Asked::List(mut group, mode) if count > 0 => {
                group.advance(count);
                (raw::start_list(file.by(mode), direction, &group), Asked::List(group, mode))
            }
            _ => return self.fail(self.file.short(direction)),
        };
        self.under_way.push_front(again);
    }

    fn go_on_by_lists(&mut self) {
        self.goes_by_lists = false;
        let Some(source) = self.shown.take() else { return };
        if self.is_forgotten {
            self.file.forget(&source);
        }
        match Segments::resumed(source, self.moved) {
            Ok(segments) => self.rest = Some(Rest::Segments(segments)),
            Err(error) => self.fail(error.into()),
        }
    }

    fn fail(&mut self, error: crate::error::Error) {
        if self.result.is_ok() {
            self.file.counters.add(Count::Failures, 1);
            self.result = Err(error);
        }
        self.is_over = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        for (started, _) in self.under_way.drain(..) {
            started.cancel();
            self.file.on_moved(self.direction);
        }
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({:?}, {} under way)", self.file, self.under_way.len())
    }
}
