//! Explanations of how the server moved lists.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dafs_proto::transport::Span;
use dafs_proto::wire::Explanation as WireExplanation;

/// How requests of lists and views were moved, all together: [`crate::File::take_explanation`]. A *part* is contiguous in the file and in
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// Requests that the server explained.
    pub requests: u64,
    /// Requests that it did not: plain reads and writes, of one extent or of all that lies between the first and the last, and reads whose
    /// data fills the reply.
    pub others: u64,
    /// Parts that the server moved.
    pub parts: u64,
    /// Of them, those that it copied out of a file in memory, without a call of its file system.
    pub copied: u64,
    /// Calls of the server's file system for one part, or for neighbours.
    pub calls: u64,
    /// Calls that moved what lies between parts as well.
    pub windows: u64,
    /// Of both, those that had to be waited for: the data was not in memory.
    pub waited: u64,
    /// Bytes of the windows, with what lies between parts.
    pub window_bytes: u64,
    /// What the calls that were not waited for were expected to take.
    pub predicted: Duration,
    /// What they would have been expected to take with each part by itself.
    pub predicted_apart: Duration,
    /// What all calls took.
    pub measured: Duration,
    /// Of the last request: the most bytes between two parts that were worth moving.
    pub gap_max: u32,
    /// Of the last request: what a call was expected to take.
    pub call: Duration,
    /// Of the last request: what a byte of a window was expected to take, picoseconds.
    pub byte_ps: u32,
}

/// The explanations that a file collects.
#[derive(Debug, Default)]
pub(crate) struct Explanations(Mutex<Explanation>);

impl Explanations {
    pub(crate) fn take(&self) -> Explanation {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request that the server does not explain was answered.
    pub(crate) fn add_other(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).others += 1;
    }

    fn add(&self, told: &WireExplanation) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = &mut *sum;
        sum.requests += 1;
        for (sum, told) in [
            (&mut sum.parts, told.parts),
            (&mut sum.copied, told.copied),
            (&mut sum.calls, told.calls),
            (&mut sum.windows, told.windows),
            (&mut sum.waited, told.waited),
        ] {
            *sum = sum.saturating_add(told.into());
        }
        sum.window_bytes = sum.window_bytes.saturating_add(told.window_bytes);
        for (sum, ns) in [
            (&mut sum.predicted, told.predicted_ns),
            (&mut sum.predicted_apart, told.apart_ns),
            (&mut sum.measured, told.measured_ns),
        ] {
            *sum = sum.saturating_add(Duration::from_nanos(ns));
        }
        (sum.gap_max, sum.byte_ps) = (told.gap_max, told.byte_ps);
        sum.call = Duration::from_nanos(told.call_ns.into());
    }

    /// Takes what explains a reply from behind its data, of which there are `data_len` bytes; returns the data. A server explains nothing
    /// where its reply has no room.
    pub(crate) fn split<'a>(&self, payload: Span<'a>, data_len: usize) -> Span<'a> {
        let told = payload
            .slice(data_len, WireExplanation::SIZE)
            .filter(|told| data_len + told.len() == payload.len());
        match told.and_then(|told| WireExplanation::decode(&told.to_vec()).ok()) {
            None => {
                self.add_other();
                payload
            }
            Some(told) => {
                self.add(&told);
                payload.slice(0, data_len).unwrap_or(Span::EMPTY)
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.others > 0 || self.requests == 0 {
            write!(f, "{} not explained, ", counted(self.others, "request"))?;
        }
        if self.requests == 0 {
            return f.write_str("nothing else");
        }
        let (requests, parts) = (counted(self.requests, "request"), counted(self.parts, "part"));
        write!(f, "{requests} of {parts}: {}", counted(self.calls, "call"))?;
        if self.windows > 0 {
            let windows = counted(self.windows, "window");
            write!(f, ", {windows} of {} bytes", self.window_bytes / self.windows)?;
        }
        if self.copied > 0 {
            write!(f, ", {} without a call", counted(self.copied, "part"))?;
        }
        if self.waited > 0 {
            write!(f, ", {} waited for", self.waited)?;
        }
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (measured, predicted) = (us(self.measured), us(self.predicted));
        write!(f, "; {measured:.1} us, predicted {predicted:.1}, apart {:.1}", us(self.predicted_apart))?;
        let byte_ns = f64::from(self.byte_ps) / 1000.0;
        write!(
            f,
            "; a call {:.2} us, a byte {byte_ns:.3} ns, gaps up to {} bytes",
            us(self.call),
            self.gap_max
        )
    }
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn explanation_is_taken_from_behind_the_data_and_summed() {
        let told = WireExplanation {
            parts: 9,
            copied: 1,
            calls: 2,
            windows: 2,
            waited: 1,
            gap_max: 512,
            call_ns: 800,
            byte_ps: 250,
            window_bytes: 3000,
            predicted_ns: 2_000,
            apart_ns: 7_000,
            measured_ns: 2_500,
        };
        let mut payload = vec![7; 5 + WireExplanation::SIZE];
        told.encode(&mut payload[5..]);
        let explanations = Explanations::default();
        for _ in 0..2 {
            assert_eq!(explanations.split(Span::from_mut(&mut payload), 5).to_vec(), [7; 5]);
        }
        // Without one, or cut short.
        for len in [5, 4 + WireExplanation::SIZE] {
            let data = explanations.split(Span::from_mut(&mut payload[..len]), 5);
            assert_eq!(data.len(), len);
        }
        let sum = explanations.take();
        assert_eq!((sum.requests, sum.others, sum.parts, sum.window_bytes), (2, 2, 18, 6000));
        assert_eq!(
            sum.to_string(),
            "2 requests not explained, 2 requests of 18 parts: 4 calls, 4 windows of 1500 bytes, 2 parts without a call, 2 waited for; \
             5.0 us, predicted 4.0, apart 14.0; a call 0.80 us, a byte 0.250 ns, gaps up to 512 bytes"
        );
        assert_eq!(explanations.take(), Explanation::default());
        explanations.add_other();
        assert_eq!(explanations.take().to_string(), "1 request not explained, nothing else");
    }
}
