//! Owners, groups and modes of the directory and its files.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::process::geteuid;
use tenure_core::ErrorKind;

use crate::fault::{Fault, Result};

/// The mode bits that a shared directory needs: new files get its group, whose users may create and replace
/// files.
const SHARED: u32 = 0o2070;

/// The access that the options ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    group: Option<Group>,
    any_owner: bool,
    pub(crate) any_file_system: bool,
}

#[derive(Clone, Debug)]
struct Group {
    name: String,
    id: u32,
}

impl Access {
    pub(crate) fn new(group: Option<&str>, any_owner: bool, any_file_system: bool) -> Result<Self> {
        let group = group.map(find_group).transpose()?;
        Ok(Self { group, any_owner, any_file_system })
    }

    /// Whether the directory is to be shared with a group.
    pub(crate) const fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// Whether a file belongs to the group that the directory is shared with.
    pub(crate) fn includes_group(&self, metadata: &Metadata) -> bool {
        self.group.as_ref().is_some_and(|group| group.id == metadata.gid())
    }

    /// Gives a new directory to the group.
    pub(crate) fn hand_over(&self, dir: &Path) -> Result<()> {
        let Some(group) = &self.group else {
            return Ok(());
        };
        std::os::unix::fs::chown(dir, None, Some(group.id))
            .and_then(|()| std::fs::set_permissions(dir, Permissions::from_mode(0o2770)))
            .map_err(|error| {
                Fault::io(&format!("giving the group {:?} access to", group.name), dir, error)
            })
    }

    /// Refuses a directory that the group's users could not share.
    pub(crate) fn check_directory(&self, metadata: &Metadata, path: &Path) -> Result<()> {
        let Some(group) = &self.group else {
            return Ok(());
        };
        if group.id == metadata.gid() && metadata.mode() & SHARED == SHARED {
            return Ok(());
        }
        let (name, shown, mode) = (&group.name, path.display(), metadata.mode() & 0o7777);
        let why = format!(
            "{shown} is not shared with the group {name:?} (it has group {}, mode {mode:04o}): \
             chgrp -R {name} {shown} && chmod -R g+rwX {shown} && chmod g+s {shown} {shown}/wake",
            metadata.gid()
        );
        Err(Fault::new(ErrorKind::Denied, why))
    }

    /// Refuses a file of another user, unless the options accept it.
    pub(crate) fn check_owner(&self, metadata: &Metadata, path: &Path) -> Result<()> {
        let owner = metadata.uid();
        let trusted = owner == 0 || owner == geteuid().as_raw();
        if trusted || self.any_owner || self.includes_group(metadata) {
            return Ok(());
        }
        let why = format!(
            "{} belongs to another user (uid {owner}), which could change or truncate it at any \
             time: use a directory of this user, or accept that with owner=any, or with \
             group=NAME for a directory that a group shares",
            path.display()
        );
        Err(Fault::new(ErrorKind::Denied, why))
    }
}

/// Gives a new file in `dir` to the users that share the directory, whatever the umask: to the directory's
/// group, if it has the bits for that, and to its owner, if this process is root.
pub(crate) fn share(dir: &Path, new: &File, path: &Path) -> Result<()> {
    let failed = |error| Fault::io("setting the mode of", path, error);
    let above = std::fs::metadata(dir).map_err(failed)?;
    if geteuid().is_root() && above.uid() != 0 {
        fchown(new, Some(above.uid()), None).map_err(failed)?;
    }
    if above.mode() & SHARED == SHARED {
        let is_dir = new.metadata().map_err(failed)?.is_dir();
        let mode = if is_dir { 0o2770 } else { 0o660 };
        new.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
}

/// Reads `/etc/group`, because the name service has no safe interface. A group from elsewhere is given by its
/// number.
fn find_group(name: &str) -> Result<Group> {
    let path = Path::new("/etc/group");
    let id = match name.parse() {
        Ok(id) => Some(id),
        Err(_) => {
            let text = std::fs::read_to_string(path);
            group_in(&text.map_err(|error| Fault::io("reading", path, error))?, name)
        }
    };
    id.map(|id| Group { name: name.into(), id }).ok_or_else(|| {
        let why = format!(
            "there is no group {name:?} in /etc/group: name another one, or give its number \
             (getent group {name})"
        );
        Fault::new(ErrorKind::Invalid, why)
    })
}

/// Lines such as `deploy:x:1001:alice,bob`.
fn group_in(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    let mut fields = lines.find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_or_number() {
        let text = "root:x:0:\ndeploy:x:1001:alice,bob\nodd\n";
        assert_eq!(group_in(text, "deploy"), Some(1001));
        assert_eq!(group_in(text, "depl"), None);
        assert_eq!(group_in(text, "odd"), None);
        assert_eq!(find_group("1001").unwrap().id, 1001);
        assert_eq!(find_group("root").unwrap().id, 0);
        let fault = find_group("no such group").unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Invalid, "{fault:?}");
    }
}
