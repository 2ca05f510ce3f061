//! A folder of pictures with one sub-folder a class.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::decode::{self, MAX_FILE_BYTES};
use super::{Dataset, Picture, PictureError, Sample, SkipReason, Skipped, Store, read_error};

/// Lists the class folders and inspects every file in them.
pub(super) fn list(root: &Path, classes: &[String]) -> Result<Dataset, PictureError> {
    let mut samples = Vec::new();
    let mut skipped = Vec::new();
    for (name, is_folder) in entries(root).map_err(read_error(root))? {
        let label = classes.iter().position(|class| *class == name);
        let label = label.and_then(|label| u8::try_from(label).ok());
        let reason = match (is_folder, label) {
            (true, Some(label)) => match entries(&root.join(&name)) {
                Ok(files) => {
                    for (file, is_folder) in files {
                        let name = format!("{name}/{file}");
                        match inspect(root, &name, is_folder) {
                            Ok(digest) => samples.push(Sample {
                                name,
                                label,
                                digest,
                            }),
                            Err(reason) => skipped.push(Skipped { name, reason }),
                        }
                    }
                    continue;
                }
                Err(_) => SkipReason::Unreadable,
            },
            (true, None) => SkipReason::UnknownClass,
            (false, _) => SkipReason::OutOfPlace,
        };
        skipped.push(Skipped { name, reason });
    }
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Dataset {
        samples,
        skipped,
        store: Store::Folder(root.to_owned()),
    })
}

/// Reads and decodes one file, provided that it still is what was listed.
pub(super) fn decode(path: &Path, digest: &[u8; 32]) -> Result<Picture, SkipReason> {
    let bytes = read(path)?;
    if blake3::hash(&bytes).as_bytes() != digest {
        return Err(SkipReason::Changed);
    }
    decode::decode(&bytes)
}

fn inspect(root: &Path, name: &str, is_folder: bool) -> Result<[u8; 32], SkipReason> {
    if is_folder {
        return Err(SkipReason::OutOfPlace);
    }
    let path = root.join(name);
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    if !["jpg", "jpeg", "png"].contains(&extension.to_ascii_lowercase().as_str()) {
        return Err(SkipReason::NotAPicture);
    }
    let bytes = read(&path)?;
    decode::inspect(&bytes)?;
    Ok(*blake3::hash(&bytes).as_bytes())
}

/// Reads a file whole, but never more than [`MAX_FILE_BYTES`].
fn read(path: &Path) -> Result<Vec<u8>, SkipReason> {
    let file = File::open(path).map_err(|_| SkipReason::Unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|_| SkipReason::Unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(SkipReason::TooManyBytes);
    }
    Ok(bytes)
}

/// Names in a folder, each with whether it is a folder (through links). Anything but a file counts as a folder: it is
/// never opened, since reading a pipe would hang.
fn entries(path: &Path) -> std::io::Result<Vec<(String, bool)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_file = fs::metadata(entry.path()).is_ok_and(|entry| entry.is_file());
        let broken = fs::metadata(entry.path()).is_err();
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push((name, !is_file && !broken));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use image::{DynamicImage, ExtendedColorType, ImageFormat};

    use super::super::{InputSize, PictureSource, load};
    use super::*;

    const SIZE: InputSize = InputSize {
        height: 16,
        width: 8,
    };

    fn rgb(width: u32, height: u32) -> DynamicImage {
        DynamicImage::ImageRgb8(image::RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([
                u8::try_from(x * 7 % 256).unwrap(),
                u8::try_from(y * 11 % 256).unwrap(),
                u8::try_from((x * y) % 256).unwrap(),
            ])
        }))
    }

    fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn classes() -> Vec<String> {
        ["red", "green"].map(String::from).to_vec()
    }

    /// A header that promises 8000 x 6000 pixels; nobody should get as far as missing them.
    fn huge_png() -> Vec<u8> {
        let small = encoded(&rgb(8, 8), ImageFormat::Png);
        let mut bytes = small[..16].to_vec();
        bytes.extend(8000_u32.to_be_bytes());
        bytes.extend(6000_u32.to_be_bytes());
        bytes.extend(&small[24..29]);
        bytes.extend(crc32(&bytes[12..29]).to_be_bytes());
        bytes.extend(&small[33..]);
        bytes
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(crc & 1))
            })
        })
    }

    #[test]
    fn each_kind_of_broken_picture_is_named_and_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let jpeg = encoded(&rgb(40, 60), ImageFormat::Jpeg);
        let png = encoded(&rgb(40, 60), ImageFormat::Png);
        let grey = DynamicImage::ImageLuma8(rgb(40, 60).to_luma8());
        let deep = DynamicImage::ImageRgb16(rgb(40, 60).to_rgb16());
        write("red/b.jpg", &jpeg);
        write("red/a.PNG", &png);
        write("green/c.jpeg", &encoded(&rgb(30, 62), ImageFormat::Jpeg));
        write("red/cut.jpg", &jpeg[..jpeg.len() / 2]);
        write("red/cut.png", &png[..png.len() / 2]);
        write("red/zero.jpg", b"");
        write("red/text.png", b"this is not a picture at all");
        write("red/grey.png", &encoded(&grey, ImageFormat::Png));
        write("red/grey.jpg", &encoded(&grey, ImageFormat::Jpeg));
        write("red/deep.png", &encoded(&deep, ImageFormat::Png));
        write("red/dot.png", &encoded(&rgb(1, 1), ImageFormat::Png));
        write("red/huge.png", &huge_png());
        write("red/notes.txt", b"hello");
        write("red/nested/d.png", &png);
        write("purple/d.png", &png);
        write("stray.png", &png);

        let dataset = load(&PictureSource::Folder(folder.path().into()), &classes()).unwrap();
        let samples: Vec<_> = dataset
            .samples()
            .iter()
            .map(|sample| (sample.name.as_str(), sample.label))
            .collect();
        assert_eq!(
            samples,
            [("green/c.jpeg", 1), ("red/a.PNG", 0), ("red/b.jpg", 0)]
        );
        let skipped: BTreeMap<_, _> = dataset
            .skipped()
            .iter()
            .map(|one| (one.name.as_str(), one.reason))
            .collect();
        let expected = BTreeMap::from([
            ("purple", SkipReason::UnknownClass),
            ("red/cut.jpg", SkipReason::Truncated),
            ("red/cut.png", SkipReason::Truncated),
            ("red/deep.png", SkipReason::UnsupportedColour),
            ("red/dot.png", SkipReason::TooSmall),
            ("red/grey.jpg", SkipReason::UnsupportedColour),
            ("red/grey.png", SkipReason::UnsupportedColour),
            ("red/huge.png", SkipReason::TooManyPixels),
            ("red/nested", SkipReason::OutOfPlace),
            ("red/notes.txt", SkipReason::NotAPicture),
            ("red/text.png", SkipReason::UnknownFormat),
            ("red/zero.jpg", SkipReason::Empty),
            ("stray.png", SkipReason::OutOfPlace),
        ]);
        assert_eq!(skipped, expected);
        for index in 0..3 {
            assert_eq!(dataset.decode(index, SIZE).unwrap().size(), SIZE);
        }
    }

    #[test]
    fn a_png_is_decoded_to_its_very_pixels() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("red")).unwrap();
        let image = rgb(8, 16);
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::write_buffer_with_format(
            &mut bytes,
            image.as_bytes(),
            8,
            16,
            ExtendedColorType::Rgb8,
            ImageFormat::Png,
        )
        .unwrap();
        let path = folder.path().join("red/a.png");
        std::fs::write(&path, bytes.into_inner()).unwrap();
        let dataset = load(&PictureSource::Folder(folder.path().into()), &classes()).unwrap();
        assert_eq!(dataset.decode(0, SIZE).unwrap().rgb(), image.as_bytes());

        std::fs::write(&path, encoded(&rgb(9, 9), ImageFormat::Png)).unwrap();
        assert_eq!(dataset.decode(0, SIZE), Err(SkipReason::Changed));
    }

    #[test]
    fn damage_inside_a_png_is_found_when_decoding() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("red")).unwrap();
        let mut bytes = encoded(&rgb(40, 60), ImageFormat::Png);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xFF;
        std::fs::write(folder.path().join("red/a.png"), bytes).unwrap();
        let dataset = load(&PictureSource::Folder(folder.path().into()), &classes()).unwrap();
        assert_eq!(dataset.decode(0, SIZE), Err(SkipReason::Damaged));
    }

    #[test]
    fn a_missing_folder_is_an_error_and_an_empty_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = PictureSource::Folder(folder.path().join("nowhere"));
        assert!(matches!(
            load(&nowhere, &classes()),
            Err(PictureError::Read { .. })
        ));
        let dataset = load(&PictureSource::Folder(folder.path().into()), &classes()).unwrap();
        assert!(dataset.samples().is_empty());
    }
}
