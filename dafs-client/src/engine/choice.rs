//! The arguments of the one decision, collected from a session.

use dafs_proto::wire::Stability;

use crate::config::Config;
use crate::engine::core::Core;
use crate::memory::registration::RegistrationPolicy;
use crate::memory::{BounceBuffers, tell_once};
use crate::method::io_path::{Circumstances, Direction, Form, IoPath, MethodOverride, Registration, decide};
use crate::op::transfer::TransferKind;

/// A transfer, as far as it decides how its data travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) kind: TransferKind,
    pub(crate) size: u64,
    pub(crate) registration: Registration,
    /// Of the file.
    pub(crate) policy: RegistrationPolicy,
    pub(crate) blocking: bool,
}

impl Question {
    /// About a blocking transfer that need not be durable, of a file with the library's policy.
    pub(crate) fn of(direction: Direction, size: u64, registration: Registration) -> Self {
        let kind = match direction {
            Direction::Read => TransferKind::Read,
            Direction::Write => TransferKind::Write(Stability::Unstable),
        };
        Self { kind, size, registration, policy: RegistrationPolicy::Library, blocking: true }
    }
}

impl Core {
    /// What the decision about a transfer is made from.
    #[inline]
    pub(crate) fn circumstances(&self, config: &Config, question: &Question) -> Circumstances {
        let Question { kind, size, registration, policy, blocking } = *question;
        let direction = kind.direction();
        // Each part would be made durable by itself, and an append is not cut.
        let is_cut = kind == TransferKind::Write(Stability::Unstable);
        let eager_buffer_size = self.eager_buffer_size();
        let fits_eager_buffers = !matches!(kind, TransferKind::Append(_)) || size <= eager_buffer_size as u64;
        let mut circumstances = Circumstances {
            direction,
            size,
            registration,
            thresholds: self.terms.welcome.thresholds,
            method: config.method,
            inline_max: self.terms.inline_max(direction),
            registers_ordinary_memory: self.terms.registers_ordinary_memory,
            can_bounce: self.buffers.bounce.is_some()
                || config.bounce_size > 0
                || config.method == MethodOverride::Bounced,
            has_eager_buffers: eager_buffer_size > 0 && fits_eager_buffers,
            cuts_inline: self.terms.cuts_inline_writes && is_cut,
            // Who does not wait has better to do than to copy.
            bounce_overlaps: self.terms.bounce_overlaps && is_cut && blocking,
            refined: None,
            form: match kind {
                TransferKind::Readdir { .. } => Form::Directory,
                _ => Form::Contiguous,
            },
        };
        circumstances.under(policy);
        circumstances
    }

    /// The smallest read and the smallest write that may use registered memory, bytes; and those that may use ordinary memory that is kept
    /// registered. Where registering takes hold of pages, that is what makes ordinary memory slower. Elsewhere it stays slower to reach
    /// when its registration is kept, and its own threshold counts.
    pub(crate) fn useful_sizes_min(&self, config: &Config) -> [[u64; 2]; 2] {
        let kept = as_kept(self.buffers.domain.pins_pages());
        [Registration::Registered, kept].map(|registration| self.sizes_min(config, registration))
    }

    fn sizes_min(&self, config: &Config, registration: Registration) -> [u64; 2] {
        let smallest = |direction| {
            let is_direct = |size| {
                let question = Question::of(direction, size, registration);
                decide(&self.circumstances(config, &question)).path != IoPath::Inline
            };
            // Nothing is decided by larger sizes: what does not fit a message is direct, and so is what is larger than what is direct.
            let max = u64::from(self.terms.read_inline_max.max(self.terms.write_inline_max)) + 1;
            if !is_direct(max) {
                return u64::MAX;
            }
            let (mut inline, mut direct) = (0, max);
            while inline + 1 < direct {
                let size = inline.midpoint(direct);
                *(if is_direct(size) { &mut direct } else { &mut inline }) = size;
            }
            direct
        };
        [Direction::Read, Direction::Write].map(smallest)
    }

    /// One request and one buffer to bounce through carry so much.
    pub(crate) fn can_stage_whole(&mut self, config: &Config, len: usize) -> bool {
        self.ensure_bounce(config)
            && self.buffers.bounce.as_ref().is_some_and(|bounce| len <= bounce.chunk_size())
            && len <= self.terms.welcome.transfer_size_max as usize
    }

    /// Makes the buffers to bounce through, where they are not made yet; whether there are any.
    pub(crate) fn ensure_bounce(&mut self, config: &Config) -> bool {
        if self.buffers.bounce.is_none() && config.bounce_size > 0 {
            match BounceBuffers::allocate(&self.buffers.domain, config.bounce_size) {
                Ok(bounce) => self.buffers.bounce = Some(bounce),
                Err(error) => tell_once(&error),
            }
        }
        self.buffers.bounce.is_some()
    }
}

/// What ordinary memory counts as whose registration is kept.
pub(crate) fn as_kept(pins_pages: bool) -> Registration {
    match pins_pages {
        true => Registration::Registered,
        false => Registration::Ordinary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-95]
    #[test]
    fn kept_memory_counts_as_registered_where_registering_holds_its_pages() {
        assert_eq!(as_kept(true), Registration::Registered);
        assert_eq!(as_kept(false), Registration::Ordinary);
    }
}
