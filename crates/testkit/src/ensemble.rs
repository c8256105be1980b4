//! Clusters of servers.

use std::io;
use std::ops::DerefMut;

use crate::ChildProcess;

/// One server of a cluster.
pub trait Member: DerefMut<Target = ChildProcess> {
    /// Its port for clients on 127.0.0.1.
    fn port(&self) -> u16;

    /// Starts it again with what it has on disk.
    ///
    /// # Errors
    /// If it cannot be started.
    fn restart(&mut self) -> io::Result<()>;

    /// Waits until it serves.
    ///
    /// # Errors
    /// If it has ended, or does not serve in time.
    fn until_it_serves(&mut self) -> io::Result<()>;

    /// Whether it believes to be the leader.
    fn leads(&self) -> bool;

    /// How many client requests have reached it since it was started, including heartbeats.
    ///
    /// # Errors
    /// If it does not answer.
    fn requests(&self) -> io::Result<u64>;

    /// A description of its state and its clients, for the analysis of a failed test.
    fn account(&self) -> String;
}

/// Implements [`Member`] for a server type that has all these methods.
macro_rules! is_a_member {
    ($type:ty) => {
        impl crate::Member for $type {
            fn port(&self) -> u16 {
                <$type>::port(self)
            }

            fn restart(&mut self) -> std::io::Result<()> {
                <$type>::restart(self)
            }

            fn until_it_serves(&mut self) -> std::io::Result<()> {
                <$type>::until_it_serves(self)
            }

            fn leads(&self) -> bool {
                <$type>::leads(self)
            }

            fn requests(&self) -> std::io::Result<u64> {
                <$type>::requests(self)
            }

            fn account(&self) -> String {
                <$type>::account(self)
            }
        }
    };
}

pub(crate) use is_a_member;

/// All servers of a cluster. Each is killed by its pid when it is dropped.
#[derive(Debug)]
pub struct Ensemble<M> {
    members: Vec<M>,
}

impl<M: Member> Ensemble<M> {
    /// Makes a cluster of these members, and waits until each of them serves.
    ///
    /// # Errors
    /// If one does not in time.
    pub fn of(members: Vec<M>) -> io::Result<Self> {
        let mut ensemble = Self { members };
        ensemble.until_all_serve()?;
        Ok(ensemble)
    }

    /// Makes a cluster of the members that `start` starts. It tries again if another process took one of
    /// their ports first.
    pub(crate) fn start_with(start: impl Fn() -> io::Result<Vec<M>>) -> io::Result<Self> {
        let mut last = io::Error::other("no port was free");
        for _ in 0..3 {
            match start().and_then(Self::of) {
                Ok(ensemble) => return Ok(ensemble),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Waits until every member serves.
    ///
    /// # Errors
    /// If one does not in time.
    pub fn until_all_serve(&mut self) -> io::Result<()> {
        self.members.iter_mut().try_for_each(M::until_it_serves)
    }

    /// Its members.
    pub fn members(&mut self) -> &mut [M] {
        &mut self.members
    }

    /// Its members, as servers of their own.
    pub fn into_members(self) -> Vec<M> {
        self.members
    }

    /// `host:port` of every member, with commas between.
    pub fn addresses(&self) -> String {
        let named: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        named.join(",")
    }

    /// The index of the leader.
    pub fn leader(&self) -> Option<usize> {
        self.members.iter().position(M::leads)
    }
}
