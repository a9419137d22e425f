//! Which of the waiting jobs a thread takes next: clients take turns, and no client and no fault domain gets all of them.

use std::collections::{HashMap, VecDeque};

/// What may hang for good as one, such as a mount, and jobs with it. There are few, so that none is looked for long; several may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FaultDomain(u8);

const DOMAINS: u64 = 64;

impl FaultDomain {
    /// Where files are closed that nobody waits for. It has threads of its own: else what hangs elsewhere would keep descriptors for good.
    pub(super) const DISPOSAL: Self = Self(u8::MAX);

    /// The domain of what is named so.
    pub(super) fn of(name: impl std::hash::Hash) -> Self {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        // Less than DOMAINS.
        Self(u8::try_from(hash % DOMAINS).unwrap_or(0))
    }
}

/// Whose a job is, and where it may hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) client: u64,
    pub(super) domain: Option<FaultDomain>,
}

/// How many threads may be where at a time, of all that there are; one at least.
#[derive(Clone, Copy, Debug)]
struct Limits {
    client: usize,
    domain: usize,
    domains: usize,
}

/// Jobs that wait, and what is known of those that run.
pub(super) struct Fair<J> {
    waiting: HashMap<u64, Client<J>>,
    /// Clients with jobs that wait, the next first.
    order: VecDeque<u64>,
    running: HashMap<u64, usize>,
    in_domain: HashMap<FaultDomain, usize>,
    in_domains: usize,
    limits: Limits,
}

/// The jobs of a client by domain, the next first. Invariant: no queue is empty.
type Client<J> = VecDeque<(Option<FaultDomain>, VecDeque<J>)>;

impl<J> Fair<J> {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Self {
        let limits = Limits {
            client: (threads - threads / 4).max(1),
            domain: (threads / 4).max(1),
            domains: (threads / 2).max(1),
        };
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            running: HashMap::new(),
            in_domain: HashMap::new(),
            in_domains: 0,
            limits,
        }
    }

    /// Adds a job, behind the others of its client.
    pub(super) fn push(&mut self, ticket: Ticket, job: J) {
        let client = self.waiting.entry(ticket.client).or_insert_with(|| {
            self.order.push_back(ticket.client);
            Client::new()
        });
        match client.iter_mut().find(|(domain, _)| *domain == ticket.domain) {
            Some((_, queue)) => queue.push_back(job),
            None => client.push_back((ticket.domain, VecDeque::from([job]))),
        }
    }

    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Jobs run, and all of them where they may hang.
    pub(super) fn runs_only_in_domains(&self) -> bool {
        let in_domains: usize = self.in_domain.values().sum();
        in_domains > 0 && self.running.values().sum::<usize>() == in_domains
    }

    /// The job that runs next, if one may.
    pub(super) fn take(&mut self) -> Option<(Ticket, J)> {
        for _ in 0..self.order.len() {
            let client = self.order.pop_front()?;
            let job = self.take_of(client);
            if self.waiting.contains_key(&client) {
                self.order.push_back(client);
            }
            if job.is_some() {
                return job;
            }
        }
        None
    }

    fn take_of(&mut self, client: u64) -> Option<(Ticket, J)> {
        if self.running.get(&client).is_some_and(|running| *running >= self.limits.client) {
            return None;
        }
        let mut queues = self.waiting.remove(&client)?;
        let next = queues.iter().position(|(domain, _)| domain.is_none_or(|domain| self.may_enter(domain)));
        let found = next.and_then(|next| {
            let (domain, mut jobs) = queues.remove(next)?;
            let job = jobs.pop_front()?;
            if !jobs.is_empty() {
                queues.push_back((domain, jobs));
            }
            Some((Ticket { client, domain }, job))
        });
        if !queues.is_empty() {
            self.waiting.insert(client, queues);
        }
        if let Some((ticket, _)) = &found {
            *self.running.entry(client).or_default() += 1;
            if let Some(domain) = ticket.domain {
                *self.in_domain.entry(domain).or_default() += 1;
                self.in_domains += usize::from(domain != FaultDomain::DISPOSAL);
            }
        }
        found
    }

    fn may_enter(&self, domain: FaultDomain) -> bool {
        let here = self.in_domain.get(&domain).copied().unwrap_or(0);
        here < self.limits.domain
            && (domain == FaultDomain::DISPOSAL || self.in_domains < self.limits.domains)
    }

    /// A job that was taken does not run any more.
    pub(super) fn done(&mut self, ticket: Ticket) {
        lower(&mut self.running, ticket.client);
        if let Some(domain) = ticket.domain {
            lower(&mut self.in_domain, domain);
            self.in_domains = self.in_domains.saturating_sub(usize::from(domain != FaultDomain::DISPOSAL));
        }
    }
}

fn lower<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(client: u64, domain: Option<u8>) -> Ticket {
        Ticket { client, domain: domain.map(FaultDomain) }
    }

    fn taken(fair: &mut Fair<usize>) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| fair.take()).map(|(ticket, job)| (ticket.client, job)).collect()
    }

    // [STOR-33] [STOR-95]
    #[test]
    fn clients_take_turns_and_none_has_all_threads() {
        let mut fair = Fair::new(8);
        (0..64).for_each(|job| fair.push(ticket(1, None), job));
        fair.push(ticket(2, None), 100);
        fair.push(ticket(2, None), 101);
        assert_eq!(taken(&mut fair)[..4], [(1, 0), (2, 100), (1, 1), (2, 101)]);
        assert_eq!(fair.running[&1], 6, "three quarters of the threads");
        assert!(fair.take().is_none() && !fair.is_empty());
        fair.push(ticket(3, None), 200);
        assert_eq!(taken(&mut fair), [(3, 200)], "a third one finds a thread at once");
        fair.done(ticket(1, None));
        assert_eq!(taken(&mut fair), [(1, 6)]);
    }

    // [STOR-34] [STOR-96]
    #[test]
    fn place_where_threads_hang_leaves_the_others() {
        let mut fair = Fair::new(8);
        for job in 0..50 {
            fair.push(ticket(job, Some(1)), 1);
            fair.push(ticket(job, Some(2)), 2);
            fair.push(ticket(job, Some(3)), 3);
        }
        let hanging = taken(&mut fair);
        assert_eq!(hanging.len(), 4, "half of the threads: {hanging:?}");
        for domain in 1..=3 {
            assert!(hanging.iter().filter(|(_, job)| *job == domain).count() <= 2, "{hanging:?}");
        }
        fair.push(ticket(7, None), 9);
        assert_eq!(taken(&mut fair), [(7, 9)]);
        fair.push(Ticket { client: u64::MAX, domain: Some(FaultDomain::DISPOSAL) }, 10);
        assert_eq!(taken(&mut fair), [(u64::MAX, 10)], "files are closed all the same");
    }

    #[test]
    fn everything_pushed_is_taken_in_the_end() {
        let mut fair = Fair::new(4);
        for job in 0..1000_usize {
            fair.push(ticket(job as u64 % 7, [None, Some(1), Some(2)][job % 3]), job);
        }
        let mut seen = Vec::new();
        while let Some((ticket, job)) = fair.take() {
            seen.push(job);
            fair.done(ticket);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000) && fair.is_empty());
        assert!(fair.waiting.is_empty() && fair.running.is_empty() && fair.in_domain.is_empty());
        assert_eq!(fair.in_domains, 0);
    }
}
