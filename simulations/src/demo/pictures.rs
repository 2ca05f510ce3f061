//! The demo's pictures: one folder a vehicle, one for the cloud, as they would lie on the devices.

use crate::partition::{Partition, hold_back, split};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Share of the training pictures that the cloud holds back, to standardise features and to judge versions.
pub(crate) const HELD_BACK: f64 = 0.1;

/// Where the demo's pictures lie after the split.
#[derive(Debug)]
pub(super) struct Split {
    /// Class names in the order of their labels.
    pub classes: Vec<String>,
    /// One folder a vehicle, one sub-folder a class.
    pub vehicles: Vec<PathBuf>,
    /// The cloud's own pictures.
    pub held_back: PathBuf,
    /// The pictures that nobody trains on.
    pub test: PathBuf,
    /// Pictures of all vehicles together.
    pub train_pictures: usize,
}

/// Splits `data/train` over the vehicles, into folders below `work`.
///
/// `data` has the sub-folders `train` and `test`, each with one sub-folder a class. Files are linked where the file
/// system can, else copied.
pub(super) fn prepare(
    data: &Path,
    work: &Path,
    vehicles: usize,
    partition: Partition,
    seed: u64,
) -> anyhow::Result<Split> {
    let (train, test) = (data.join("train"), data.join("test"));
    let classes = class_names(&train)?;
    class_names(&test)?;
    let mut files = Vec::new();
    let mut labels = Vec::new();
    for (class, label) in classes.iter().zip(0u8..) {
        for file in entries(&train.join(class))? {
            files.push((class.as_str(), file));
            labels.push(label);
        }
    }
    let (held, left) = hold_back(&labels, classes.len(), HELD_BACK, seed);
    let left_labels: Vec<u8> = left.iter().map(|i| labels[*i]).collect();
    let parts = split(&left_labels, classes.len(), vehicles, partition, seed)?;
    let place = |folder: &Path, indexes: &mut dyn Iterator<Item = usize>| -> anyhow::Result<()> {
        for class in &classes {
            fs::create_dir_all(folder.join(class))
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        for index in indexes {
            let (class, file) = &files[index];
            let name = file.file_name().context("a picture without a name")?;
            let target = folder.join(class).join(name);
            if fs::hard_link(file, &target).is_err() {
                fs::copy(file, &target).with_context(|| {
                    format!("cannot copy {} to {}", file.display(), target.display())
                })?;
            }
        }
        Ok(())
    };
    let held_back = work.join("cloud").join("pictures");
    place(&held_back, &mut held.iter().copied())?;
    let mut folders = Vec::new();
    for (part, number) in parts.iter().zip(1..) {
        let folder = work.join(format!("v{number:02}")).join("pictures");
        place(&folder, &mut part.iter().map(|i| left[*i]))?;
        folders.push(folder);
    }
    Ok(Split {
        classes,
        vehicles: folders,
        held_back,
        test,
        train_pictures: left.len(),
    })
}

/// Names of the class folders, in the order of their labels.
pub(crate) fn class_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in entries(folder)? {
        if entry.is_dir() {
            names.extend(
                entry
                    .file_name()
                    .and_then(|name| name.to_str())
                    .map(str::to_owned),
            );
        }
    }
    if names.len() < 2 || names.len() > 255 {
        bail!(
            "{} has {} class folders, 2 to 255 are needed: one sub-folder a class",
            folder.display(),
            names.len()
        );
    }
    Ok(names)
}

/// The entries of a folder by name, hidden ones left out.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| {
        format!(
            "cannot read {}: --data wants a folder with train/CLASS/*.jpg and test/CLASS/*.jpg",
            folder.display()
        )
    })?;
    let mut paths = read
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| {
        !path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'))
    });
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_lands_once_and_bad_folders_are_named() {
        let temp = tempfile::tempdir().expect("a folder");
        let data = temp.path().join("data");
        for (class, count) in [("a", 40), ("b", 30)] {
            for part in ["train", "test"] {
                fs::create_dir_all(data.join(part).join(class)).expect("a folder");
                for n in 0..count {
                    fs::write(data.join(part).join(class).join(format!("{n}.jpg")), b"x")
                        .expect("a file");
                }
            }
        }
        let work = temp.path().join("work");
        let split = prepare(&data, &work, 3, Partition::Iid, 1).expect("a split");
        let count = |folder: &Path| -> usize {
            split
                .classes
                .iter()
                .map(|class| fs::read_dir(folder.join(class)).map_or(0, Iterator::count))
                .sum()
        };
        assert_eq!(
            split
                .vehicles
                .iter()
                .map(|folder| count(folder))
                .sum::<usize>(),
            split.train_pictures
        );
        assert_eq!(count(&split.held_back) + split.train_pictures, 70);
        let error = prepare(&temp.path().join("none"), &work, 3, Partition::Iid, 1)
            .expect_err("no such folder");
        assert!(error.to_string().contains("--data"), "{error}");
    }
}
