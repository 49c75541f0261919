//! `--user` and `--group`.

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};

/// Whom the process is to become.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity {
    user: Option<(Uid, Option<CString>)>,
    group: Option<Gid>,
}

/// The process cannot become that user or group.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No such user.
    #[error("can't find user {0:?}: expected a name of the user database or a number (option --user)")]
    UnknownUser(String),
    /// No such group.
    #[error("can't find group {0:?}: expected a name of the group database or a number (option --group)")]
    UnknownGroup(String),
    /// A number without entry has no group of its own, and root's must not stay.
    #[error("user {0} is in no user database and has no group: add --group")]
    NoGroup(Uid),
    /// The system refused.
    #[error("{call} failed: {source}; changing user or group needs root (options --user, --group)")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
}

impl Identity {
    /// Looks the names up; numbers are taken as ids. Changes nothing yet.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn resolve(user: Option<&str>, group: Option<&str>) -> Result<Self, IdentityError> {
        let user = user.map(resolve_user).transpose()?;
        let written_group = group.map(resolve_group).transpose()?;
        let (user, own_group) = match user {
            Some((uid, name, gid)) => (Some((uid, name)), gid),
            None => (None, None),
        };
        let group = written_group.or(own_group);
        match (&user, group) {
            (Some((uid, _)), None) => Err(IdentityError::NoGroup(*uid)),
            _ => Ok(Self { user, group }),
        }
    }

    /// The user id, when one is to be taken.
    pub fn uid(&self) -> Option<Uid> {
        self.user.as_ref().map(|(uid, _)| *uid)
    }

    /// The group id, when one is to be taken: the one of `--group`, else the user's own.
    pub fn gid(&self) -> Option<Gid> {
        self.group
    }

    /// Takes on group, supplementary groups and user, in this order, for the whole process. Only while the process
    /// has one thread.
    ///
    /// # Errors
    /// The system refused; the process must end then, since part of the change may have happened.
    pub fn assume(&self) -> Result<(), IdentityError> {
        let refused = |call| move |source| IdentityError::Refused { call, source };
        if let Some(gid) = self.group {
            match &self.user {
                Some((_, Some(name))) => initgroups(name, gid).map_err(refused("initgroups"))?,
                // A bare number has no supplementary groups; those of root must not stay.
                Some((_, None)) => setgroups(&[gid]).map_err(refused("setgroups"))?,
                None => {}
            }
            setgid(gid).map_err(refused("setgid"))?;
        }
        if let Some((uid, _)) = self.user {
            setuid(uid).map_err(refused("setuid"))?;
        }
        Ok(())
    }
}

fn resolve_user(text: &str) -> Result<(Uid, Option<CString>, Option<Gid>), IdentityError> {
    let unknown = || IdentityError::UnknownUser(text.to_owned());
    let found = match text.parse::<u32>() {
        Ok(number) => User::from_uid(Uid::from_raw(number)),
        Err(_) => User::from_name(text),
    }
    .map_err(|source| IdentityError::Refused { call: "getpwnam", source })?;
    match found {
        Some(user) => {
            let name = CString::new(user.name).map_err(|_| unknown())?;
            Ok((user.uid, Some(name), Some(user.gid)))
        }
        None => match text.parse::<u32>() {
            Ok(number) => Ok((Uid::from_raw(number), None, None)),
            Err(_) => Err(unknown()),
        },
    }
}

fn resolve_group(text: &str) -> Result<Gid, IdentityError> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(Gid::from_raw(number));
    }
    Group::from_name(text)
        .map_err(|source| IdentityError::Refused { call: "getgrnam", source })?
        .map(|group| group.gid)
        .ok_or_else(|| IdentityError::UnknownGroup(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_resolve() {
        assert_eq!(Identity::resolve(None, None).unwrap(), Identity::default());
        let root = Identity::resolve(Some("root"), None).unwrap();
        assert_eq!((root.uid(), root.gid()), (Some(Uid::from_raw(0)), Some(Gid::from_raw(0))));
        let number = Identity::resolve(Some("4000000001"), Some("4000000002")).unwrap();
        assert_eq!(number.uid(), Some(Uid::from_raw(4_000_000_001)));
        assert_eq!(number.gid(), Some(Gid::from_raw(4_000_000_002)));
        let error = Identity::resolve(Some("no-such-user"), None).unwrap_err();
        assert!(error.to_string().starts_with("can't find user \"no-such-user\""), "{error}");
        let error = Identity::resolve(Some("4000000001"), None).unwrap_err();
        assert!(error.to_string().contains("add --group"), "{error}");
        let error = Identity::resolve(None, Some("no-such-group")).unwrap_err();
        assert!(error.to_string().starts_with("can't find group \"no-such-group\""), "{error}");
    }
}
