//! From the bytes of one file to pixels of the wanted size.

use std::io::Cursor;

use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::codecs::{jpeg::JpegDecoder, png::PngDecoder};
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageResult, Limits};

use super::{InputSize, Picture, SkipReason};

/// Smallest side of a usable picture, in pixels.
pub const MIN_SIDE: u32 = 4;
/// Most pixels of a picture that is decoded (4096 x 4096), checked on the header.
pub const MAX_PIXELS: u64 = 4096 * 4096;
/// Largest picture file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Checks all that the header tells: format, size, colour type, and whether the file has an end.
pub(super) fn inspect(bytes: &[u8]) -> Result<(), SkipReason> {
    let format = format(bytes)?;
    match format {
        ImageFormat::Jpeg => check_header(&jpeg(bytes)),
        _ => check_header(&png(bytes)),
    }?;
    let whole = match format {
        ImageFormat::Jpeg => jpeg_has_end(bytes),
        _ => bytes.windows(4).rev().any(|window| window == b"IEND"),
    };
    whole.then_some(()).ok_or(SkipReason::Truncated)
}

/// Decodes a picture in its own size.
pub(super) fn decode(bytes: &[u8]) -> Result<Picture, SkipReason> {
    inspect(bytes)?;
    let decoded = match format(bytes)? {
        ImageFormat::Jpeg => jpeg(bytes).and_then(DynamicImage::from_decoder),
        _ => png(bytes).and_then(DynamicImage::from_decoder),
    };
    let rgb = decoded.map_err(|error| reason(&error))?.into_rgb8();
    let size = InputSize {
        height: rgb.height() as usize,
        width: rgb.width() as usize,
    };
    Picture::new(size, rgb.into_raw()).ok_or(SkipReason::Damaged)
}

/// Bilinear, with the filter widened where the picture shrinks.
pub(super) fn resize(picture: Picture, size: InputSize) -> Result<Picture, SkipReason> {
    let from = picture.size();
    if from == size {
        return Ok(picture);
    }
    let pixels = |side: usize| u32::try_from(side).map_err(|_| SkipReason::TooManyPixels);
    let source = Image::from_vec_u8(
        pixels(from.width)?,
        pixels(from.height)?,
        picture.rgb,
        PixelType::U8x3,
    )
    .map_err(|_| SkipReason::Damaged)?;
    let mut target = Image::new(pixels(size.width)?, pixels(size.height)?, PixelType::U8x3);
    let bilinear = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new()
        .resize(&source, &mut target, &bilinear)
        .map_err(|_| SkipReason::Damaged)?;
    Picture::new(size, target.into_vec()).ok_or(SkipReason::Damaged)
}

fn format(bytes: &[u8]) -> Result<ImageFormat, SkipReason> {
    if bytes.is_empty() {
        return Err(SkipReason::Empty);
    }
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png)) => Ok(format),
        _ => Err(SkipReason::UnknownFormat),
    }
}

fn jpeg(bytes: &[u8]) -> ImageResult<JpegDecoder<Cursor<&[u8]>>> {
    JpegDecoder::new(Cursor::new(bytes))
}

fn png(bytes: &[u8]) -> ImageResult<PngDecoder<Cursor<&[u8]>>> {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(8 * MAX_PIXELS);
    PngDecoder::with_limits(Cursor::new(bytes), limits)
}

fn check_header(decoder: &ImageResult<impl ImageDecoder>) -> Result<(), SkipReason> {
    let decoder = decoder.as_ref().map_err(reason)?;
    let (width, height) = decoder.dimensions();
    if width < MIN_SIDE || height < MIN_SIDE {
        return Err(SkipReason::TooSmall);
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(SkipReason::TooManyPixels);
    }
    match decoder.color_type() {
        ColorType::Rgb8 | ColorType::Rgba8 => Ok(()),
        _ => Err(SkipReason::UnsupportedColour),
    }
}

fn reason(error: &ImageError) -> SkipReason {
    match error {
        ImageError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
            SkipReason::Truncated
        }
        ImageError::Limits(_) => SkipReason::TooManyPixels,
        _ => SkipReason::Damaged,
    }
}

/// Whether a JPEG has an end-of-image marker behind its first scan.
///
/// The decoder fills a missing rest with grey and calls it a success. Within a scan 0xFF is always followed by 0 or a
/// restart marker, so the marker found there is the real one, not that of a thumbnail in the header.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xDA;
    let mut at = 2;
    loop {
        // 0xFF may be repeated before a marker.
        let (Some(&prefix), Some(&marker)) = (bytes.get(at), bytes.get(at + 1)) else {
            return false;
        };
        if prefix != 0xFF {
            return false;
        }
        if marker == 0xFF {
            at += 1;
            continue;
        }
        if marker == START_OF_SCAN {
            return bytes[at..].windows(2).rev().any(|w| w == [0xFF, 0xD9]);
        }
        // Markers without a segment: TEM and the restart markers.
        if marker == 0x01 || (0xD0..=0xD7).contains(&marker) {
            at += 2;
            continue;
        }
        let (Some(&high), Some(&low)) = (bytes.get(at + 2), bytes.get(at + 3)) else {
            return false;
        };
        at += 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(height: usize, width: usize) -> Picture {
        let rgb = (0..height * width * 3)
            .map(|i| u8::try_from(i * 31 % 251).unwrap())
            .collect();
        Picture::new(InputSize { height, width }, rgb).unwrap()
    }

    #[test]
    fn the_right_size_is_left_alone() {
        let before = picture(9, 5);
        assert_eq!(resize(before.clone(), before.size()).unwrap(), before);
    }

    #[test]
    fn resizing_keeps_a_plain_colour() {
        let plain = |height, width| {
            let rgb = [10, 200, 30].repeat(height * width);
            Picture::new(InputSize { height, width }, rgb).unwrap()
        };
        for (height, width) in [(128, 64), (3, 7), (1, 1)] {
            let resized = resize(plain(20, 11), InputSize { height, width }).unwrap();
            assert_eq!(resized, plain(height, width));
        }
    }

    #[test]
    fn bilinear_between_two_pixels() {
        let two = Picture::new(
            InputSize {
                height: 1,
                width: 2,
            },
            vec![0, 0, 0, 100, 100, 100],
        )
        .unwrap();
        let four = InputSize {
            height: 1,
            width: 4,
        };
        // Pixel centres at -0.25, 0.25, 0.75 and 1.25, held at the edges.
        let values: Vec<u8> = resize(two, four).unwrap().rgb().to_vec();
        assert_eq!(values, [0, 0, 0, 25, 25, 25, 75, 75, 75, 100, 100, 100]);
    }

    proptest! {
        /// Bytes from outside never panic, with or without the start of a real picture.
        #[test]
        fn any_bytes_are_a_picture_or_a_reason(
            start in prop::sample::select(vec![
                &b""[..], b"\x89PNG\r\n\x1a\n", b"\xFF\xD8\xFF\xE0\x00\x10JFIF\x00",
            ]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &rest].concat();
            let _ = decode(&bytes);
        }
    }
}
